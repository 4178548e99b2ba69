//! BF16: the upper half of an `f32` (1 sign, 8 exponent, 7 mantissa bits).
//!
//! Values are passed as `f32` and bits as `u16`. Rounding is to nearest, ties to even; a NaN stays a NaN and
//! becomes quiet.

/// Rounds `x` to BF16 and returns the 16 bits.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u16 {
    (rounded_bits(x) >> 16) as u16
}

/// Widens 16 BF16 bits to the `f32` of the same value.
#[inline]
#[must_use]
pub const fn decode(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds `x` to the nearest BF16 value, still held as an `f32`.
#[inline]
#[must_use]
pub const fn round(x: f32) -> f32 {
    f32::from_bits(rounded_bits(x))
}

/// Whether `x` is a BF16 value already (every NaN counts as one).
#[inline]
#[must_use]
pub const fn is_exact(x: f32) -> bool {
    x.to_bits() & LOWER_HALF == 0 || x.is_nan()
}

const LOWER_HALF: u32 = 0xFFFF;
const QUIET: u32 = 0x0040_0000;

const fn rounded_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    let chosen = if x.is_nan() { bits | QUIET } else { nearest };
    chosen & !LOWER_HALF
}
