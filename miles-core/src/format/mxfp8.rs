//! MXFP8: E4M3 codes in blocks of 32 with an E8M0 scale, rounded up so that no element saturates.
//!
//! With `a` the amax of a block, every operation an IEEE `f32` one:
//!
//! ```text
//! E   = e8m0_ceil(a * (1/448))      1/448 rounded to f32
//! q_i = e4m3(x_i * 2^(127 - E))
//! ```
//!
//! A zero block gets E = 0 and codes 0. A block that holds the largest finite values gets E = 247 and may decode to
//! infinity; that is a property of rounding the scale up. The column copy keeps the `[rows, cols]` layout of its codes;
//! only its blocks run down the columns. Left out: 32x32 weight blocks and other ways to round the scale; they are
//! variants.

use super::amax::raise_magnitudes;
use super::rule::{check_format, check_joint_widths};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind,
    Source, TensorLayout, abs_max,
};
use crate::number::{e4m3, e8m0};

/// Elements per block.
pub const BLOCK: usize = 32;

/// The MXFP8 rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mxfp8;

/// The E8M0 scale of a block whose largest magnitude is `amax`.
#[inline]
#[must_use]
pub const fn block_scale(amax: f32) -> u8 {
    e8m0::encode_ceil(amax * LARGEST_RECIPROCAL)
}

/// Quantizes one row: one code per value, one E8M0 byte per started block.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub fn quantize_row(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    assert_eq!(codes.len(), values.len(), "one MXFP8 code per value");
    assert_eq!(scales.len(), values.len().div_ceil(BLOCK), "one MXFP8 scale per block of 32");
    let (blocks, tail) = values.as_chunks::<BLOCK>();
    let (code_blocks, code_tail) = codes.as_chunks_mut::<BLOCK>();
    for ((block, block_codes), scale) in blocks.iter().zip(code_blocks).zip(scales.iter_mut()) {
        *scale = quantize_block(block, block_codes);
    }
    if let Some(scale) = scales.last_mut().filter(|_| !tail.is_empty()) {
        *scale = block_scale(abs_max(tail));
        encode_values(tail, e8m0::decode_reciprocal(*scale), code_tail);
    }
}

/// Quantizes up to 32 rows of `cols` values as one block per column: codes `[rows, cols]`, one E8M0 byte per column.
///
/// # Panics
/// When there are more than 32 rows, or `codes` or `scales` has not exactly the length that `values` needs.
pub fn quantize_row_group_by_column(values: &[f32], cols: usize, codes: &mut [u8], scales: &mut [u8]) {
    assert!(values.len() <= BLOCK * cols, "one MXFP8 block has at most 32 rows");
    assert_eq!(codes.len(), values.len(), "one MXFP8 code per value");
    assert_eq!(scales.len(), cols, "one MXFP8 scale per column");
    if cols == 0 {
        return;
    }
    let mut maxima = vec![0; cols];
    values.chunks_exact(cols).for_each(|row| raise_magnitudes(&mut maxima, row));
    let mut reciprocals = vec![0.0; cols];
    for ((scale, reciprocal), &bits) in scales.iter_mut().zip(&mut reciprocals).zip(&maxima) {
        *scale = block_scale(f32::from_bits(bits as u32));
        *reciprocal = e8m0::decode_reciprocal(*scale);
    }
    for (row, row_codes) in values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols)) {
        for ((code, &x), &reciprocal) in row_codes.iter_mut().zip(row).zip(&reciprocals) {
            *code = e4m3::encode(x * reciprocal);
        }
    }
}

impl FormatRule for Mxfp8 {
    fn id(&self) -> FormatId {
        FormatId::mxfp8()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        check_format(&format, &spec.format)?;
        let block = match spec.axis {
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
        let rows_per_scale_row = match spec.axis {
            Axis::Row => 1,
            Axis::Column => BLOCK,
        };
        let group = (rows_per_scale_row * cols).max(1);
        let values = source.values();
        let groups = values.chunks(group).zip(codes.chunks_mut(group));
        for ((values, group_codes), scale_row) in groups.zip(scales.chunks_mut(layout.scale_cols.max(1))) {
            match spec.axis {
                Axis::Row => quantize_row(values, group_codes, scale_row),
                Axis::Column => quantize_row_group_by_column(values, cols, group_codes, scale_row),
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

pub(super) const RULES: &[&dyn FormatRule] = &[&Mxfp8];

const LARGEST_RECIPROCAL: f32 = f32::from_bits(0x3B12_4925);

#[inline]
fn quantize_block(values: &[f32; BLOCK], codes: &mut [u8; BLOCK]) -> u8 {
    let scale = block_scale(abs_max(values));
    let reciprocal = e8m0::decode_reciprocal(scale);
    *codes = values.map(|x| e4m3::encode(x * reciprocal));
    scale
}

#[inline]
fn encode_values(values: &[f32], factor: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = e4m3::encode(x * factor);
    }
}
