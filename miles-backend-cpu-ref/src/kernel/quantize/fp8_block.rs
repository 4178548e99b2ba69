//! Block FP8 of whole tensors; the arithmetic is that of [`miles_core::format::fp8_block`].

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::atomic::{AtomicBool, Ordering};

use miles_core::format::fp8_block::BLOCK;
use miles_core::format::{Fp8Block, SourceDtype};

use super::bands;
use super::columns::{self, Lines};
use super::element::Element;
use super::output::Output;
use super::reference::{Scratch, is_finite};
#[cfg(target_arch = "x86_64")]
use super::{INFINITY_BITS, encode};
use super::{Quantized, Slot};
use crate::kernel::{Compute, Isa};

/// The rule's variant and the precision before widening, which together decide every scale.
#[derive(Clone, Copy)]
pub(crate) struct Scaling {
    /// The variant.
    pub rule: Fp8Block,
    /// The precision before widening.
    pub dtype: SourceDtype,
}

/// Blocks of 1x128 along the rows of `[rows, cols]` values: codes `[rows, cols]`, scales `[rows, ceil(cols / 128)]`.
pub(crate) fn activation_rows<E: Element>(
    compute: &Compute,
    scaling: Scaling,
    values: &[E],
    cols: usize,
) -> Quantized<f32> {
    bands::quantize(compute, values, cols, [1, BLOCK], |scratch, values, codes, scales| {
        row(compute.isa(), scratch, scaling, values, codes, scales)
    })
}

/// Tiles of 128x128: codes `[rows, cols]`, scales `[ceil(rows / 128), ceil(cols / 128)]`.
pub(crate) fn weight_rows<E: Element>(
    compute: &Compute,
    scaling: Scaling,
    values: &[E],
    cols: usize,
) -> Quantized<f32> {
    bands::quantize(compute, values, cols, [BLOCK, BLOCK], |scratch, values, codes, scales| {
        tile_row(compute.isa(), scratch, scaling, values, cols, codes, scales)
    })
}

/// Blocks of 128x1 down the columns, stored transposed: codes `[cols, rows]`, scales `[cols, ceil(rows / 128)]`.
pub(crate) fn activation_columns<E: Element>(
    compute: &Compute,
    scaling: Scaling,
    values: &[E],
    [rows, cols]: [usize; 2],
) -> Quantized<f32> {
    let scale_cols = rows.div_ceil(BLOCK);
    let (mut codes, mut scales) = (Output::new(cols * rows), Output::new(cols * scale_cols));
    let finite = AtomicBool::new(true);
    let lines = Lines { values, rows, cols, codes: (codes.slots(), rows), scales: (scales.slots(), scale_cols) };
    columns::for_each_line(compute, lines, &mut vec![(); cols], |scratch, values, codes, scales, ()| {
        if !row(compute.isa(), scratch, scaling, values, codes, scales) {
            finite.store(false, Ordering::Relaxed);
        }
    });
    // SAFETY: every column is visited, and `row` writes every code and scale of its line.
    let (codes, scales) = unsafe { (codes.written(), scales.written()) };
    Quantized { codes, scales, finite: finite.into_inner() }
}

/// The tiles of [`weight_rows`], stored transposed: codes `[cols, rows]`, scales `[ceil(cols / 128), ceil(rows / 128)]`.
pub(crate) fn weight_columns<E: Element>(
    compute: &Compute,
    scaling: Scaling,
    values: &[E],
    [rows, cols]: [usize; 2],
) -> Quantized<f32> {
    let made = weight_rows(compute, scaling, values, cols);
    Quantized {
        codes: columns::transpose(compute, &made.codes, rows, cols),
        scales: columns::transpose(compute, &made.scales, rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)),
        finite: made.finite,
    }
}

/// One row in 1x128 blocks. Every slot is written. Returns whether every value is finite.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub(super) fn row<E: Element>(
    isa: Isa,
    scratch: &mut Scratch,
    scaling: Scaling,
    values: &[E],
    codes: &mut [Slot<u8>],
    scales: &mut [Slot<f32>],
) -> bool {
    assert_eq!(codes.len(), values.len(), "one FP8 code per value");
    assert_eq!(scales.len(), values.len().div_ceil(BLOCK), "one FP8 scale per block of 128");
    let Scaling { rule, dtype } = scaling;
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2_fma() {
        let mut finite = true;
        for ((values, codes), scale) in values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(scales) {
            // SAFETY: an `Isa` with AVX2 only comes from run-time detection.
            if !unsafe { block_avx2(scaling, values, codes, scale) } {
                finite = false;
                let scale = std::slice::from_mut(scale);
                scratch.fp8_block(values, codes, scale, |x, codes, scale| rule.quantize_row(x, dtype, codes, scale));
            }
        }
        return finite;
    }
    let _ = isa;
    scratch.fp8_block(values, codes, scales, |x, codes, scales| rule.quantize_row(x, dtype, codes, scales));
    is_finite(values)
}

