//! [`Element`]: what a tensor's values are stored as before they are quantized.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A stored source value: an `f32`, or the two little-endian bytes of a BF16.
pub(crate) trait Element: Copy + Send + Sync {
    /// What partial blocks are padded with.
    const ZERO: Self;

    /// The value, exactly.
    fn widen(self) -> f32;

    /// `values` as `f32`; `scratch` holds them where they are stored as something else.
    fn widened<'a>(values: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];

    /// Sixteen values as `f32` registers.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(values: &[Self; LANES]) -> Sixteen;

    /// Raises running maxima to the magnitudes of sixteen values. What the lanes hold is the element's own business;
    /// they start at zero and are read by [`magnitudes`](Self::magnitudes).
    ///
    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn raise(maxima: __m256i, values: &[Self; LANES]) -> __m256i;

    /// Eight `f32` magnitudes whose largest is the largest of all that [`raise`](Self::raise) saw.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn magnitudes(maxima: __m256i) -> __m256i;
}

/// Sixteen consecutive values `x0..x15` in registers.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Sixteen {
    /// `x0, x2, ..., x14` as `f32`.
    pub even: __m256i,
    /// `x1, x3, ..., x15` as `f32`.
    pub odd: __m256i,
    /// The upper 16 bits of `x0, x1, ..., x15`; the sign is the top bit of each.
    pub upper: __m256i,
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    fn widened<'a>(values: &'a [Self], _scratch: &'a mut Vec<f32>) -> &'a [f32] {
        values
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load(values: &[Self; LANES]) -> Sixteen {
        let at = values.as_ptr();
        // SAFETY: the four loads of four floats each cover the sixteen; they need no alignment.
        let [a, b, c, d] =
            unsafe { [_mm_loadu_ps(at), _mm_loadu_ps(at.add(4)), _mm_loadu_ps(at.add(8)), _mm_loadu_ps(at.add(12))] };
        // Elements 0-3 and 8-11, then 4-7 and 12-15, so that a shuffle within 128-bit halves keeps their order.
        let (first, second) = (_mm256_set_m128(c, a), _mm256_set_m128(d, b));
        let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second));
        let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(first, second));
        let upper_half = _mm256_set1_epi32(UPPER_HALF);
        let upper = _mm256_or_si256(_mm256_srli_epi32::<16>(even), _mm256_and_si256(odd, upper_half));
        Sixteen { even, odd, upper }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn raise(maxima: __m256i, values: &[Self; LANES]) -> __m256i {
        let at: *const __m256i = values.as_ptr().cast();
        // SAFETY: two loads of eight floats each cover the sixteen; they need no alignment.
        let halves = unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] };
        let magnitude = _mm256_set1_epi32(i32::MAX);
        let larger = _mm256_max_epi32(_mm256_and_si256(halves[0], magnitude), _mm256_and_si256(halves[1], magnitude));
        _mm256_max_epi32(maxima, larger)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn magnitudes(maxima: __m256i) -> __m256i {
        maxima
    }
}

impl Element for [u8; 2] {
    const ZERO: Self = [0; 2];

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self)) << 16)
    }

    fn widened<'a>(values: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.clear();
        scratch.extend(values.iter().map(|&pair| pair.widen()));
        scratch
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load(values: &[Self; LANES]) -> Sixteen {
        let upper = load_pairs(values);
        let even = _mm256_slli_epi32::<16>(upper);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(UPPER_HALF));
        Sixteen { even, odd, upper }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn raise(maxima: __m256i, values: &[Self; LANES]) -> __m256i {
        let magnitude = _mm256_and_si256(load_pairs(values), _mm256_set1_epi16(i16::MAX));
        _mm256_max_epi16(maxima, magnitude)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn magnitudes(maxima: __m256i) -> __m256i {
        let odd = _mm256_and_si256(maxima, _mm256_set1_epi32(UPPER_HALF));
        _mm256_max_epi32(_mm256_slli_epi32::<16>(maxima), odd)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn load_pairs(values: &[[u8; 2]; LANES]) -> __m256i {
    // SAFETY: 32 readable bytes; the load needs no alignment. x86 is little-endian, as the pairs are.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// Elements of one load.
pub(crate) const LANES: usize = 16;

#[cfg(target_arch = "x86_64")]
const UPPER_HALF: i32 = 0xFFFF_0000_u32 as i32;
