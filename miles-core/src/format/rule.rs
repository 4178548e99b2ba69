//! [`FormatRule`]: what a format has to define, and the rules that are built in.

use std::fmt;

use super::{
    CodeDependence, FormatError, FormatId, MAX_EXTENT, QuantizeSpec, QuantizedTensor, Source, fp8_block, mxfp8, nvfp4,
    symmetric,
};

/// The arithmetic of one format. Implement it to add a format of your own.
///
/// A rule is a pure function of its arguments, and its bytes must not depend on neighbours beyond what the spec
/// says (a row of an activation never depends on another row).
pub trait FormatRule: Send + Sync {
    /// The format's name. It enters every digest, so it changes whenever the bytes can.
    fn id(&self) -> FormatId;

    /// The sizes of the parts of a `[rows, cols]` tensor quantized by `spec`.
    ///
    /// # Errors
    /// [`FormatError`] when the format cannot hold such a tensor, or `spec` names another format.
    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError>;

    /// Quantizes one tensor.
    ///
    /// # Errors
    /// As [`layout`](Self::layout); [`FormatError::NonFinite`] where `spec` asks for it.
    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError>;

    /// Quantizes tensors of equal width that one matrix multiplication reads as if their rows were concatenated
    /// (gate and up of a gated MLP): with [`ScaleScope::Tensor`](super::ScaleScope::Tensor) all of them get the
    /// outer scale of the concatenation. Without outer scales, or with one per row, there is nothing to share.
    ///
    /// # Errors
    /// As [`quantize`](Self::quantize); [`FormatError::JointWidth`] when the widths differ.
    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError>;

    /// The values, row-major `[rows, cols]` in the orientation of the source whatever the axis.
    ///
    /// # Errors
    /// [`FormatError::FormatMismatch`] when `tensor` is of another format.
    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError>;

    /// The code byte that decodes to the largest magnitude under every scale, in all its parts where it holds several
    /// elements. A user's format that tells has its activations counted; see [`counts`](super::counts).
    fn largest_code(&self) -> Option<u8> {
        None
    }

    /// What a code depends on beside its element and the scales over it. A rule that rotates, or rounds by chance,
    /// has to say so: the conformance suite asks it for the promises that such a rule can keep.
    fn code_dependence(&self) -> CodeDependence {
        CodeDependence::default()
    }
}

const _: Option<&dyn FormatRule> = None;

/// Sizes of the parts of one quantized tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorLayout {
    /// Bytes of codes.
    pub codes_bytes: usize,
    /// Number format of block scales.
    pub scale_kind: ScaleKind,
    /// Rows of the scale matrix.
    pub scale_rows: usize,
    /// Columns of the scale matrix.
    pub scale_cols: usize,
    /// Number of outer scales; 0 for a format without them.
    pub outer_len: usize,
    /// Number of amax values the rule records; 0 for a format without them.
    pub amax_len: usize,
}

/// Number format of block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScaleKind {
    /// One E4M3 byte; NaN bytes are refused.
    E4m3,
    /// One E8M0 byte; the NaN byte is refused.
    E8m0,
    /// One byte of a user format's own meaning.
    Byte,
    /// One `f32`; non-finite values are refused.
    F32,
}

/// The built-in rule of that name, one of [`builtin_rules`] or a combination of variants
/// ([`nvfp4::combinations`]).
#[must_use]
pub fn builtin_rule(format: &FormatId) -> Option<&'static dyn FormatRule> {
    nvfp4::combination(format).or_else(|| builtin_rules().find(|rule| rule.id() == *format))
}

/// Every built-in rule, each format's default before its variants. Combinations of variants are not listed.
pub fn builtin_rules() -> impl Iterator<Item = &'static dyn FormatRule> {
    BUILTIN.iter().flat_map(|rules| rules.iter().copied())
}

pub(super) fn known_or_error(format: &FormatId) -> Result<&'static dyn FormatRule, FormatError> {
    builtin_rule(format).ok_or_else(|| FormatError::UnknownFormat {
        format: format.clone(),
        known: builtin_rules().map(|rule| rule.id()).collect(),
    })
}

/// Refuses a request that belongs to another rule.
pub(super) fn check_format(rule: &FormatId, requested: &FormatId) -> Result<(), FormatError> {
    if rule == requested {
        return Ok(());
    }
    Err(FormatError::FormatMismatch { rule: rule.clone(), requested: requested.clone() })
}

/// Refuses sizes that only a tensor without elements could have.
pub(super) fn check_extents(tensor: &str, rows: usize, cols: usize) -> Result<(), FormatError> {
    if rows <= MAX_EXTENT && cols <= MAX_EXTENT {
        return Ok(());
    }
    Err(FormatError::Extent { tensor: tensor.to_owned(), rows, cols, limit: MAX_EXTENT })
}

/// Refuses a joint quantization of tensors whose rows have different lengths.
///
/// # Errors
/// [`FormatError::JointWidth`] for the first that differs.
pub fn check_joint_widths(sources: &[Source<'_>]) -> Result<(), FormatError> {
    let Some(first) = sources.first() else {
        return Ok(());
    };
    match sources.iter().find(|source| source.cols() != first.cols()) {
        None => Ok(()),
        Some(other) => Err(FormatError::JointWidth {
            tensor: other.tensor_name(),
            first: first.tensor_name(),
            expected: first.cols(),
            found: other.cols(),
        }),
    }
}

impl fmt::Display for ScaleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::E4m3 => "E4M3 bytes",
            Self::E8m0 => "E8M0 bytes",
            Self::Byte => "bytes",
            Self::F32 => "F32",
        })
    }
}

static BUILTIN: [&[&dyn FormatRule]; 4] = [nvfp4::RULES, mxfp8::RULES, fp8_block::RULES, symmetric::RULES];
