//! NVFP4: E2M1 codes in blocks of 16, an E4M3 scale per block, an FP32 outer scale per row or tensor.
//!
//! The arithmetic is that of TransformerEngine from 2.14 on. With `A` the amax of the row or tensor, every operation
//! an IEEE `f32` one:
//!
//! ```text
//! S_enc = 2688 / A          2688 = 448 * 6; f32::MAX if that overflows, 1 if A is 0 or infinite
//! S_dec = 1 / S_enc         the outer decode scale
//! m     = S_enc * (1/6)     1/6 rounded to f32
//! per block:
//!   s   = e4m3(min(amax_b * m, f32::MAX))
//!   e   = min(1 / (s * S_dec), f32::MAX)
//!   q_i = e2m1(x_i * e)
//! ```
//!
//! A block too small for the row (`amax_b / A` below about 2.2e-6) gets scale 0, keeps its codes, and decodes to 0.
//!
//! Decoding is `code * ((s * A) * (1/2688))`, in that order, so it overflows to infinity (and 0 to NaN) where `s * A`
//! does: in blocks near the amax of a row whose amax is above `f32::MAX / 448`. A tensor whose `A` is not known decodes
//! as `(code * s) * S_dec`, which can differ in the last place.
//!
//! Left out: 16x16 weight blocks, four-over-six, stochastic rounding; they are variants.

use super::lines::{for_each_column, for_each_row, transpose};
use super::rule::{check_format, check_joint_widths};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind,
    ScaleScope, Source, TensorLayout, abs_max,
};
use crate::number::{e2m1, e4m3};

/// Elements per block.
pub const BLOCK: usize = 16;

/// The NVFP4 rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nvfp4;

/// The outer scale of one row or tensor: everything that blocks need to know about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterScale {
    amax: f32,
    encode: f32,
    multiplier: f32,
    decode: f32,
}

impl OuterScale {
    /// The scale for values whose largest magnitude is `amax`.
    #[must_use]
    pub fn from_amax(amax: f32) -> Self {
        let quotient = (LARGEST / amax).min(f32::MAX);
        let encode = if amax == 0.0 || quotient == 0.0 { 1.0 } else { quotient };
        Self { amax, encode, multiplier: encode * SIXTH, decode: 1.0 / encode }
    }

    /// The largest magnitude.
    #[must_use]
    pub const fn amax(&self) -> f32 {
        self.amax
    }

    /// The encode scale S_enc.
    #[must_use]
    pub const fn encode(&self) -> f32 {
        self.encode
    }

    /// S_enc times 1/6, the factor from a block's amax to its scale.
    #[must_use]
    pub const fn multiplier(&self) -> f32 {
        self.multiplier
    }

    /// The decode scale S_dec that the arithmetic uses.
    #[must_use]
    pub const fn decode(&self) -> f32 {
        self.decode
    }

    /// The decode scale that is stored for one row: 0 for a row of zeros.
    #[must_use]
    pub const fn row_decode(&self) -> f32 {
        if self.amax == 0.0 { 0.0 } else { self.decode }
    }

    /// The decode scale that is stored for a whole tensor: `1 / f32::MAX` for a tensor of zeros.
    #[must_use]
    pub const fn tensor_decode(&self) -> f32 {
        if self.amax == 0.0 { 1.0 / f32::MAX } else { self.decode }
    }
}

/// Quantizes one row with an outer scale of its own, which is returned.
///
/// `codes` takes half a byte and `scales` one byte per started block of `values`.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub fn quantize_row(values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> OuterScale {
    let outer = OuterScale::from_amax(abs_max(values));
    quantize_row_with(values, &outer, codes, scales);
    outer
}

