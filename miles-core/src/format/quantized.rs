//! [`QuantizedTensor`]: one tensor's codes and scales, immutable, checked, hashable.
//!
//! # Canonical bytes
//!
//! The same tensor has the same bytes on every machine, whatever layout a device keeps it in: codes and scales are
//! neither padded nor swizzled. All integers and floats are little endian.
//!
//! ```text
//! offset  size  field
//!      0     8  "miles-q1"
//!      8     1  operand: 0 activation, 1 weight
//!      9     1  axis: 0 row, 1 column
//!     10     1  block scales: 0 one byte each, 1 f32
//!     11     5  zero
//!     16    48  rows, cols, then the numbers of code bytes, block scales, outer scales and amax values, u64 each
//!     64        codes, block scales, outer scales, amax values
//! ```
//!
//! [`QuantizedTensor::digest`] hashes the format's name (its length as u64, then its bytes) and these bytes. The scope
//! is not in the header because the number of outer scales says it.

use std::sync::Arc;

use half::bf16;

use super::rule::known_or_error;
use super::{
    Axis, FormatError, FormatId, FormatRule, Operand, QuantizeSpec, ScaleKind, ScaleScope,
    TensorLayout,
};
use crate::digest::Digest;
use crate::number;

/// Block scales in the storage of their format.
#[derive(Debug, Clone, PartialEq)]
pub enum BlockScales {
    /// One byte each: E4M3 or E8M0.
    U8(Vec<u8>),
    /// Decode scales as `f32`.
    F32(Vec<f32>),
}

/// The parts of a quantized tensor, unchecked: what a checkpoint reader has in hand.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedParts {
    /// The format.
    pub format: FormatId,
    /// The tensor's side of the linear operation.
    pub operand: Operand,
    /// The direction of blocks.
    pub axis: Axis,
    /// The extent of one outer scale.
    pub scope: ScaleScope,
    /// Rows of the source.
    pub rows: usize,
    /// Columns of the source.
    pub cols: usize,
    /// Codes, laid out as [`QuantizedTensor::codes`] says.
    pub codes: Vec<u8>,
    /// Block scales, row-major.
    pub scales: BlockScales,
    /// Outer decode scales.
    pub outer: Vec<f32>,
    /// The amax values behind `outer`; may be empty where they are not known.
    pub amax: Vec<f32>,
}

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
    /// [`FormatError::NonFiniteScale`] and [`FormatError::BadOuter`] for scales that no quantizer may emit.
    pub fn from_parts(
        rule: &dyn FormatRule,
        name: Option<&str>,
        parts: QuantizedParts,
    ) -> Result<Self, FormatError> {
        let layout = rule.layout(parts.rows, parts.cols, &parts.spec())?;
        parts.check(&layout, name.unwrap_or("<unnamed>"))?;
        Ok(Self(Arc::new(Inner { parts, layout })))
    }

    /// A copy of the parts, for writing them elsewhere or for building a changed tensor.
    #[must_use]
    pub fn to_parts(&self) -> QuantizedParts {
        self.0.parts.clone()
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
    /// | `nvfp4` | `[rows, cols / 2]`, even element in the low nibble | transposed, `[cols, rows / 2]` |
    /// | `mxfp8` | `[rows, cols]` | `[rows, cols]` |
    /// | `fp8-block` | `[rows, cols]` | transposed, `[cols, rows]` |
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
        parts.codes.len()
            + scale_bytes
            + size_of_val(parts.outer.as_slice())
            + size_of_val(parts.amax.as_slice())
    }

    /// The canonical bytes described in the module documentation.
    #[must_use]
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.size_bytes());
        self.visit_canonical(|chunk| bytes.extend_from_slice(chunk));
        bytes
    }

    /// BLAKE3 over the format's name and the canonical bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let name = self.format().as_str();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        self.visit_canonical(|chunk| {
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
        Ok(values
            .into_iter()
            .map(|x| bf16::from_bits(number::bf16::encode(x)))
            .collect())
    }

    fn visit_canonical(&self, mut visit: impl FnMut(&[u8])) {
        let parts = &self.0.parts;
        visit(&self.header());
        visit(&parts.codes);
        match &parts.scales {
            BlockScales::U8(scales) => visit(scales),
            BlockScales::F32(scales) => visit_f32(scales, &mut visit),
        }
        visit_f32(&parts.outer, &mut visit);
        visit_f32(&parts.amax, &mut visit);
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let parts = &self.0.parts;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(b"miles-q1");
        header[8] = u8::from(parts.operand == Operand::Weight);
        header[9] = u8::from(parts.axis == Axis::Column);
        header[10] = u8::from(matches!(parts.scales, BlockScales::F32(_)));
        let counts = [
            parts.rows,
            parts.cols,
            parts.codes.len(),
            parts.scales.len(),
            parts.outer.len(),
            parts.amax.len(),
        ];
        for (slot, count) in header[16..].chunks_exact_mut(8).zip(counts) {
            slot.copy_from_slice(&(count as u64).to_le_bytes());
        }
        header
    }
}

