//! [`QuantizedParts`]: the loose parts of a quantized tensor, and the checks that make them one.

use super::{
    Axis, FormatError, FormatId, Operand, Partition, QuantizeSpec, ScaleKind, ScaleScope, Source, TensorLayout,
};
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
    /// The cut into shards.
    pub partition: Partition,
    /// Rows of the source.
    pub rows: usize,
    /// Columns of the source.
    pub cols: usize,
    /// Codes, laid out as [`QuantizedTensor::codes`](super::QuantizedTensor::codes) says.
    pub codes: Vec<u8>,
    /// Block scales, row-major.
    pub scales: BlockScales,
    /// Outer decode scales.
    pub outer: Vec<f32>,
    /// The amax values behind `outer`; may be empty where they are not known.
    pub amax: Vec<f32>,
}

impl QuantizedParts {
    /// What `spec` made of `source`, without outer scales; a format that has them sets `outer` and `amax` over it.
    #[must_use]
    pub fn new(source: &Source<'_>, spec: &QuantizeSpec, codes: Vec<u8>, scales: BlockScales) -> Self {
        QuantizedParts {
            format: spec.format.clone(),
            operand: spec.operand,
            axis: spec.axis,
            scope: spec.scope,
            partition: spec.partition,
            rows: source.rows(),
            cols: source.cols(),
            codes,
            scales,
            outer: Vec::new(),
            amax: Vec::new(),
        }
    }

    /// The spec that describes these parts (the treatment of non-finite sources has left no trace).
    pub(crate) fn spec(&self) -> QuantizeSpec {
        let spec = match self.operand {
            Operand::Activation => QuantizeSpec::activation(self.format.clone()),
            Operand::Weight => QuantizeSpec::weight(self.format.clone()),
        };
        spec.with_axis(self.axis).with_scope(self.scope).with_partition(self.partition)
    }

    /// Refuses parts that do not fit `layout`, and scales that no quantizer may emit.
    pub(super) fn check(&self, layout: &TensorLayout, name: &str) -> Result<(), FormatError> {
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

    fn check_length(&self, tensor: &str, part: &'static str, found: usize, expected: usize) -> Result<(), FormatError> {
        if found == expected {
            return Ok(());
        }
        Err(FormatError::PartLength { tensor: tensor.to_owned(), format: self.format.clone(), part, expected, found })
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
                    Err(FormatError::NanScale { tensor: tensor(), row, block, byte: scales[index] })
                })
            }
            (BlockScales::F32(scales), ScaleKind::F32) => {
                scales.iter().position(|x| !x.is_finite()).map_or(Ok(()), |index| {
                    let (row, block) = place(index);
                    Err(FormatError::NonFiniteScale { tensor: tensor(), row, block, value: scales[index] })
                })
            }
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

fn check_outer(
    tensor: &str,
    part: &'static str,
    values: &[f32],
    valid: impl Fn(f32) -> bool,
) -> Result<(), FormatError> {
    match values.iter().position(|&x| !valid(x)) {
        None => Ok(()),
        Some(index) => Err(FormatError::BadOuter { tensor: tensor.to_owned(), part, index, value: values[index] }),
    }
}
