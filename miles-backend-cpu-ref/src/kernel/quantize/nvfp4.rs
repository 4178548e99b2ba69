//! NVFP4 of whole tensors; the arithmetic is that of [`miles_core::format::nvfp4`].

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::atomic::{AtomicBool, Ordering};

use miles_core::format::nvfp4::{self, OuterScale};

use super::columns::{self, Lines};
use super::element::Element;
use super::output::Output;
use super::reference::{Scratch, is_finite};
#[cfg(target_arch = "x86_64")]
use super::{INFINITY_BITS, encode};
use super::{Quantized, Slot, amax, rows_per_band};
use crate::kernel::{Compute, Isa};

/// An NVFP4 tensor and the largest magnitude of each line; none where one outer scale was given.
pub(crate) type WithAmax = (Quantized<u8>, Vec<f32>);

/// Blocks of 16 along the rows of `[rows, cols]` values (`cols` even): codes `[rows, cols / 2]`, scales
/// `[rows, ceil(cols / 16)]`. Each row has an outer scale of its own unless one for the tensor is given.
pub(crate) fn row_axis<E: Element>(
    compute: &Compute,
    values: &[E],
    [rows, cols]: [usize; 2],
    shared: Option<&OuterScale>,
) -> WithAmax {
    let (code_cols, scale_cols) = (cols / 2, cols.div_ceil(nvfp4::BLOCK));
    let (mut codes, mut scales) = (Output::new(rows * code_cols), Output::new(rows * scale_cols));
    let mut row_amax = vec![0.0; if shared.is_some() { 0 } else { rows }];
    let finite = AtomicBool::new(true);
    let band_rows = rows_per_band(cols, 1);
    let code_bands = codes.slots().chunks_mut((band_rows * code_cols).max(1));
    let scale_bands = scales.slots().chunks_mut((band_rows * scale_cols).max(1));
    let mut amax_bands = row_amax.chunks_mut(band_rows);
    let bands = values.chunks((band_rows * cols).max(1)).zip(code_bands).zip(scale_bands);
    let bands = bands.map(|(band, scales)| (band, scales, amax_bands.next().unwrap_or_default())).collect();
    compute.for_each(bands, |((values, codes), scales, row_amax)| {
        let mut scratch = Scratch::default();
        let rows = values.chunks_exact(cols).zip(codes.chunks_exact_mut(code_cols));
        for (index, ((values, codes), scales)) in rows.zip(scales.chunks_exact_mut(scale_cols)).enumerate() {
            let found = line(compute.isa(), &mut scratch, values, shared, codes, scales);
            row_amax.iter_mut().skip(index).take(1).for_each(|place| *place = found.amax);
            if !found.finite {
                finite.store(false, Ordering::Relaxed);
            }
        }
    });
    // SAFETY: the bands cover every row, and `line` writes every code and scale of its row.
    let (codes, scales) = unsafe { (codes.written(), scales.written()) };
    (Quantized { codes, scales, finite: finite.into_inner() }, row_amax)
}

/// Blocks of 16 down the columns: codes `[cols, ceil(rows / 2)]`, scales `[cols, ceil(rows / 16)]`. Each column has an
/// outer scale of its own unless one for the tensor is given.
pub(crate) fn column_axis<E: Element>(
    compute: &Compute,
    values: &[E],
    [rows, cols]: [usize; 2],
    shared: Option<&OuterScale>,
) -> WithAmax {
    let (code_cols, scale_cols) = (rows.div_ceil(2), rows.div_ceil(nvfp4::BLOCK));
    let (mut codes, mut scales) = (Output::new(cols * code_cols), Output::new(cols * scale_cols));
    let mut column_amax = vec![0.0; cols];
    let finite = AtomicBool::new(true);
    let lines = Lines { values, rows, cols, codes: (codes.slots(), code_cols), scales: (scales.slots(), scale_cols) };
    columns::for_each_line(compute, lines, &mut column_amax, |scratch, values, codes, scales, place| {
        let found = line(compute.isa(), scratch, values, shared, codes, scales);
        *place = found.amax;
        if !found.finite {
            finite.store(false, Ordering::Relaxed);
        }
    });
    if shared.is_some() {
        column_amax.clear();
    }
    // SAFETY: every column is visited, and `line` writes every code and scale of its line.
    let (codes, scales) = unsafe { (codes.written(), scales.written()) };
    (Quantized { codes, scales, finite: finite.into_inner() }, column_amax)
}

/// What quantizing one line found out about it.
pub(super) struct Line {
    /// The largest magnitude behind the outer scale.
    pub amax: f32,
    /// Whether every value is finite.
    pub finite: bool,
}

