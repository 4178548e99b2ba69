//! MXFP8 of whole tensors; the arithmetic is that of [`miles_core::format::mxfp8`].

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::atomic::{AtomicBool, Ordering};

use miles_core::format::mxfp8;
#[cfg(target_arch = "x86_64")]
use miles_core::number::e8m0;

use super::bands;
use super::element::Element;
use super::reference::{Scratch, is_finite};
#[cfg(target_arch = "x86_64")]
use super::{INFINITY_BITS, encode};
use super::{Quantized, Slot};
use crate::kernel::{Compute, Isa};

/// Blocks of 32 along the rows of `[rows, cols]` values: codes `[rows, cols]`, scales `[rows, ceil(cols / 32)]`.
pub(crate) fn row_axis<E: Element>(compute: &Compute, values: &[E], cols: usize) -> Quantized<u8> {
    bands::quantize(compute, values, cols, [1, mxfp8::BLOCK], |scratch, values, codes, scales| {
        row(compute.isa(), scratch, values, codes, scales)
    })
}

/// Blocks of 32 down the columns: codes `[rows, cols]`, scales `[ceil(rows / 32), cols]`.
pub(crate) fn column_axis<E: Element>(compute: &Compute, values: &[E], cols: usize) -> Quantized<u8> {
    let rows = values.len().checked_div(cols).unwrap_or(0);
    let mut codes = vec![0; values.len()];
    let mut scales = vec![0; rows.div_ceil(mxfp8::BLOCK) * cols];
    let finite = AtomicBool::new(true);
    let group = (mxfp8::BLOCK * cols).max(1);
    let groups = values.chunks(group).zip(codes.chunks_mut(group)).zip(scales.chunks_mut(cols.max(1))).collect();
    compute.for_each(groups, |((values, codes), scales)| {
        let mut scratch = Vec::new();
        mxfp8::quantize_row_group_by_column(E::widened(values, &mut scratch), cols, codes, scales);
        if !is_finite(values) {
            finite.store(false, Ordering::Relaxed);
        }
    });
    Quantized { codes, scales, finite: finite.into_inner() }
}

/// One row. Every slot is written. Returns whether every value is finite.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub(super) fn row<E: Element>(
    isa: Isa,
    scratch: &mut Scratch,
    values: &[E],
    codes: &mut [Slot<u8>],
    scales: &mut [Slot<u8>],
) -> bool {
    assert_eq!(codes.len(), values.len(), "one MXFP8 code per value");
    assert_eq!(scales.len(), values.len().div_ceil(mxfp8::BLOCK), "one MXFP8 scale per block of 32");
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2_fma() {
        // SAFETY: an `Isa` with AVX2 only comes from run-time detection.
        return unsafe { row_avx2(scratch, values, codes, scales) };
    }
    let _ = isa;
    scratch.mxfp8(values, codes, scales);
    is_finite(values)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn row_avx2<E: Element>(scratch: &mut Scratch, values: &[E], codes: &mut [Slot<u8>], scales: &mut [Slot<u8>]) -> bool {
    let mut finite = true;
    let (groups, rest) = values.as_chunks::<GROUP>();
    let (code_groups, codes) = codes.split_at_mut(groups.len() * GROUP);
    let (scale_groups, scales) = scales.split_at_mut(groups.len() * 8);
    let outputs = code_groups.as_chunks_mut::<GROUP>().0.iter_mut().zip(scale_groups.as_chunks_mut::<8>().0);
    for (group, (codes, scales)) in groups.iter().zip(outputs) {
        if !group_avx2(group, codes, scales) {
            finite = false;
            scratch.mxfp8(group, codes, scales);
        }
    }
    let (blocks, tail) = rest.as_chunks::<{ mxfp8::BLOCK }>();
    let (code_blocks, code_tail) = codes.as_chunks_mut::<{ mxfp8::BLOCK }>();
    let (block_scales, tail_scale) = scales.split_at_mut(blocks.len());
    for ((block, codes), scale) in blocks.iter().zip(code_blocks).zip(block_scales) {
        finite &= block_avx2(scratch, block, codes, scale);
    }
    if let [scale] = tail_scale {
        let mut codes = [Slot::uninit(); mxfp8::BLOCK];
        finite &= block_avx2(scratch, &encode::padded(tail), &mut codes, scale);
        code_tail.copy_from_slice(&codes[..tail.len()]);
    }
    finite
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn block_avx2<E: Element>(
    scratch: &mut Scratch,
    values: &[E; mxfp8::BLOCK],
    codes: &mut [Slot<u8>; mxfp8::BLOCK],
    scale: &mut Slot<u8>,
) -> bool {
    let largest = encode::largest_lane(encode::magnitudes(values));
    if largest >= INFINITY_BITS {
        scratch.mxfp8(values, codes, std::slice::from_mut(scale));
        return false;
    }
    // Rounded up, so no product is above 448 by more than a rounding of 1/448.
    let code = mxfp8::block_scale(f32::from_bits(largest));
    let factor = _mm256_set1_ps(e8m0::decode_reciprocal(code));
    encode::store_bytes(codes, encode::e4m3_codes(values, factor));
    scale.write(code);
    true
}

/// Eight blocks, whose scales fill one register. Returns false, with nothing written, if a value is not finite.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn group_avx2<E: Element>(values: &[E; GROUP], codes: &mut [Slot<u8>; GROUP], scales: &mut [Slot<u8>; 8]) -> bool {
    let (blocks, _) = values.as_chunks::<{ mxfp8::BLOCK }>();
    let mut magnitudes = [_mm256_setzero_si256(); 8];
    for (place, block) in magnitudes.iter_mut().zip(blocks) {
        *place = encode::magnitudes(block);
    }
    let amax = encode::largest_lanes(magnitudes);
    let beyond = _mm256_cmpgt_epi32(amax, _mm256_set1_epi32(INFINITY_BITS as i32 - 1));
    if _mm256_movemask_epi8(beyond) != 0 {
        return false;
    }
    let wanted = _mm256_mul_ps(_mm256_castsi256_ps(amax), _mm256_set1_ps(LARGEST_RECIPROCAL));
    let bits = _mm256_castps_si256(wanted);
    // The exponent, one more where the mantissa is not zero; 0 up to 2^-127. A finite amax gives at most 247.
    let up = _mm256_srli_epi32::<23>(_mm256_add_epi32(bits, _mm256_set1_epi32(0x007F_FFFF)));
    let scale_codes = _mm256_and_si256(up, _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(0x0040_0000)));
    encode::store_low_bytes(scales, scale_codes);
    let reciprocals = _mm256_slli_epi32::<23>(_mm256_sub_epi32(_mm256_set1_epi32(254), scale_codes));
    let factors = encode::lanes(_mm256_castsi256_ps(reciprocals));
    for ((block, codes), factor) in blocks.iter().zip(codes.as_chunks_mut().0).zip(factors) {
        encode::store_bytes(codes, encode::e4m3_codes(block, _mm256_set1_ps(factor)));
    }
    true
}

/// Elements whose eight block scales are computed together.
#[cfg(target_arch = "x86_64")]
const GROUP: usize = 8 * mxfp8::BLOCK;
/// 1/448 rounded to `f32`, as the rule has it.
#[cfg(target_arch = "x86_64")]
const LARGEST_RECIPROCAL: f32 = f32::from_bits(0x3B12_4925);
