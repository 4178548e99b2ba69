//! AVX2 form of the NVFP4 product.
//!
//! Sixteen 16-bit lanes are the sixteen columns of a panel. A byte shuffle turns nibbles into doubled codes plus 12
//! (0 to 24, unsigned); `maddubs` multiplies them with a pair of signed activation codes and adds neighbours, at most
//! 2·24·12 = 576 in magnitude; eight of those stay below 4608, so 16 bits never saturate. The sum starts at -12 Σx, which takes the
//! offset out again. Everything up to the conversion to `f32` is exact, so it agrees with the scalar form by construction.

use std::arch::x86_64::*;

use super::Isa;
use super::decode::E4M3_LIFT;
use super::gemm::store;
use super::nvfp4::{Rows, Weight, finish};
use super::pack::{NVFP4_BLOCK, NibbleBlock};
use super::split::{Block, PANEL};

/// Doubled E2M1 codes plus 12.
const OFFSET_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Fills one block of the output.
///
/// # Panics
/// When `isa` is not the AVX2 set.
pub(crate) fn block(isa: Isa, x: &Rows, w: Weight, block: &mut Block) {
    assert!(isa.has_avx2_fma(), "the AVX2 form needs AVX2");
    // SAFETY: an `Isa` with AVX2 and FMA only comes from run-time detection of both.
    unsafe { block_avx2(x, w, block) }
}

#[target_feature(enable = "avx2,fma")]
fn block_avx2(x: &Rows, w: Weight, block: &mut Block) {
    for panel in 0..block.panels() {
        let at = (block.first_panel + panel) * x.blocks;
        let codes = &w.codes[at..at + x.blocks];
        let scales = &w.scales[at..at + x.blocks];
        for (tile, rows) in block.rows.chunks_mut(TILE).enumerate() {
            let first_row = block.first_row + tile * TILE;
            match rows.len() {
                1 => tile_rows::<1>(x, w.outer_scale, first_row, codes, scales, panel, rows),
                2 => tile_rows::<2>(x, w.outer_scale, first_row, codes, scales, panel, rows),
                _ => tile_rows::<TILE>(x, w.outer_scale, first_row, codes, scales, panel, rows),
            }
        }
    }
}

/// Up to `R` rows of one panel; places beyond `out` repeat its last row and are dropped.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn tile_rows<const R: usize>(
    x: &Rows,
    outer_scale: f32,
    first_row: usize,
    codes: &[NibbleBlock],
    scales: &[[u8; PANEL]],
    panel: usize,
    out: &mut [&mut [f32]],
) {
    let blocks = codes.len();
    let row_at = |r: usize| first_row + r.min(out.len() - 1);
    let x_codes: [&[[i8; NVFP4_BLOCK]]; R] = std::array::from_fn(|r| &x.codes[row_at(r) * blocks..][..blocks]);
    let x_scales: [&[f32]; R] = std::array::from_fn(|r| &x.scales[row_at(r) * blocks..][..blocks]);
    let offsets: [&[i16]; R] = std::array::from_fn(|r| &x.offsets[row_at(r) * blocks..][..blocks]);
    let table = _mm256_broadcastsi128_si256(load_16(&OFFSET_CODES));
    let nibble = _mm256_set1_epi8(0x0F);
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    for b in 0..blocks {
        let mut dots = [_mm256_setzero_si256(); R];
        for r in 0..R {
            dots[r] = _mm256_set1_epi16(offsets[r][b]);
        }
        for quarter in 0..4 {
            let bytes = load_32(&codes[b].0[quarter]);
            let low = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
            let high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble));
            for r in 0..R {
                let x = &x_codes[r][b];
                let first = i16::from_le_bytes([x[4 * quarter] as u8, x[4 * quarter + 1] as u8]);
                let second = i16::from_le_bytes([x[4 * quarter + 2] as u8, x[4 * quarter + 3] as u8]);
                let pair = _mm256_add_epi16(
                    _mm256_maddubs_epi16(low, _mm256_set1_epi16(first)),
                    _mm256_maddubs_epi16(high, _mm256_set1_epi16(second)),
                );
                dots[r] = _mm256_add_epi16(dots[r], pair);
            }
        }
        let scale_codes = load_16(&scales[b]);
        let w_scales = [scale_values(scale_codes), scale_values(_mm_srli_si128::<8>(scale_codes))];
        for r in 0..R {
            let row_scale = _mm256_set1_ps(x_scales[r][b]);
            let halves = [_mm256_castsi256_si128(dots[r]), _mm256_extracti128_si256::<1>(dots[r])];
            for h in 0..2 {
                let dot = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(halves[h]));
                acc[r][h] = _mm256_fmadd_ps(dot, _mm256_mul_ps(row_scale, w_scales[h]), acc[r][h]);
            }
        }
    }
    let mut values = [[0.0; PANEL]; R];
    for r in 0..R {
        store_8(&mut values[r], 0, acc[r][0]);
        store_8(&mut values[r], 8, acc[r][1]);
        finish(&mut values[r], outer_scale, x.token_scales[row_at(r)]);
    }
    store(out, panel, &values);
}

/// Eight E4M3 codes (low half of the register) to values, NaN codes to NaN.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn scale_values(codes: __m128i) -> __m256 {
    let bits = _mm256_slli_epi32::<20>(_mm256_cvtepi8_epi32(codes));
    let magnitude = _mm256_set1_epi32(0x07F0_0000);
    let nan = _mm256_cmpeq_epi32(_mm256_and_si256(bits, magnitude), magnitude);
    let low = _mm256_and_si256(bits, _mm256_set1_epi32(0x87F0_0000_u32 as i32));
    let values = _mm256_mul_ps(_mm256_castsi256_ps(low), _mm256_set1_ps(E4M3_LIFT));
    _mm256_or_ps(values, _mm256_castsi256_ps(nan))
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn store_8(values: &mut [f32; PANEL], at: usize, register: __m256) {
    let target = &mut values[at..at + 8];
    // SAFETY: eight writable floats, just sliced; the store needs no alignment.
    unsafe { _mm256_storeu_ps(target.as_mut_ptr(), register) }
}

/// Rows of the register tile: eight `f32` and four 16-bit accumulators.
const TILE: usize = 4;