/// One line, with an outer scale of its own unless one is given. Every slot is written.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub(super) fn line<E: Element>(
    isa: Isa,
    scratch: &mut Scratch,
    values: &[E],
    shared: Option<&OuterScale>,
    codes: &mut [Slot<u8>],
    scales: &mut [Slot<u8>],
) -> Line {
    assert_eq!(codes.len(), values.len().div_ceil(2), "two NVFP4 codes per byte");
    assert_eq!(scales.len(), values.len().div_ceil(nvfp4::BLOCK), "one NVFP4 scale per block of 16");
    let own;
    let outer = match shared {
        Some(outer) => outer,
        None => {
            own = OuterScale::from_amax(amax(isa, values).value);
            &own
        }
    };
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2_fma() {
        // SAFETY: an `Isa` with AVX2 only comes from run-time detection.
        let finite = unsafe { line_avx2(scratch, values, outer, codes, scales) };
        return Line { amax: outer.amax(), finite };
    }
    scratch.nvfp4(values, outer, codes, scales);
    Line { amax: outer.amax(), finite: is_finite(values) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn line_avx2<E: Element>(
    scratch: &mut Scratch,
    values: &[E],
    outer: &OuterScale,
    codes: &mut [Slot<u8>],
    scales: &mut [Slot<u8>],
) -> bool {
    let (groups, tail) = values.as_chunks::<GROUP>();
    // Not by `as_chunks_mut`: a tail of more than seven blocks has as many scales as a whole group.
    let (code_groups, code_tail) = codes.split_at_mut(groups.len() * GROUP / 2);
    let (scale_groups, scale_tail) = scales.split_at_mut(groups.len() * 8);
    let code_groups = code_groups.as_chunks_mut::<{ GROUP / 2 }>().0;
    let scale_groups = scale_groups.as_chunks_mut::<8>().0;
    let mut finite = true;
    for ((group, codes), scales) in groups.iter().zip(code_groups).zip(scale_groups) {
        finite &= group_avx2(scratch, group, outer, codes, scales);
    }
    if !tail.is_empty() {
        let (mut codes, mut scales) = ([Slot::uninit(); GROUP / 2], [Slot::uninit(); 8]);
        finite &= group_avx2(scratch, &encode::padded(tail), outer, &mut codes, &mut scales);
        code_tail.copy_from_slice(&codes[..code_tail.len()]);
        scale_tail.copy_from_slice(&scales[..scale_tail.len()]);
    }
    finite
}

/// Eight blocks, so that their scales fill one register.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn group_avx2<E: Element>(
    scratch: &mut Scratch,
    values: &[E; GROUP],
    outer: &OuterScale,
    codes: &mut [Slot<u8>; GROUP / 2],
    scales: &mut [Slot<u8>; 8],
) -> bool {
    let (blocks, _) = values.as_chunks::<{ nvfp4::BLOCK }>();
    let mut magnitudes = [_mm256_setzero_si256(); 8];
    for (place, block) in magnitudes.iter_mut().zip(blocks) {
        *place = encode::magnitudes(block);
    }
    let block_amax = encode::largest_lanes(magnitudes);
    let beyond = _mm256_cmpgt_epi32(block_amax, _mm256_set1_epi32(INFINITY_BITS as i32 - 1));
    if _mm256_movemask_epi8(beyond) != 0 {
        scratch.nvfp4(values, outer, codes, scales);
        return false;
    }
    let wanted = _mm256_mul_ps(_mm256_castsi256_ps(block_amax), _mm256_set1_ps(outer.multiplier()));
    // The rule caps at f32::MAX before E4M3 saturates at 448; capping at 448 right away is the same.
    let capped = _mm256_min_ps(wanted, _mm256_set1_ps(448.0));
    let (scale_codes, rounded) = encode::e4m3_scales(capped);
    encode::store_low_bytes(scales, scale_codes);
    let decode = _mm256_mul_ps(rounded, _mm256_set1_ps(outer.decode()));
    let factors = _mm256_min_ps(_mm256_div_ps(_mm256_set1_ps(1.0), decode), _mm256_set1_ps(f32::MAX));
    let factors = encode::lanes(factors);
    let (code_halves, _) = codes.as_chunks_mut::<32>();
    for (half, codes) in code_halves.iter_mut().enumerate() {
        let mut pairs = [_mm256_setzero_si256(); 4];
        for (place, index) in pairs.iter_mut().zip(4 * half..) {
            *place = encode::e2m1_pairs(&blocks[index], _mm256_set1_ps(factors[index]));
        }
        encode::store_bytes(codes, encode::low_bytes(pairs));
    }
    true
}

/// Elements whose eight block scales are computed together.
#[cfg(target_arch = "x86_64")]
const GROUP: usize = 8 * nvfp4::BLOCK;