impl QuantizedParts {
    /// The spec that describes these parts (the treatment of non-finite sources has left no trace).
    fn spec(&self) -> QuantizeSpec {
        let spec = match self.operand {
            Operand::Activation => QuantizeSpec::activation(self.format.clone()),
            Operand::Weight => QuantizeSpec::weight(self.format.clone()),
        };
        spec.with_axis(self.axis).with_scope(self.scope)
    }

    fn check(&self, layout: &TensorLayout, name: &str) -> Result<(), FormatError> {
        let scales = layout.scale_rows * layout.scale_cols;
        self.check_length(name, "codes", self.codes.len(), layout.codes_bytes)?;
        self.check_length(name, "scales", self.scales.len(), scales)?;
        self.check_length(name, "outer", self.outer.len(), layout.outer_len)?;
        if !self.amax.is_empty() {
            self.check_length(name, "amax", self.amax.len(), layout.amax_len)?;
        }
        self.check_scales(layout, name)?;
        check_outer(name, "outer", &self.outer, |x| x.is_finite() && x >= 0.0)?;
        check_outer(name, "amax", &self.amax, |x| x >= 0.0)
    }

    fn check_length(
        &self,
        tensor: &str,
        part: &'static str,
        found: usize,
        expected: usize,
    ) -> Result<(), FormatError> {
        if found == expected {
            return Ok(());
        }
        Err(FormatError::PartLength {
            tensor: tensor.to_owned(),
            format: self.format.clone(),
            part,
            expected,
            found,
        })
    }

    fn check_scales(&self, layout: &TensorLayout, name: &str) -> Result<(), FormatError> {
        let tensor = || name.to_owned();
        let place = |index: usize| (index / layout.scale_cols, index % layout.scale_cols);
        match (&self.scales, layout.scale_kind) {
            (BlockScales::U8(_), ScaleKind::Byte) => Ok(()),
            (BlockScales::U8(scales), ScaleKind::E4m3 | ScaleKind::E8m0) => {
                let nan = match layout.scale_kind {
                    ScaleKind::E8m0 => scales.iter().position(|&byte| byte == number::e8m0::NAN),
                    _ => scales.iter().position(|&byte| number::e4m3::is_nan(byte)),
                };
                nan.map_or(Ok(()), |index| {
                    let (row, block) = place(index);
                    Err(FormatError::NanScale {
                        tensor: tensor(),
                        row,
                        block,
                        byte: scales[index],
                    })
                })
            }
            (BlockScales::F32(scales), ScaleKind::F32) => scales
                .iter()
                .position(|x| !x.is_finite())
                .map_or(Ok(()), |index| {
                    let (row, block) = place(index);
                    Err(FormatError::NonFiniteScale {
                        tensor: tensor(),
                        row,
                        block,
                        value: scales[index],
                    })
                }),
            (found, expected) => Err(FormatError::ScaleStorage {
                tensor: tensor(),
                format: self.format.clone(),
                expected,
                found: found.storage(),
            }),
        }
    }
}

impl BlockScales {
    /// Number of scales.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U8(scales) => scales.len(),
            Self::F32(scales) => scales.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The scales, where they are bytes.
    #[must_use]
    pub fn as_u8(&self) -> Option<&[u8]> {
        match self {
            Self::U8(scales) => Some(scales),
            Self::F32(_) => None,
        }
    }

    /// The scales, where they are `f32`.
    #[must_use]
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            Self::U8(_) => None,
            Self::F32(scales) => Some(scales),
        }
    }

    fn storage(&self) -> &'static str {
        match self {
            Self::U8(_) => "U8",
            Self::F32(_) => "F32",
        }
    }
}

const HEADER_BYTES: usize = 64;

fn visit_f32(values: &[f32], visit: &mut impl FnMut(&[u8])) {
    let mut buffer = [0; 1024];
    for chunk in values.chunks(buffer.len() / 4) {
        for (slot, value) in buffer.chunks_exact_mut(4).zip(chunk) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        visit(&buffer[..chunk.len() * 4]);
    }
}

fn check_outer(
    tensor: &str,
    part: &'static str,
    values: &[f32],
    valid: impl Fn(f32) -> bool,
) -> Result<(), FormatError> {
    match values.iter().position(|&x| !valid(x)) {
        None => Ok(()),
        Some(index) => Err(FormatError::BadOuter {
            tensor: tensor.to_owned(),
            part,
            index,
            value: values[index],
        }),
    }
}
