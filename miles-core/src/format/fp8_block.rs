//! Block FP8: E4M3 codes with an FP32 scale per 1x128 block (activations) or 128x128 tile (weights), in DeepSeek-V3's
//! layout.
//!
//! The arithmetic of the default is TransformerEngine's; [`Arithmetic`] has the others, each a format of its own. With
//! `a` the amax of a block, every operation an IEEE `f32` one:
//!
//! ```text
//! scale     = 448 / a      1 if a is 0 or infinite; the source dtype's largest finite value if the quotient overflows
//! scale_inv = 1 / scale    the decode scale, which is what is stored
//! q_i       = e4m3(x_i * scale)
//! ```
//!
//! The column copy is stored transposed: for activations it is the 1x128 quantization of the transpose, for weights the
//! same tiles turned.

mod arithmetic;

use super::amax::raise_magnitudes;
use super::lines::{for_each_column, for_each_row, transpose};
use super::rule::{check_format, check_joint_widths};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Operand, QuantizeSpec, QuantizedParts, QuantizedTensor,
    ScaleKind, Source, SourceDtype, TensorLayout, abs_max,
};
use crate::number::e4m3;

pub use arithmetic::{Applied, Arithmetic, Family, Quotient, ScaleRounding, TileScale};

/// Elements per block, and rows per tile of a weight.
pub const BLOCK: usize = 128;

/// The block FP8 rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fp8Block {
    name: &'static str,
    arithmetic: Arithmetic,
}

impl Fp8Block {
    /// The format `fp8-block`.
    pub const FP32_SCALES: Self = Self::encode_first("fp8-block", ScaleRounding::Fp32);
    /// The format `fp8-block/power-of-two`.
    pub const POW2_SCALES: Self = Self::encode_first("fp8-block/power-of-two", ScaleRounding::PowerOfTwo);
    /// The format `fp8-block/deepgemm`.
    pub const DEEPGEMM: Self = Self::deepgemm("fp8-block/deepgemm", ScaleRounding::Fp32);
    /// The format `fp8-block/deepgemm-ue8m0`.
    pub const DEEPGEMM_UE8M0: Self = Self::deepgemm("fp8-block/deepgemm-ue8m0", ScaleRounding::PowerOfTwo);
    /// The format `fp8-block/sglang`.
    pub const SGLANG: Self = Self::sglang("fp8-block/sglang", Applied::ByReciprocal);
    /// The format `fp8-block/sglang-divide`.
    pub const SGLANG_DIVIDE: Self = Self::sglang("fp8-block/sglang-divide", Applied::Divided);
    /// The format `fp8-block/deepseek`.
    pub const DEEPSEEK: Self = Self::deepseek("fp8-block/deepseek", ScaleRounding::Fp32);
    /// The format `fp8-block/deepseek-ue8m0`.
    pub const DEEPSEEK_UE8M0: Self = Self::deepseek("fp8-block/deepseek-ue8m0", ScaleRounding::PowerOfTwo);

    const fn encode_first(name: &'static str, rounding: ScaleRounding) -> Self {
        Self { name, arithmetic: Arithmetic { family: Family::EncodeFirst, rounding } }
    }

    const fn deepgemm(name: &'static str, rounding: ScaleRounding) -> Self {
        let (quotient, applied) = (Quotient::Divided, Applied::ByReciprocal);
        Self {
            name,
            arithmetic: Arithmetic { family: Family::DecodeFirst { floor: 1e-4, quotient, applied }, rounding },
        }
    }

    const fn sglang(name: &'static str, applied: Applied) -> Self {
        let family = Family::DecodeFirst { floor: 1e-10, quotient: Quotient::Divided, applied };
        Self { name, arithmetic: Arithmetic { family, rounding: ScaleRounding::Fp32 } }
    }

    const fn deepseek(name: &'static str, rounding: ScaleRounding) -> Self {
        let (quotient, applied) = (Quotient::ByReciprocal, Applied::Divided);
        Self {
            name,
            arithmetic: Arithmetic { family: Family::DecodeFirst { floor: 1e-4, quotient, applied }, rounding },
        }
    }

    /// What this rule computes.
    #[must_use]
    pub const fn arithmetic(&self) -> &Arithmetic {
        &self.arithmetic
    }

    /// How this rule rounds scales.
    #[must_use]
    pub const fn rounding(&self) -> ScaleRounding {
        self.arithmetic.rounding
    }

    /// The encode scale, by the encode-first arithmetic, of a block whose largest magnitude is `amax`. Its reciprocal is
    /// what [`FP32_SCALES`](Self::FP32_SCALES) and [`POW2_SCALES`](Self::POW2_SCALES) store.
    #[inline]
    #[must_use]
    pub const fn encode_scale(&self, amax: f32, dtype: SourceDtype) -> f32 {
        self.arithmetic.encode_scale(amax, dtype)
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
            let scale = self.arithmetic.tile_scale(abs_max(block), dtype);
            *decode_scale = scale.decode;
            scale.encode(block, block_codes);
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
        let scale_of = |tile: &[i32]| {
            let amax = tile.iter().fold(0, |largest: i32, &bits| largest.max(bits));
            self.arithmetic.tile_scale(f32::from_bits(amax as u32), dtype)
        };
        let tile_scales: Vec<TileScale> = maxima.chunks(BLOCK).map(scale_of).collect();
        for (decode, scale) in scales.iter_mut().zip(&tile_scales) {
            *decode = scale.decode;
        }
        for (row, row_codes) in values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols)) {
            let blocks = row.chunks(BLOCK).zip(row_codes.chunks_mut(BLOCK));
            for ((block, block_codes), scale) in blocks.zip(&tile_scales) {
                scale.encode(block, block_codes);
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
            Axis::Row => for_each_row(&source.values(), cols, quantize_line),
            Axis::Column => for_each_column(&source.values(), rows, cols, quantize_line),
        }
        (codes, scales)
    }
}

impl FormatRule for Fp8Block {
    fn id(&self) -> FormatId {
        FormatId::builtin(self.name)
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

pub(super) const RULES: &[&dyn FormatRule] = &[
    &Fp8Block::FP32_SCALES,
    &Fp8Block::POW2_SCALES,
    &Fp8Block::DEEPGEMM,
    &Fp8Block::DEEPGEMM_UE8M0,
    &Fp8Block::SGLANG,
    &Fp8Block::SGLANG_DIVIDE,
    &Fp8Block::DEEPSEEK,
    &Fp8Block::DEEPSEEK_UE8M0,
];
