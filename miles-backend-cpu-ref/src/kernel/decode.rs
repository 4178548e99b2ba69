//! Stored codes to the values they stand for.
//!
//! E4M3 is decoded by moving its seven low bits to the top of an `f32` (sign, four exponent bits, three mantissa bits): that
//! reads as the value times 2⁻¹²⁰, subnormal codes included, and one exact multiplication by a power of two finishes it.
//! All functions are branch-free where a panel of codes passes through them, so they vectorize.

/// 2¹²⁰: what [`e4m3_low`] must be multiplied by to be the value.
pub(crate) const E4M3_LIFT: f32 = power_of_two(120);

/// 2^`exponent` for a normal `f32` exponent (-126 to 127).
pub(crate) const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The value of BF16 bits.
#[inline(always)]
#[must_use]
pub fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The value of an E4M3 code times 2⁻¹²⁰; wrong (finite) for the two NaN codes.
#[inline(always)]
pub(crate) fn e4m3_low(code: u8) -> f32 {
    f32::from_bits((i32::from(code as i8) << 20) as u32 & 0x87F0_0000)
}

/// Whether an E4M3 code is one of the two NaN codes.
#[inline(always)]
pub(crate) fn e4m3_is_nan(code: u8) -> bool {
    code & 0x7F == 0x7F
}

/// The value of an E4M3 code: bias 7, largest 448, codes `0x7F` and `0xFF` are NaN, no infinity.
#[inline(always)]
#[must_use]
pub fn e4m3(code: u8) -> f32 {
    if e4m3_is_nan(code) { f32::NAN } else { e4m3_low(code) * E4M3_LIFT }
}

/// The value of an E8M0 scale: 2^(code-127), code 255 is NaN. Code 0 is the subnormal 2⁻¹²⁷.
#[inline(always)]
#[must_use]
pub fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Twice the value of an E2M1 code in the low four bits: an integer, -12 to 12.
#[inline(always)]
#[must_use]
pub fn e2m1_doubled(code: u8) -> i8 {
    const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    DOUBLED[usize::from(code & 0x0F)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e4m3_by_definition(code: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 0xF), f64::from(code & 7));
        let magnitude = match (exponent, code & 7) {
            (15, 7) => f64::NAN,
            (0, _) => mantissa / 8.0 * 2f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_e4m3_code_has_its_defined_value() {
        for code in 0..=255u8 {
            let (got, want) = (f64::from(e4m3(code)), e4m3_by_definition(code));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:#x}: {got} {want}");
        }
    }

    #[test]
    fn every_e8m0_code_is_its_power_of_two() {
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0(code)), 2f64.powi(i32::from(code) - 127));
        }
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn e2m1_codes_are_the_eight_magnitudes_and_their_negatives() {
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, magnitude) in (0u8..).zip(magnitudes) {
            assert_eq!(f64::from(e2m1_doubled(code)), 2.0 * magnitude);
            assert_eq!(f64::from(e2m1_doubled(code | 8)), -2.0 * magnitude);
        }
    }
}
