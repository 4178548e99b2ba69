//! E2M1: 1 sign, 2 exponent, 1 mantissa bit, bias 1; a code is the low nibble of a byte.
//!
//! The magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4, 6. There is no infinity and no NaN.

/// The largest value.
pub const MAX: f32 = 6.0;

/// Value of every code.
pub static DECODE: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Twice the value of every code: an integer, for exact dot products (the sign of zero is lost).
pub static DECODE_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Rounds `x` to the nearest E2M1 code (`0..=15`): ties to the even code, saturating at +-6, NaN to `0x7`.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    let bits = x.to_bits();
    let abs = (bits & 0x7FFF_FFFF) as i32;
    let clamped = if abs > MAX_BITS { MAX_BITS } else { abs };
    let even = (clamped >> 22) & 1;
    let normal = (clamped.wrapping_add(0x001F_FFFF + even) >> 22).wrapping_sub(EXPONENT_SHIFT);
    // The sum's last place is worth 0.5, the subnormal step, so the adder does the rounding.
    let shifted = f32::from_bits(clamped as u32) + SUBNORMAL_MAGIC;
    let subnormal = (shifted.to_bits() as i32).wrapping_sub(SUBNORMAL_MAGIC.to_bits() as i32);
    let magnitude = if clamped < ONE_BITS { subnormal } else { normal };
    let signed = magnitude | ((bits >> 28) & 0x8) as i32;
    (if abs > INFINITY_BITS { 0x7 } else { signed }) as u8
}

/// The value of the low nibble of `code`, exactly; the high nibble is ignored.
#[inline]
#[must_use]
pub fn decode(code: u8) -> f32 {
    DECODE[(code & 0xF) as usize]
}

/// The values of a packed byte: even element from the low nibble, odd element from the high one.
#[inline]
#[must_use]
pub fn decode_pair(packed: u8) -> [f32; 2] {
    [DECODE[(packed & 0xF) as usize], DECODE[(packed >> 4) as usize]]
}

const MAX_BITS: i32 = MAX.to_bits() as i32;
const INFINITY_BITS: i32 = f32::INFINITY.to_bits() as i32;
const ONE_BITS: i32 = 1.0_f32.to_bits() as i32;
const EXPONENT_SHIFT: i32 = (127 - 1) << 1;
const SUBNORMAL_MAGIC: f32 = 4_194_304.0;
