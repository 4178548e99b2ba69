//! Block FP8: E4M3 codes with an FP32 scale per 1x128 block (activations) or 128x128 tile (weights).
//!
//! The arithmetic is TransformerEngine's, DeepSeek-V3's layout. With `a` the amax of a block, every operation an IEEE
//! `f32` one:
//!
//! ```text
//! scale     = 448 / a      1 if a is 0 or infinite; the source dtype's largest finite value if the quotient overflows
//! scale_inv = 1 / scale    the decode scale, which is what is stored
//! q_i       = e4m3(x_i * scale)
//! ```
//!
//! The variant `fp8-block/power-of-two` first rounds `scale` down to a power of two. The column copy is stored
//! transposed: for activations it is the 1x128 quantization of the transpose, for weights the same tiles turned.

use super::amax::raise_magnitudes;
use super::lines::{for_each_column, for_each_row, transpose};
use super::rule::{check_format, check_joint_widths};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Operand, QuantizeSpec, QuantizedParts, QuantizedTensor,
    ScaleKind, Source, SourceDtype, TensorLayout, abs_max,
};
use crate::number::{bf16, e4m3};

/// Elements per block, and rows per tile of a weight.
pub const BLOCK: usize = 128;

/// How the encode scale is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRounding {
    /// Not at all: any `f32`.
    #[default]
    Fp32,
    /// Down to a power of two.
    PowerOfTwo,
}

/// The block FP8 rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fp8Block {
    rounding: ScaleRounding,
}

impl Fp8Block {
    /// The format `fp8-block`.
    pub const FP32_SCALES: Self = Self { rounding: ScaleRounding::Fp32 };
    /// The format `fp8-block/power-of-two`.
    pub const POW2_SCALES: Self = Self { rounding: ScaleRounding::PowerOfTwo };

    /// How this rule rounds the encode scale.
    #[must_use]
    pub const fn rounding(&self) -> ScaleRounding {
        self.rounding
    }

    /// The encode scale of a block whose largest magnitude is `amax`. Its reciprocal is what is stored.
    #[inline]
    #[must_use]
    pub const fn encode_scale(&self, amax: f32, dtype: SourceDtype) -> f32 {
        let largest = match dtype {
            SourceDtype::Bf16 => bf16::decode(BF16_MAX_BITS),
            SourceDtype::F32 => f32::MAX,
        };
        let quotient = e4m3::MAX / amax;
        let capped = if quotient > f32::MAX { largest } else { quotient };
        let scale = if amax > 0.0 && amax.is_finite() { capped } else { 1.0 };
        match self.rounding {
            ScaleRounding::Fp32 => scale,
            ScaleRounding::PowerOfTwo => f32::from_bits(scale.to_bits() & EXPONENT_BITS),
        }
    }

    /// Quantizes one row in 1x128 blocks: one code per value, one decode scale per started block.
    ///
    /// # Panics
    /// When `codes` or `scales` has not exactly the length that `values` needs.
    pub fn quantize_row(&self, values: &[f32], dtype: SourceDtype, codes: &mut [u8], scales: &mut [f32]) {
        assert_eq!(codes.len(), values.len(), "one FP8 code per value");
        assert_eq!(scales.len(), values.len().div_ceil(BLOCK), "one FP8 scale per block of 128");
        let blocks = values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK));
        for ((block, block_codes), decode_scale) in blocks.zip(scales) {
            let scale = self.encode_scale(abs_max(block), dtype);
            *decode_scale = 1.0 / scale;
            encode_values(block, scale, block_codes);
        }
    }

    /// Quantizes up to 128 rows of `cols` values in 128x128 tiles: codes `[rows, cols]`, one decode scale per tile.
    ///
    /// # Panics
    /// When there are more than 128 rows, or `codes` or `scales` has not exactly the length that `values` needs.
    pub fn quantize_tile_row(
        &self,
        values: &[f32],
        cols: usize,
        dtype: SourceDtype,
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        assert!(values.len() <= BLOCK * cols, "one row of FP8 tiles has at most 128 rows");
        assert_eq!(codes.len(), values.len(), "one FP8 code per value");
        assert_eq!(scales.len(), cols.div_ceil(BLOCK), "one FP8 scale per tile");
        if cols == 0 {
            return;
        }
        let mut maxima = vec![0; cols];
        values.chunks_exact(cols).for_each(|row| raise_magnitudes(&mut maxima, row));
        let mut encode_scales = vec![0.0; scales.len()];
        for ((decode, encode), tile) in scales.iter_mut().zip(&mut encode_scales).zip(maxima.chunks(BLOCK)) {
            let amax = tile.iter().fold(0, |largest: i32, &bits| largest.max(bits));
            *encode = self.encode_scale(f32::from_bits(amax as u32), dtype);
            *decode = 1.0 / *encode;
        }
        for (row, row_codes) in values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols)) {
            let blocks = row.chunks(BLOCK).zip(row_codes.chunks_mut(BLOCK));
            for ((block, block_codes), &scale) in blocks.zip(&encode_scales) {
                encode_values(block, scale, block_codes);
            }
        }
    }

    fn quantize_weight(&self, source: &Source<'_>, axis: Axis) -> (Vec<u8>, Vec<f32>) {
        let (rows, cols) = (source.rows(), source.cols());
        let (tile_rows, tile_cols) = (rows.div_ceil(BLOCK), cols.div_ceil(BLOCK));
        let mut codes = vec![0; rows * cols];
        let mut scales = vec![0.0; tile_rows * tile_cols];
        let group = (BLOCK * cols).max(1);
        let values = source.values();
        let groups = values.chunks(group).zip(codes.chunks_mut(group));
        for ((values, group_codes), scale_row) in groups.zip(scales.chunks_mut(tile_cols.max(1))) {
            self.quantize_tile_row(values, cols, source.dtype(), group_codes, scale_row);
        }
        match axis {
            Axis::Row => (codes, scales),
            Axis::Column => (transpose(&codes, rows, cols), transpose(&scales, tile_rows, tile_cols)),
        }
    }

    fn quantize_activation(&self, source: &Source<'_>, axis: Axis) -> (Vec<u8>, Vec<f32>) {
        let (rows, cols) = (source.rows(), source.cols());
        let (lines, length) = match axis {
            Axis::Row => (rows, cols),
            Axis::Column => (cols, rows),
        };
        let blocks = length.div_ceil(BLOCK);
        let mut codes = vec![0; rows * cols];
        let mut scales = vec![0.0; lines * blocks];
        let quantize_line = |line: usize, values: &[f32]| {
            let line_codes = &mut codes[line * length..][..length];
            self.quantize_row(values, source.dtype(), line_codes, &mut scales[line * blocks..][..blocks]);
        };
        match axis {
            Axis::Row => for_each_row(&source.values(), rows, cols, quantize_line),
            Axis::Column => for_each_column(&source.values(), rows, cols, quantize_line),
        }
        (codes, scales)
    }
}