/// Quantizes one row with the given outer scale.
///
/// # Panics
/// As [`quantize_row`].
pub fn quantize_row_with(values: &[f32], outer: &OuterScale, codes: &mut [u8], scales: &mut [u8]) {
    assert_eq!(codes.len(), values.len().div_ceil(2), "two NVFP4 codes per byte");
    assert_eq!(scales.len(), values.len().div_ceil(BLOCK), "one NVFP4 scale per block of 16");
    let (blocks, tail) = values.as_chunks::<BLOCK>();
    // A tail of 15 values has as many code bytes as a whole block: the values decide where the blocks end.
    let (block_codes, code_tail) = codes.split_at_mut(blocks.len() * (BLOCK / 2));
    let code_blocks = block_codes.as_chunks_mut::<{ BLOCK / 2 }>().0;
    for ((block, packed), scale) in blocks.iter().zip(code_blocks).zip(scales.iter_mut()) {
        *scale = quantize_block(block, outer, packed);
    }
    if let Some(scale) = scales.last_mut().filter(|_| !tail.is_empty()) {
        let mut padded = [0.0; BLOCK];
        padded[..tail.len()].copy_from_slice(tail);
        let mut packed = [0; BLOCK / 2];
        *scale = quantize_block(&padded, outer, &mut packed);
        code_tail.copy_from_slice(&packed[..code_tail.len()]);
    }
}

/// Code times block scale for every element, `[rows, cols]`, without the outer scale: always exact in BF16.
///
/// These are the operands of a BF16 matrix multiplication that computes NVFP4 products exactly and applies the outer
/// scales to its result.
///
/// # Errors
/// [`FormatError::FormatMismatch`] when `tensor` is of another format.
pub fn dequantize_without_outer(tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
    decode_blocks(tensor, |_, scale, code| code * scale)
}

impl FormatRule for Nvfp4 {
    fn id(&self) -> FormatId {
        FormatId::nvfp4()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        check_format(&format, &spec.format)?;
        let (lines, length) = lines_and_length(spec.axis, rows, cols);
        if spec.axis == Axis::Row && length % 2 != 0 {
            return Err(FormatError::OddLength { format, axis: spec.axis, rows, cols });
        }
        let Some(codes_bytes) = lines.checked_mul(length.div_ceil(2)) else {
            return Err(FormatError::TooLarge { format, rows, cols });
        };
        let outer_len = match spec.scope {
            ScaleScope::Row => lines,
            ScaleScope::Tensor => 1,
        };
        Ok(TensorLayout {
            codes_bytes,
            scale_kind: ScaleKind::E4m3,
            scale_rows: lines,
            scale_cols: length.div_ceil(BLOCK),
            outer_len,
            amax_len: outer_len,
        })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        match spec.scope {
            ScaleScope::Row => quantize_source(source, spec, None),
            ScaleScope::Tensor => quantize_source(source, spec, Some(abs_max(source.values()))),
        }
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        let amax = match spec.scope {
            ScaleScope::Row => None,
            ScaleScope::Tensor => {
                Some(sources.iter().fold(0.0, |amax: f32, source| amax.max(abs_max(source.values()))))
            }
        };
        sources.iter().map(|source| quantize_source(source, spec, amax)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        let of_line = |values: &[f32], line: usize| match values {
            [one] => *one,
            per_line => per_line[line],
        };
        if tensor.amax().is_empty() {
            let outer = tensor.outer();
            return decode_blocks(tensor, |line, scale, code| code * scale * of_line(outer, line));
        }
        let amax = tensor.amax();
        decode_blocks(tensor, |line, scale, code| code * (scale * of_line(amax, line) * LARGEST_RECIPROCAL))
    }
}

const LARGEST: f32 = 2688.0;
const LARGEST_RECIPROCAL: f32 = f32::from_bits(0x39C3_0C31);
const SIXTH: f32 = f32::from_bits(0x3E2A_AAAB);

#[inline]
fn quantize_block(values: &[f32; BLOCK], outer: &OuterScale, packed: &mut [u8; BLOCK / 2]) -> u8 {
    let scale = e4m3::encode((abs_max(values) * outer.multiplier).min(f32::MAX));
    let encode = (1.0 / (e4m3::decode(scale) * outer.decode)).min(f32::MAX);
    let codes = values.map(|x| e2m1::encode(x * encode));
    for (byte, pair) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
        *byte = pair[0] | pair[1] << 4;
    }
    scale
}

