//! MXFP8: E4M3 codes in blocks of 32 with an E8M0 scale.
//!
//! With `a` the amax of a block, every operation an IEEE `f32` one:
//!
//! ```text
//! E   = rounding.block_scale(a)
//! q_i = e4m3(x_i * 2^(127 - E))
//! ```
//!
//! | format | E | block of a weight |
//! |---|---|---|
//! | `mxfp8` | `e8m0_ceil(a * (1/448))`, 1/448 rounded to `f32`: no element saturates | 1x32 |
//! | `mxfp8/ocp-floor` | `floor(log2 a) - 8 + 127`, at least 0: the OCP specification's rule; a block whose amax is above 448/512 of its binade saturates | 1x32 |
//! | `mxfp8/even` | the same after `a` was rounded to three mantissa bits | 1x32 |
//! | `mxfp8/32x32` and either of the others followed by `/32x32` | as named | 32x32 |
//!
//! A zero block gets E = 0 and codes 0. Rounded up, a block that holds the largest finite values gets E = 247 and may
//! decode to infinity. The column copy keeps the `[rows, cols]` layout of its codes; only its blocks run down the
//! columns. A 32x32 tile repeats its scale for each of its rows (or columns), so scales have the same shape as without
//! tiles, and the row and column copies of a tiled weight have the same codes. Activations are never tiled.
//!
//! `ocp-floor` and `even` give an infinite amax the NaN byte 255, and `even` also gives it to finite amax from `0x7F78_0000`
//! on (1.9375 * 2^127), which it rounds to 2^128. The row functions here write that byte, with NaN codes, as the
//! definition says; a tensor never holds it, so quantizing such a tensor is [`FormatError::NanScale`], whatever the
//! treatment of non-finite values. (torchao's RCEIL is the default but for an infinite amax, which it gives 255.)

mod rows;

use super::rule::{check_format, check_joint_widths};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Operand, QuantizeSpec, QuantizedParts, QuantizedTensor,
    ScaleKind, Source, TensorLayout,
};
use crate::number::{e4m3, e8m0};

pub use rows::{quantize_row, quantize_row_group_by_column};

/// Elements per block, and rows per tile of a tiled weight.
pub const BLOCK: usize = 32;

/// How a block's amax becomes a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRounding {
    /// Up, so that no element saturates.
    #[default]
    Up,
    /// Down, as the OCP microscaling specification has it.
    OcpFloor,
    /// Down, after the amax was rounded to E4M3's three mantissa bits.
    Even,
}

impl ScaleRounding {
    /// The E8M0 scale of a block whose largest magnitude is `amax`; 255 where this rounding has none.
    #[inline]
    #[must_use]
    pub const fn block_scale(self, amax: f32) -> u8 {
        match self {
            Self::Up => block_scale(amax),
            Self::OcpFloor => floor_scale(amax.to_bits()),
            Self::Even => floor_scale(amax.to_bits().saturating_add(HALF_OF_THREE_BITS)),
        }
    }
}

/// What a weight's block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tile {
    /// 32 elements along the axis.
    #[default]
    Line,
    /// 32x32 elements.
    Square,
}

/// The MXFP8 rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mxfp8 {
    /// How scales are rounded.
    pub scale_rounding: ScaleRounding,
    /// The block of a weight.
    pub tile: Tile,
}

/// The E8M0 scale of a block whose largest magnitude is `amax`, rounded up.
#[inline]
#[must_use]
pub const fn block_scale(amax: f32) -> u8 {
    e8m0::encode_ceil(amax * LARGEST_RECIPROCAL)
}

impl Mxfp8 {
    /// The format `mxfp8`.
    pub const DEFAULT: Self = Self { scale_rounding: ScaleRounding::Up, tile: Tile::Line };
    /// The format `mxfp8/ocp-floor`.
    pub const OCP_FLOOR: Self = Self { scale_rounding: ScaleRounding::OcpFloor, tile: Tile::Line };
    /// The format `mxfp8/even`.
    pub const EVEN: Self = Self { scale_rounding: ScaleRounding::Even, tile: Tile::Line };
    /// The format `mxfp8/32x32`.
    pub const TILES: Self = Self { scale_rounding: ScaleRounding::Up, tile: Tile::Square };

    fn is_tiled(&self, operand: Operand) -> bool {
        self.tile == Tile::Square && operand == Operand::Weight
    }
}

