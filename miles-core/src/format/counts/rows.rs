//! Counting in one pass over source and codes, for row-wise copies with blocks of one row.

use super::{QuantizeCounts, limit};
use crate::format::{Axis, BlockScales, FormatId, QuantizedTensor, Source, builtin_rule, fp8_block, mxfp8, nvfp4};
use crate::number::{e2m1, e4m3, e8m0};

/// The counts; `None` for a tensor that is not laid out that way.
pub(super) fn count(source: &Source<'_>, tensor: &QuantizedTensor) -> Option<QuantizeCounts> {
    let format = tensor.format();
    let (width, scales) = match (tensor.scales(), tensor.outer()) {
        (BlockScales::U8(scales), _) if *format == FormatId::nvfp4() => (nvfp4::BLOCK, Scales::Nvfp4(scales)),
        (BlockScales::U8(scales), []) if is_builtin(format, "mxfp8") => (mxfp8::BLOCK, Scales::Mxfp8(scales)),
        (BlockScales::F32(scales), []) if is_builtin(format, "fp8-block") => {
            (fp8_block::BLOCK, Scales::Fp8Block(scales))
        }
        _ => return None,
    };
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let one_row = tensor.axis() == Axis::Row && tensor.scale_rows() == rows && tensor.partition().is_whole();
    if !one_row || tensor.scale_cols() != cols.div_ceil(width) {
        return None;
    }
    let values = source.values();
    let mut counts = QuantizeCounts {
        elements: values.len() as u64,
        blocks: (rows * tensor.scale_cols()) as u64,
        ..QuantizeCounts::default()
    };
    let codes_per_row = tensor.codes().len().checked_div(rows).unwrap_or(0);
    let code_bytes = width * codes_per_row / cols.max(1);
    let of_rows = values.chunks_exact(cols.max(1)).zip(tensor.codes().chunks_exact(codes_per_row.max(1)));
    for (row, (values, codes)) in of_rows.enumerate() {
        let blocks = values.chunks(width).zip(codes.chunks(code_bytes.max(1)));
        for (block, (values, codes)) in blocks.enumerate() {
            let at = row * tensor.scale_cols() + block;
            count_block(&mut counts, values, codes, scales.decoder(tensor, row, at));
        }
    }
    Some(counts)
}

/// Whether the format is built in and of this family, whose variants differ in how a scale is chosen, not in decoding.
fn is_builtin(format: &FormatId, family: &str) -> bool {
    format.family() == family && builtin_rule(format).is_some()
}

/// Block scales in the storage of their format.
#[derive(Clone, Copy)]
enum Scales<'t> {
    Nvfp4(&'t [u8]),
    Mxfp8(&'t [u8]),
    Fp8Block(&'t [f32]),
}

/// What the codes of one block are multiplied by to decode them.
#[derive(Clone, Copy)]
enum Decoder {
    /// E2M1 codes, two per byte, times this.
    Nibbles(f32),
    /// E2M1 codes, two per byte, times the first, then times the second.
    NibblesTwice(f32, f32),
    /// E4M3 codes times this.
    Bytes(f32),
}

impl Scales<'_> {
    fn decoder(self, tensor: &QuantizedTensor, row: usize, at: usize) -> Decoder {
        let of_row = |values: &[f32]| if let [one] = values { *one } else { values[row] };
        match self {
            Scales::Mxfp8(scales) => Decoder::Bytes(e8m0::decode(scales[at])),
            Scales::Fp8Block(scales) => Decoder::Bytes(scales[at]),
            Scales::Nvfp4(scales) if tensor.amax().is_empty() => {
                Decoder::NibblesTwice(e4m3::decode(scales[at]), of_row(tensor.outer()))
            }
            Scales::Nvfp4(scales) => {
                Decoder::Nibbles(e4m3::decode(scales[at]) * of_row(tensor.amax()) * NVFP4_LARGEST_RECIPROCAL)
            }
        }
    }
}

impl Decoder {
    /// The magnitude of the largest code.
    #[inline]
    fn largest(self) -> f32 {
        match self {
            Decoder::Nibbles(scale) => 6.0 * scale,
            Decoder::NibblesTwice(first, second) => 6.0 * first * second,
            Decoder::Bytes(scale) => 448.0 * scale,
        }
    }

    /// Whether every code decodes to 0: the one of the largest magnitude does.
    #[inline]
    fn is_zero(self, codes: &[u8]) -> bool {
        let largest_nibble = || codes.iter().fold(0, |most: u8, byte| most.max(byte & 7).max(byte >> 4 & 7));
        match self {
            Decoder::Nibbles(scale) => e2m1::decode_pair(largest_nibble())[0] * scale == 0.0,
            Decoder::NibblesTwice(first, second) => e2m1::decode_pair(largest_nibble())[0] * first * second == 0.0,
            Decoder::Bytes(scale) => {
                let largest = codes.iter().fold(0, |most: u8, code| most.max(code & 0x7F));
                e4m3::decode(largest) * scale == 0.0
            }
        }
    }
}

/// Magnitudes are compared as integers, which orders them the same way and lets the loop vectorize.
#[inline]
fn count_block(counts: &mut QuantizeCounts, values: &[f32], codes: &[u8], decoder: Decoder) {
    let limit = limit(decoder.largest()).min(f32::MAX).to_bits() as i32;
    // Beyond the limit; NaN or infinite; other than 0.
    let (mut beyond, mut non_finite, mut nan, mut any) = (0, 0, 0, 0);
    for &x in values {
        let magnitude = (x.to_bits() & MAGNITUDE) as i32;
        beyond += i32::from(magnitude > limit);
        non_finite += i32::from(magnitude >= INFINITY);
        nan += i32::from(magnitude > INFINITY);
        any += i32::from(magnitude != 0);
    }
    counts.non_finite += u64::from(non_finite.unsigned_abs());
    counts.saturated += u64::from((beyond - non_finite).unsigned_abs());
    if any > nan && decoder.is_zero(codes) {
        counts.underflowed_blocks += 1;
    }
}

const MAGNITUDE: u32 = 0x7FFF_FFFF;
const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
/// The F32 nearest to 1/2688, by which NVFP4 decodes.
const NVFP4_LARGEST_RECIPROCAL: f32 = f32::from_bits(0x39C3_0C31);
