//! E8M0: a power of two, 2^(code - 127), used as a block scale only. No sign, no zero; `0xFF` is NaN.

/// The code of NaN.
pub const NAN: u8 = 0xFF;

/// The smallest power of two that is not below `|x|`: zero and up to 2^-127 give 0, Inf gives 254, NaN gives 255.
#[inline]
#[must_use]
pub const fn encode_ceil(x: f32) -> u8 {
    let abs = (x.to_bits() & 0x7FFF_FFFF) as i32;
    let up = (abs >> 23) + (abs & 0x007F_FFFF != 0) as i32;
    let capped = if up > MAX_CODE { MAX_CODE } else { up };
    let finite = if abs <= SMALLEST_BITS { 0 } else { capped };
    (if abs > INFINITY_BITS { NAN as i32 } else { finite }) as u8
}

/// The value of `code`: 2^(code - 127), NaN for `0xFF`. Code 0 is subnormal in `f32`.
#[inline]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    let bits = if code == 0 { SMALLEST_BITS as u32 } else { (code as u32) << 23 };
    f32::from_bits(if code == NAN { QUIET_NAN_BITS } else { bits })
}

/// The exact reciprocal 2^(127 - code), NaN for `0xFF`. Code 254 gives a subnormal.
#[inline]
#[must_use]
pub const fn decode_reciprocal(code: u8) -> f32 {
    let bits = if code >= 254 { SMALLEST_BITS as u32 } else { (254 - code as u32) << 23 };
    f32::from_bits(if code == NAN { QUIET_NAN_BITS } else { bits })
}

const MAX_CODE: i32 = 254;
const SMALLEST_BITS: i32 = 0x0040_0000;
const INFINITY_BITS: i32 = f32::INFINITY.to_bits() as i32;
const QUIET_NAN_BITS: u32 = 0x7FC0_0000;
