//! AVX2 twins of the element encoders, for finite values, and of the magnitude reductions.
//!
//! A product `y` is rounded to a narrow float by one addition. With `g = 2^max(exponent of y, smallest normal exponent)`
//! and `m` mantissa bits, the last place of `g * 2^(23 - m)` is worth one step of the narrow float around `y`. Adding
//! that number to `|y|` rounds to the nearest step, ties to even, and leaves the count of steps in the low bits of the
//! sum. The code is that count plus `2^m` for each binade above the smallest normal one. A count that reaches the next
//! binade carries into the exponent bits, as it must. Steps and codes have the same parity, so ties go to the even code.
//!
//! Nothing here sees NaN or infinity as input; products may overflow to infinity where the caller says so. Registers go
//! through no closure: `map` of the standard library is compiled without AVX2, and a call to it would stay a call.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::Slot;
use super::element::{Element, LANES, Sixteen};

/// The largest magnitude among `values` as `f32` bits; NaN and infinity are above every finite one.
#[target_feature(enable = "avx2")]
pub(super) fn magnitude_bits<E: Element>(values: &[E]) -> u32 {
    largest_lane(magnitudes(values))
}

/// Eight `f32` magnitudes whose largest is that of `values`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn magnitudes<E: Element>(values: &[E]) -> __m256i {
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut maxima = _mm256_setzero_si256();
    for chunk in chunks {
        // SAFETY: this function is only entered with AVX2.
        maxima = unsafe { E::raise(maxima, chunk) };
    }
    if !tail.is_empty() {
        // SAFETY: as above.
        maxima = unsafe { E::raise(maxima, &padded(tail)) };
    }
    // SAFETY: as above.
    unsafe { E::magnitudes(maxima) }
}

/// `values`, then zeros.
#[inline(always)]
pub(super) fn padded<E: Element, const N: usize>(values: &[E]) -> [E; N] {
    let mut block = [E::ZERO; N];
    block[..values.len()].copy_from_slice(values);
    block
}

/// The largest of eight magnitudes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn largest_lane(magnitudes: __m256i) -> u32 {
    let four = _mm_max_epi32(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256::<1>(magnitudes));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two));
    _mm_cvtsi128_si32(one) as u32
}

/// The largest lane of each of eight registers, in their order.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn largest_lanes(registers: [__m256i; 8]) -> __m256i {
    let [a, b, c, d, e, f, g, h] = registers;
    let fours = [max_of_pair(a, b), max_of_pair(c, d), max_of_pair(e, f), max_of_pair(g, h)];
    let twos = [max_of_pairs(fours[0], fours[1]), max_of_pairs(fours[2], fours[3])];
    let low = _mm256_permute2x128_si256::<0x20>(twos[0], twos[1]);
    let high = _mm256_permute2x128_si256::<0x31>(twos[0], twos[1]);
    _mm256_max_epi32(low, high)
}

/// Four lanes become two, those of `a` at even places and those of `b` at odd ones.
#[target_feature(enable = "avx2")]
#[inline]
fn max_of_pair(a: __m256i, b: __m256i) -> __m256i {
    _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
}

/// Two lanes become one: the pairs of `a`, then those of `b`.
#[target_feature(enable = "avx2")]
#[inline]
fn max_of_pairs(a: __m256i, b: __m256i) -> __m256i {
    _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
}

/// Eight non-negative values up to 448, rounded to E4M3: the codes, and the values they stand for.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn e4m3_scales(values: __m256) -> (__m256i, __m256) {
    let (steps, magic) = e4m3_steps(_mm256_castps_si256(values));
    (e4m3_from_steps(steps, magic), _mm256_sub_ps(_mm256_castsi256_ps(steps), _mm256_castsi256_ps(magic)))
}

/// The E4M3 codes of 32 values times `factor`. No product may be above 448 by more than rounding.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn e4m3_codes<E: Element>(values: &[E; 2 * LANES], factor: __m256) -> __m256i {
    let (halves, _) = values.as_chunks::<LANES>();
    // SAFETY: this function is only entered with AVX2.
    let (first, second) = unsafe { (E::load(&halves[0]), E::load(&halves[1])) };
    let magnitudes = _mm256_packus_epi16(e4m3_words(first, factor), e4m3_words(second, factor));
    // Saturating a word to a byte keeps its sign, and the factor is positive.
    let signs = _mm256_and_si256(_mm256_packs_epi16(first.upper, second.upper), _mm256_set1_epi8(i8::MIN));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_or_si256(magnitudes, signs))
}

/// The E2M1 codes of 16 values times `factor`, one packed pair per 32-bit lane. Products may overflow.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn e2m1_pairs<E: Element>(values: &[E; LANES], factor: __m256) -> __m256i {
    // SAFETY: this function is only entered with AVX2.
    let x = unsafe { E::load(values) };
    let magnitudes =
        _mm256_or_si256(e2m1_magnitudes(x.even, factor), _mm256_slli_epi32::<4>(e2m1_magnitudes(x.odd, factor)));
    // The signs stand at bits 15 and 31 and belong at 3 and 7.
    let signs = _mm256_and_si256(x.upper, _mm256_set1_epi32(0x8000_8000_u32 as i32));
    let low = _mm256_and_si256(_mm256_srli_epi32::<12>(signs), _mm256_set1_epi32(0x8));
    _mm256_or_si256(magnitudes, _mm256_or_si256(low, _mm256_srli_epi32::<24>(signs)))
}

