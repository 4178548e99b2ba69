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

/// Rounds `x` to one of the two E2M1 codes (`0..=15`) around it: up in magnitude where its remainder, in units of the step
/// between the two, plus `random / 256` reaches 1.
///
/// With `random` uniform that happens with the probability of the remainder, to within 1/256. Saturates at +-6; NaN
/// becomes `0x7`; the sign of a zero stays.
#[inline]
#[must_use]
pub fn encode_stochastic(x: f32, random: u8) -> u8 {
    let magnitude = x.abs().min(MAX);
    // Steps of 0.5 below 2, 1 below 4, 2 above; `below` is the code of the first value less its number of steps.
    let (per_step, below) = match magnitude {
        m if m < 2.0 => (2.0, 0),
        m if m < 4.0 => (1.0, 2),
        _ => (0.5, 4),
    };
    // The product is exact, so this is one fused multiply-add, without asking the machine for one.
    let steps = magnitude * per_step + f32::from(random) / 256.0;
    let sign = if x.is_sign_negative() && !x.is_nan() { 0x8 } else { 0 };
    (steps as u8 + below) | sign
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stochastic_rounding_never_leaves_the_two_neighbours_and_is_fair() {
        for x in [0.0, 0.1, 0.5, 0.74, 1.99, 2.0, 2.25, 3.999, 4.0, 4.5, 5.999, 6.0, 7.0, f32::INFINITY] {
            let clamped = f32::min(x, MAX);
            let values: Vec<f32> = (0..=255).map(|random| decode(encode_stochastic(x, random))).collect();
            let above = DECODE[..8].iter().copied().find(|&value| value >= clamped).unwrap();
            let below = DECODE[..8].iter().rev().copied().find(|&value| value <= clamped).unwrap();
            assert!(values.iter().all(|&value| value == above || value == below), "{x}");
            let mean = values.iter().sum::<f32>() / 256.0;
            assert!((mean - clamped).abs() <= (above - below) / 256.0, "{x}: mean {mean}");
            for random in 0..=255 {
                assert_eq!(encode_stochastic(-x, random), encode_stochastic(x, random) | 0x8);
            }
        }
        assert_eq!(encode_stochastic(f32::NAN, 0), 0x7);
        assert_eq!(encode_stochastic(-f32::NAN, 255), 0x7);
    }
}
