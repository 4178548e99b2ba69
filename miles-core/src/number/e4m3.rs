//! E4M3 (the finite "fn" kind): 1 sign, 4 exponent, 3 mantissa bits, bias 7, largest value 448, no infinity.
//!
//! ```text
//! bit   7   6 5 4 3   2 1 0
//!     sign exponent  mantissa     0x7F and 0xFF are NaN, 0x7E is 448, 0x01 is 2^-9
//! ```

/// The largest finite value.
pub const MAX: f32 = 448.0;

/// The code of NaN that encoding produces; `NAN | 0x80` is the other one.
pub const NAN: u8 = 0x7F;

/// Value of every code.
pub static DECODE: [f32; 256] = decode_table();

/// Rounds `x` to the nearest E4M3 code: ties to the even code, saturating at +-448, NaN to `0x7F`.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    let bits = x.to_bits();
    let abs = (bits & 0x7FFF_FFFF) as i32;
    let clamped = if abs > MAX_BITS { MAX_BITS } else { abs };
    let even = (clamped >> 20) & 1;
    let normal = (clamped.wrapping_add(0x0007_FFFF + even) >> 20).wrapping_sub(EXPONENT_SHIFT);
    // The sum's last place is worth 2^-9, the subnormal step, so the adder does the rounding.
    let shifted = f32::from_bits(clamped as u32) + SUBNORMAL_MAGIC;
    let subnormal = (shifted.to_bits() as i32).wrapping_sub(SUBNORMAL_MAGIC.to_bits() as i32);
    let magnitude = if clamped < SMALLEST_NORMAL_BITS { subnormal } else { normal };
    let signed = magnitude | ((bits >> 24) & 0x80) as i32;
    (if abs > INFINITY_BITS { NAN as i32 } else { signed }) as u8
}

/// The value of `code`, exactly.
#[inline]
#[must_use]
pub fn decode(code: u8) -> f32 {
    DECODE[code as usize]
}

/// Whether `code` is one of the two NaN codes.
#[inline]
#[must_use]
pub const fn is_nan(code: u8) -> bool {
    code & 0x7F == NAN
}

const MAX_BITS: i32 = MAX.to_bits() as i32;
const INFINITY_BITS: i32 = f32::INFINITY.to_bits() as i32;
const SMALLEST_NORMAL_BITS: i32 = 0.015_625_f32.to_bits() as i32;
const EXPONENT_SHIFT: i32 = (127 - 7) << 3;
const SUBNORMAL_MAGIC: f32 = 16_384.0;

const fn decode_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let sign = (code as u32 & 0x80) << 24;
        let magnitude = code as u32 & 0x7F;
        // Read as an f32 exponent and mantissa the code is 2^-120 times its value, subnormals included.
        let value = f32::from_bits(magnitude << 20) * f32::from_bits((120 + 127) << 23);
        table[code] = if magnitude == NAN as u32 { f32::NAN } else { f32::from_bits(sign | value.to_bits()) };
        code += 1;
    }
    table
}