impl FormatRule for Mxfp8 {
    fn id(&self) -> FormatId {
        match (self.scale_rounding, self.tile) {
            (ScaleRounding::Up, Tile::Line) => FormatId::mxfp8(),
            (ScaleRounding::Up, Tile::Square) => FormatId::builtin("mxfp8/32x32"),
            (ScaleRounding::OcpFloor, Tile::Line) => FormatId::builtin("mxfp8/ocp-floor"),
            (ScaleRounding::OcpFloor, Tile::Square) => FormatId::builtin("mxfp8/ocp-floor/32x32"),
            (ScaleRounding::Even, Tile::Line) => FormatId::builtin("mxfp8/even"),
            (ScaleRounding::Even, Tile::Square) => FormatId::builtin("mxfp8/even/32x32"),
        }
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        check_format(&format, &spec.format)?;
        let block = match spec.axis {
            _ if self.is_tiled(spec.operand) => (BLOCK, BLOCK),
            Axis::Row => (1, BLOCK),
            Axis::Column => (BLOCK, 1),
        };
        spec.partition.check(&format, (rows, cols), block)?;
        let Some(codes_bytes) = rows.checked_mul(cols) else {
            return Err(FormatError::TooLarge { format, rows, cols });
        };
        let (scale_rows, scale_cols) = match spec.axis {
            Axis::Row => (rows, cols.div_ceil(BLOCK)),
            Axis::Column => (rows.div_ceil(BLOCK), cols),
        };
        Ok(TensorLayout { codes_bytes, scale_kind: ScaleKind::E8m0, scale_rows, scale_cols, outer_len: 0, amax_len: 0 })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let (rows, cols) = (source.rows(), source.cols());
        let layout = self.layout(rows, cols, spec)?;
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            Axis::Row => column / BLOCK,
            Axis::Column => row / BLOCK,
        })?;
        let mut codes = vec![0; layout.codes_bytes];
        let mut scales = vec![0; layout.scale_rows * layout.scale_cols];
        let values = source.values();
        if self.is_tiled(spec.operand) {
            self.quantize_tiles(&values, cols, spec.axis, &mut codes, &mut scales);
        } else {
            let rows_per_scale_row = match spec.axis {
                Axis::Row => 1,
                Axis::Column => BLOCK,
            };
            let group = (rows_per_scale_row * cols).max(1);
            let groups = values.chunks(group).zip(codes.chunks_mut(group));
            for ((values, group_codes), scale_row) in groups.zip(scales.chunks_mut(layout.scale_cols.max(1))) {
                match spec.axis {
                    Axis::Row => self.quantize_row(values, group_codes, scale_row),
                    Axis::Column => self.quantize_row_group_by_column(values, cols, group_codes, scale_row),
                }
            }
        }
        let parts = QuantizedParts::new(source, spec, codes, BlockScales::U8(scales));
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        check_format(&self.id(), tensor.format())?;
        let (cols, scale_cols) = (tensor.cols(), tensor.scale_cols());
        let scales = tensor.scales().as_u8().unwrap_or_default();
        let mut values = Vec::with_capacity(tensor.codes().len());
        for (row, codes) in tensor.codes().chunks(cols.max(1)).enumerate() {
            match tensor.axis() {
                Axis::Row => {
                    let row_scales = &scales[row * scale_cols..][..scale_cols];
                    for (block, &scale) in codes.chunks(BLOCK).zip(row_scales) {
                        let scale = e8m0::decode(scale);
                        values.extend(block.iter().map(|&code| e4m3::decode(code) * scale));
                    }
                }
                Axis::Column => {
                    let row_scales = &scales[row / BLOCK * scale_cols..][..scale_cols];
                    values.extend(codes.iter().zip(row_scales).map(|(&code, &s)| e4m3::decode(code) * e8m0::decode(s)));
                }
            }
        }
        Ok(values)
    }
}

pub(super) const RULES: &[&dyn FormatRule] = &[
    &Mxfp8::DEFAULT,
    &Mxfp8::OCP_FLOOR,
    &Mxfp8::EVEN,
    &Mxfp8::TILES,
    &Mxfp8 { scale_rounding: ScaleRounding::OcpFloor, tile: Tile::Square },
    &Mxfp8 { scale_rounding: ScaleRounding::Even, tile: Tile::Square },
];

const LARGEST_RECIPROCAL: f32 = f32::from_bits(0x3B12_4925);
/// Exponent of E4M3's largest binade.
const LARGEST_EXPONENT: u32 = 8;
/// Half a unit of the third mantissa bit, as `f32` bits.
const HALF_OF_THREE_BITS: u32 = 1 << 19;

/// The scale by the exponent bits alone; a subnormal counts as 2^-127.
#[inline]
const fn floor_scale(bits: u32) -> u8 {
    let exponent = bits >> 23;
    if exponent >= 255 { e8m0::NAN } else { exponent.saturating_sub(LARGEST_EXPONENT) as u8 }
}