/// Up to 128 rows of `cols` values in 128x128 tiles. Every slot is written. Returns whether every value is finite.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs, or there are more than 128 rows.
pub(super) fn tile_row<E: Element>(
    isa: Isa,
    scratch: &mut Scratch,
    scaling: Scaling,
    values: &[E],
    cols: usize,
    codes: &mut [Slot<u8>],
    scales: &mut [Slot<f32>],
) -> bool {
    assert!(values.len() <= BLOCK * cols, "one row of FP8 tiles has at most 128 rows");
    assert_eq!(codes.len(), values.len(), "one FP8 code per value");
    assert_eq!(scales.len(), cols.div_ceil(BLOCK), "one FP8 scale per tile");
    let Scaling { rule, dtype } = scaling;
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2_fma() {
        // SAFETY: an `Isa` with AVX2 only comes from run-time detection.
        if unsafe { tile_row_avx2(scaling, values, cols, codes, scales) } {
            return true;
        }
    }
    let _ = isa;
    scratch.fp8_block(values, codes, scales, |x, codes, scales| {
        rule.quantize_tile_row(x, cols, dtype, codes, scales);
    });
    is_finite(values)
}

/// One block of at most 128 values. Returns false, with nothing written, if one of them is not finite.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn block_avx2<E: Element>(scaling: Scaling, values: &[E], codes: &mut [Slot<u8>], scale: &mut Slot<f32>) -> bool {
    let largest = encode::magnitude_bits(values);
    if largest >= INFINITY_BITS {
        return false;
    }
    let encode_scale = scaling.rule.encode_scale(f32::from_bits(largest), scaling.dtype);
    scale.write(1.0 / encode_scale);
    encode_values(values, _mm256_set1_ps(encode_scale), codes);
    true
}

/// As [`tile_row`], but returns false if a value is not finite; then nothing has been written.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn tile_row_avx2<E: Element>(
    scaling: Scaling,
    values: &[E],
    cols: usize,
    codes: &mut [Slot<u8>],
    scales: &mut [Slot<f32>],
) -> bool {
    let mut maxima = vec![_mm256_setzero_si256(); scales.len()];
    for row in values.chunks_exact(cols) {
        for (tile, block) in maxima.iter_mut().zip(row.chunks(BLOCK)) {
            *tile = _mm256_max_epi32(*tile, encode::magnitudes(block));
        }
    }
    let largest = |tile: &__m256i| encode::largest_lane(*tile);
    if maxima.iter().map(largest).any(|bits| bits >= INFINITY_BITS) {
        return false;
    }
    let amax = maxima.iter().map(|tile| f32::from_bits(largest(tile)));
    let encode_scales: Vec<f32> = amax.map(|amax| scaling.rule.encode_scale(amax, scaling.dtype)).collect();
    for (scale, encode_scale) in scales.iter_mut().zip(&encode_scales) {
        scale.write(1.0 / encode_scale);
    }
    for (row, codes) in values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols)) {
        for ((block, codes), &scale) in row.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(&encode_scales) {
            encode_values(block, _mm256_set1_ps(scale), codes);
        }
    }
    true
}

/// Codes of finite values times `factor`, which takes none of them above 448 by more than rounding.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn encode_values<E: Element>(values: &[E], factor: __m256, codes: &mut [Slot<u8>]) {
    let (chunks, tail) = values.as_chunks::<32>();
    let (code_chunks, code_tail) = codes.as_chunks_mut::<32>();
    for (chunk, codes) in chunks.iter().zip(code_chunks) {
        encode::store_bytes(codes, encode::e4m3_codes(chunk, factor));
    }
    if !tail.is_empty() {
        let mut codes = [Slot::uninit(); 32];
        encode::store_bytes(&mut codes, encode::e4m3_codes(&encode::padded(tail), factor));
        code_tail.copy_from_slice(&codes[..tail.len()]);
    }
}
