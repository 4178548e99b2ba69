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

/// Rounds `x` to one of its two neighbours in BF16: away from zero with a probability of its distance from the nearer
/// one to zero over the distance between them, so that the mean over `random` (uniform) is `x`. A BF16 value stays what
/// it is; a finite value does not become infinite.
#[inline]
#[must_use]
pub const fn encode_stochastic(x: f32, random: u16) -> u16 {
    if !x.is_finite() {
        return encode(x);
    }
    let bits = x.to_bits();
    // Adding to the lower half carries into the upper one with the probability (lower half) / 2^16.
    let up = (bits.wrapping_add(random as u32) >> 16) as u16;
    if up & EXPONENT == EXPONENT { (bits >> 16) as u16 } else { up }
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

const EXPONENT: u16 = 0x7F80;
const LOWER_HALF: u32 = 0xFFFF;
const QUIET: u32 = 0x0040_0000;

const fn rounded_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    let chosen = if x.is_nan() { bits | QUIET } else { nearest };
    chosen & !LOWER_HALF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stochastic_rounding_takes_each_neighbour_as_often_as_the_value_is_near_it() {
        for x in [1.003_f32, -0.017_3, 3.1e-39, -1e-45, 2.9e38] {
            let (below, lower_half) = ((x.to_bits() >> 16) as u16, x.to_bits() & LOWER_HALF);
            let ups = (0..=u16::MAX).filter(|random| encode_stochastic(x, *random) == below + 1).count();
            let downs = (0..=u16::MAX).filter(|random| encode_stochastic(x, *random) == below).count();
            assert_eq!((ups, downs), (lower_half as usize, 65_536 - lower_half as usize), "{x}");
        }
    }

    #[test]
    fn stochastic_rounding_keeps_what_needs_none_and_stays_finite() {
        for bits in 0..=u16::MAX {
            let value = decode(bits);
            for random in [0, 1, 0x7FFF, 0xFFFF] {
                assert_eq!(encode_stochastic(value, random), encode(value), "{bits:#06x}");
            }
        }
        assert_eq!(encode_stochastic(f32::MAX, 0xFFFF), 0x7F7F);
        assert_eq!(encode_stochastic(f32::MIN, 0xFFFF), 0xFF7F);
    }
}