/// The low bytes of the lanes of four registers, in order.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn low_bytes(registers: [__m256i; 4]) -> __m256i {
    let [a, b, c, d] = registers;
    let bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The low bytes of the lanes of one register.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_low_bytes(slots: &mut [Slot<u8>; 8], register: __m256i) {
    let bytes = low_bytes([register; 4]);
    *slots = _mm256_extract_epi64::<0>(bytes).to_le_bytes().map(MaybeUninit::new);
}

/// Writes 32 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_bytes(slots: &mut [Slot<u8>; 32], bytes: __m256i) {
    // SAFETY: 32 writable bytes, initialized or not; the store needs no alignment.
    unsafe { _mm256_storeu_si256(slots.as_mut_ptr().cast(), bytes) }
}

/// Eight floats in memory.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn lanes(register: __m256) -> [f32; 8] {
    let mut lanes = [0.0; 8];
    // SAFETY: eight writable floats; the store needs no alignment.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), register) }
    lanes
}

/// Sixteen E4M3 magnitudes as words, in order.
#[target_feature(enable = "avx2")]
#[inline]
fn e4m3_words(x: Sixteen, factor: __m256) -> __m256i {
    let even = e4m3_magnitudes(product(x.even, factor));
    let odd = e4m3_magnitudes(product(x.odd, factor));
    _mm256_or_si256(even, _mm256_slli_epi32::<16>(odd))
}

#[target_feature(enable = "avx2")]
#[inline]
fn e4m3_magnitudes(y: __m256i) -> __m256i {
    let (steps, magic) = e4m3_steps(y);
    e4m3_from_steps(steps, magic)
}

/// The rounding sum of magnitudes (the sign is ignored) and the number that was added.
#[target_feature(enable = "avx2")]
#[inline]
fn e4m3_steps(y: __m256i) -> (__m256i, __m256i) {
    let exponent = _mm256_and_si256(y, _mm256_set1_epi32(EXPONENT));
    let magic =
        _mm256_add_epi32(_mm256_max_epi32(exponent, _mm256_set1_epi32(E4M3_NORMAL)), _mm256_set1_epi32(E4M3_UP));
    let magnitude = _mm256_and_si256(y, _mm256_set1_epi32(i32::MAX));
    let sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(magic));
    (_mm256_castps_si256(sum), magic)
}

#[target_feature(enable = "avx2")]
#[inline]
fn e4m3_from_steps(steps: __m256i, magic: __m256i) -> __m256i {
    let binades = _mm256_sub_epi32(_mm256_srli_epi32::<20>(magic), _mm256_set1_epi32((E4M3_NORMAL + E4M3_UP) >> 20));
    _mm256_add_epi32(_mm256_sub_epi32(steps, magic), binades)
}

#[target_feature(enable = "avx2")]
#[inline]
fn e2m1_magnitudes(x: __m256i, factor: __m256) -> __m256i {
    let magnitude = _mm256_and_si256(product(x, factor), _mm256_set1_epi32(i32::MAX));
    let clamped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(E2M1_MAX));
    let exponent = _mm256_and_si256(clamped, _mm256_set1_epi32(EXPONENT));
    let magic =
        _mm256_add_epi32(_mm256_max_epi32(exponent, _mm256_set1_epi32(E2M1_NORMAL)), _mm256_set1_epi32(E2M1_UP));
    let sum = _mm256_add_ps(_mm256_castsi256_ps(clamped), _mm256_castsi256_ps(magic));
    let binades = _mm256_sub_epi32(_mm256_srli_epi32::<22>(magic), _mm256_set1_epi32((E2M1_NORMAL + E2M1_UP) >> 22));
    _mm256_add_epi32(_mm256_sub_epi32(_mm256_castps_si256(sum), magic), binades)
}

#[target_feature(enable = "avx2")]
#[inline]
fn product(x: __m256i, factor: __m256) -> __m256i {
    _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(x), factor))
}

const EXPONENT: i32 = 0x7F80_0000;
/// Bits of 2^-6, and what lifts an exponent by the 20 mantissa bits that E4M3 has not.
const E4M3_NORMAL: i32 = 0.015_625_f32.to_bits() as i32;
const E4M3_UP: i32 = 20 << 23;
/// Bits of 1 and 6, and what lifts an exponent by the 22 mantissa bits that E2M1 has not.
const E2M1_NORMAL: i32 = 1.0_f32.to_bits() as i32;
const E2M1_UP: i32 = 22 << 23;
const E2M1_MAX: i32 = 6.0_f32.to_bits() as i32;
