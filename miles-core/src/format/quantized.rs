//! [`QuantizedTensor`]: one tensor's codes and scales, immutable, checked, hashable.

use std::sync::Arc;

use half::bf16;

use super::canonical::{HEADER_BYTES, visit_canonical};
use super::rule::{check_extents, known_or_error};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Operand, Partition, QuantizeSpec, QuantizedParts, ScaleScope,
    TensorLayout,
};
use crate::digest::Digest;
use crate::number;

/// A quantized `[rows, cols]` tensor. Cloning shares the data.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedTensor(Arc<Inner>);

#[derive(Debug, PartialEq)]
struct Inner {
    parts: QuantizedParts,
    layout: TensorLayout,
}

impl QuantizedTensor {
    /// Assembles a tensor of `rule`'s format from its parts; `name` is used in errors.
    ///
    /// `amax` may be empty: layouts of other libraries store only the decode scale.
    ///
    /// # Errors
    /// [`FormatError::FormatMismatch`] when the parts name another format; [`FormatError::PartLength`] and
    /// [`FormatError::ScaleStorage`] when a part does not fit the format's layout; [`FormatError::NanScale`],
    /// [`FormatError::NonFiniteScale`] and [`FormatError::BadOuter`] for scales that no quantizer may emit;
    /// [`FormatError::Extent`] beyond [`MAX_EXTENT`](super::MAX_EXTENT) rows or columns.
    pub fn from_parts(rule: &dyn FormatRule, name: Option<&str>, parts: QuantizedParts) -> Result<Self, FormatError> {
        let name = name.unwrap_or("<unnamed>");
        check_extents(name, parts.rows, parts.cols)?;
        let layout = rule.layout(parts.rows, parts.cols, &parts.spec())?;
        parts.check(&layout, name)?;
        Ok(Self(Arc::new(Inner { parts, layout })))
    }

    /// The same tensor with other bytes: `parts` of the same form and sizes, checked as [`from_parts`](Self::from_parts)
    /// does, for which the layout is known already.
    pub(crate) fn with_parts(&self, name: &str, parts: QuantizedParts) -> Result<Self, FormatError> {
        let layout = self.0.layout;
        parts.check(&layout, name)?;
        Ok(Self(Arc::new(Inner { parts, layout })))
    }

    /// A copy of the parts, for writing them elsewhere or for building a changed tensor.
    #[must_use]
    pub fn to_parts(&self) -> QuantizedParts {
        self.0.parts.clone()
    }

    /// The spec that the tensor was quantized by, as far as it has left a trace: not the treatment of non-finite values.
    #[must_use]
    pub fn spec(&self) -> QuantizeSpec {
        self.0.parts.spec()
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> &FormatId {
        &self.0.parts.format
    }

    /// The tensor's side of the linear operation.
    #[must_use]
    pub fn operand(&self) -> Operand {
        self.0.parts.operand
    }

    /// The direction of blocks.
    #[must_use]
    pub fn axis(&self) -> Axis {
        self.0.parts.axis
    }

    /// The extent of one outer scale.
    #[must_use]
    pub fn scope(&self) -> ScaleScope {
        self.0.parts.scope
    }

    /// The cut into shards.
    #[must_use]
    pub fn partition(&self) -> Partition {
        self.0.parts.partition
    }

    /// Rows of the source.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.0.parts.rows
    }

    /// Columns of the source.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.0.parts.cols
    }

    /// The codes, row-major.
    ///
    /// | format | row axis | column axis |
    /// |---|---|---|
    /// | `nvfp4` | `[rows, cols / 2]`, even element in the low nibble | transposed, `[cols, ceil(rows / 2)]` |
    /// | `mxfp8` | `[rows, cols]` | `[rows, cols]` |
    /// | `fp8-block`, `fp8-channel`, `fp8-tensor`, `int8-channel` | `[rows, cols]` | transposed, `[cols, rows]` |
    /// | `int4-group/..` | `[rows, ceil(cols / 2)]`, even element in the low nibble | transposed, `[cols, ceil(rows / 2)]` |
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.0.parts.codes
    }

    /// The block scales, row-major [`scale_rows`](Self::scale_rows) x [`scale_cols`](Self::scale_cols).
    #[must_use]
    pub fn scales(&self) -> &BlockScales {
        &self.0.parts.scales
    }

    /// The outer decode scales: one per line, one for the tensor, or none, by format and scope.
    #[must_use]
    pub fn outer(&self) -> &[f32] {
        &self.0.parts.outer
    }

    /// The amax values that the outer scales come from; empty where the format has none or they are not known.
    #[must_use]
    pub fn amax(&self) -> &[f32] {
        &self.0.parts.amax
    }

    /// Sizes of the parts.
    #[must_use]
    pub fn layout(&self) -> &TensorLayout {
        &self.0.layout
    }

    /// Rows of the scale matrix.
    #[must_use]
    pub fn scale_rows(&self) -> usize {
        self.0.layout.scale_rows
    }

    /// Columns of the scale matrix.
    #[must_use]
    pub fn scale_cols(&self) -> usize {
        self.0.layout.scale_cols
    }

    /// Memory held by codes and scales.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let parts = &self.0.parts;
        let scale_bytes = match &parts.scales {
            BlockScales::U8(scales) => scales.len(),
            BlockScales::F32(scales) => size_of_val(scales.as_slice()),
        };
        parts.codes.len() + scale_bytes + size_of_val(parts.outer.as_slice()) + size_of_val(parts.amax.as_slice())
    }

    /// The bytes that the digest covers: neither padded nor swizzled, so the same on every machine and on both sides of
    /// a checkpoint. Little endian.
    ///
    /// ```text
    /// offset  size  field
    ///      0     8  "miles-q1"
    ///      8     1  operand: 0 activation, 1 weight
    ///      9     1  axis: 0 row, 1 column
    ///     10     1  block scales: 0 one byte each, 1 f32
    ///     11     1  cut: 0 whole, 1 rows, 2 columns
    ///     12     4  number of shards and one more than the shard's number (0: all of them), u16 each; 0 for a whole
    ///     16    40  rows, cols, then the numbers of code bytes, block scales and outer scales, u64 each
    ///     56        codes, block scales, outer scales
    /// ```
    #[must_use]
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.size_bytes());
        visit_canonical(&self.0.parts, |chunk| bytes.extend_from_slice(chunk));
        bytes
    }

    /// BLAKE3 over the format's name (its length as `u64`, then its bytes) and the canonical bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let name = self.format().as_str();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        visit_canonical(&self.0.parts, |chunk| {
            hasher.update(chunk);
        });
        hasher.finalize().into()
    }

    /// The values as `f32`, row-major `[rows, cols]` whatever the axis. For a built-in format; a user's own format
    /// is decoded by its [`FormatRule::dequantize`].
    ///
    /// # Errors
    /// [`FormatError::UnknownFormat`] when the format is not built in.
    pub fn dequantize_f32(&self) -> Result<Vec<f32>, FormatError> {
        known_or_error(self.format())?.dequantize(self)
    }

    /// The values of [`dequantize_f32`](Self::dequantize_f32), each rounded to BF16.
    ///
    /// # Errors
    /// As [`dequantize_f32`](Self::dequantize_f32).
    pub fn dequantize_bf16(&self) -> Result<Vec<bf16>, FormatError> {
        let values = self.dequantize_f32()?;
        Ok(values.into_iter().map(|x| bf16::from_bits(number::bf16::encode(x))).collect())
    }
}