impl FormatRule for Fp8Block {
    fn id(&self) -> FormatId {
        match self.rounding {
            ScaleRounding::Fp32 => FormatId::fp8_block(),
            ScaleRounding::PowerOfTwo => FormatId::fp8_block_pow2(),
        }
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        check_format(&format, &spec.format)?;
        let block = match (spec.operand, spec.axis) {
            (Operand::Weight, _) => (BLOCK, BLOCK),
            (Operand::Activation, Axis::Row) => (1, BLOCK),
            (Operand::Activation, Axis::Column) => (BLOCK, 1),
        };
        spec.partition.check(&format, (rows, cols), block)?;
        let Some(codes_bytes) = rows.checked_mul(cols) else {
            return Err(FormatError::TooLarge { format, rows, cols });
        };
        let (row_blocks, col_blocks) = (rows.div_ceil(BLOCK), cols.div_ceil(BLOCK));
        let (scale_rows, scale_cols) = match (spec.operand, spec.axis) {
            (Operand::Activation, Axis::Row) => (rows, col_blocks),
            (Operand::Activation, Axis::Column) => (cols, row_blocks),
            (Operand::Weight, Axis::Row) => (row_blocks, col_blocks),
            (Operand::Weight, Axis::Column) => (col_blocks, row_blocks),
        };
        Ok(TensorLayout { codes_bytes, scale_kind: ScaleKind::F32, scale_rows, scale_cols, outer_len: 0, amax_len: 0 })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        self.layout(source.rows(), source.cols(), spec)?;
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            Axis::Row => column / BLOCK,
            Axis::Column => row / BLOCK,
        })?;
        let (codes, scales) = match spec.operand {
            Operand::Activation => self.quantize_activation(source, spec.axis),
            Operand::Weight => self.quantize_weight(source, spec.axis),
        };
        let parts = QuantizedParts::new(source, spec, codes, BlockScales::F32(scales));
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        check_format(&self.id(), tensor.format())?;
        let (lines, length) = match tensor.axis() {
            Axis::Row => (tensor.rows(), tensor.cols()),
            Axis::Column => (tensor.cols(), tensor.rows()),
        };
        let lines_per_scale_row = match tensor.operand() {
            Operand::Activation => 1,
            Operand::Weight => BLOCK,
        };
        let scales = tensor.scales().as_f32().unwrap_or_default();
        let mut values = Vec::with_capacity(tensor.codes().len());
        for (line, codes) in tensor.codes().chunks(length.max(1)).enumerate() {
            let line_scales = &scales[line / lines_per_scale_row * tensor.scale_cols()..];
            for (block, &scale) in codes.chunks(BLOCK).zip(line_scales) {
                values.extend(block.iter().map(|&code| e4m3::decode(code) * scale));
            }
        }
        Ok(match tensor.axis() {
            Axis::Row => values,
            Axis::Column => transpose(&values, lines, length),
        })
    }
}

pub(super) const RULES: &[&dyn FormatRule] = &[&Fp8Block::FP32_SCALES, &Fp8Block::POW2_SCALES];

const BF16_MAX_BITS: u16 = 0x7F7F;
const EXPONENT_BITS: u32 = 0xFF80_0000;

#[inline]
fn encode_values(values: &[f32], factor: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = e4m3::encode(x * factor);
    }
}