fn quantize_source(
    source: &Source<'_>,
    spec: &QuantizeSpec,
    shared_amax: Option<f32>,
) -> Result<QuantizedTensor, FormatError> {
    let (rows, cols) = (source.rows(), source.cols());
    let layout = Nvfp4.layout(rows, cols, spec)?;
    source.check_finite(spec.non_finite, |row, column| match spec.axis {
        Axis::Row => column / BLOCK,
        Axis::Column => row / BLOCK,
    })?;
    let (lines, length) = lines_and_length(spec.axis, rows, cols);
    let shared = shared_amax.map(OuterScale::from_amax);
    let mut codes = vec![0; layout.codes_bytes];
    let mut scales = vec![0; layout.scale_rows * layout.scale_cols];
    let mut own = Vec::with_capacity(if shared.is_some() { 0 } else { lines });
    let quantize_line = |line: usize, values: &[f32]| {
        let outer = shared.unwrap_or_else(|| OuterScale::from_amax(abs_max(values)));
        let line_codes = &mut codes[line * length.div_ceil(2)..][..length.div_ceil(2)];
        let line_scales = &mut scales[line * layout.scale_cols..][..layout.scale_cols];
        quantize_row_with(values, &outer, line_codes, line_scales);
        if shared.is_none() {
            own.push(outer);
        }
    };
    match spec.axis {
        Axis::Row => for_each_row(source.values(), rows, cols, quantize_line),
        Axis::Column => for_each_column(source.values(), rows, cols, quantize_line),
    }
    let (outer, amax) = match &shared {
        Some(shared) => (vec![shared.tensor_decode()], vec![shared.amax]),
        None => (own.iter().map(OuterScale::row_decode).collect(), own.iter().map(OuterScale::amax).collect()),
    };
    let parts = QuantizedParts { outer, amax, ..QuantizedParts::new(source, spec, codes, BlockScales::U8(scales)) };
    QuantizedTensor::from_parts(&Nvfp4, source.name(), parts)
}

/// Applies `value(line, block scale, code value)` to every element and returns them in the source's orientation.
fn decode_blocks(tensor: &QuantizedTensor, value: impl Fn(usize, f32, f32) -> f32) -> Result<Vec<f32>, FormatError> {
    check_format(&FormatId::nvfp4(), tensor.format())?;
    let (lines, length) = lines_and_length(tensor.axis(), tensor.rows(), tensor.cols());
    let scales = tensor.scales().as_u8().unwrap_or_default();
    let mut values = Vec::with_capacity(lines * length);
    for line in 0..lines {
        let codes = &tensor.codes()[line * length.div_ceil(2)..][..length.div_ceil(2)];
        let line_scales = &scales[line * tensor.scale_cols()..][..tensor.scale_cols()];
        for (packed, &scale) in codes.chunks(BLOCK / 2).zip(line_scales) {
            let scale = e4m3::decode(scale);
            values.extend(packed.iter().flat_map(|&byte| e2m1::decode_pair(byte)).map(|code| value(line, scale, code)));
        }
        // A column of an odd number of tokens ends in half a byte of padding.
        values.truncate((line + 1) * length);
    }
    Ok(match tensor.axis() {
        Axis::Row => values,
        Axis::Column => transpose(&values, lines, length),
    })
}

/// The quantized lines of a `[rows, cols]` tensor and the elements of each.
const fn lines_and_length(axis: Axis, rows: usize, cols: usize) -> (usize, usize) {
    match axis {
        Axis::Row => (rows, cols),
        Axis::Column => (cols, rows),
    }
}
