//! `exp`, `ln`, `sigmoid` and `silu` by fixed polynomials.
//!
//! Library functions differ between platforms in the last bits; these do not. Each is straight-line code with
//! `mul_add`, so a slice of them vectorizes, and the scalar and the vector form give the same bits. Errors stay within
//! two units in the last place over the whole range, subnormal results included (see the tests); `silu` below -87 inherits the
//! absolute spacing of its subnormal sigmoid, |x| 2⁻¹⁴⁹.

use super::Isa;
use super::decode::power_of_two;

/// `values[i] = e^values[i]`. `-inf` gives 0, overflow gives `inf`, NaN stays NaN.
pub fn exp_in_place(isa: Isa, values: &mut [f32]) {
    isa.run(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = exp(*value)),
    );
}

/// `values[i] = ln(values[i])`. Zero gives `-inf`, a negative number NaN.
pub fn ln_in_place(isa: Isa, values: &mut [f32]) {
    isa.run(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = ln(*value)),
    );
}

/// `values[i] = 1 / (1 + e^-values[i])`.
pub fn sigmoid_in_place(isa: Isa, values: &mut [f32]) {
    isa.run(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = sigmoid(*value)),
    );
}

/// `values[i] = values[i] * sigmoid(values[i])`; `-inf` gives NaN, as the product does.
pub fn silu_in_place(isa: Isa, values: &mut [f32]) {
    isa.run(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = silu(*value)),
    );
}

/// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, then the Taylor polynomial of degree 7 (remainder below 2⁻²⁷) times 2ⁿ.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    // Comparisons, not min and max: NaN must pass through.
    let x = if x < EXP_LOWEST { EXP_LOWEST } else { x };
    let x = if x > EXP_HIGHEST { EXP_HIGHEST } else { x };
    // Adding 1.5·2²³ rounds to an integer and leaves it in the low mantissa bits.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_TO_INTEGER);
    let n = shifted - ROUND_TO_INTEGER;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    p = r.mul_add(p, 1.0 / 720.0);
    p = r.mul_add(p, 1.0 / 120.0);
    p = r.mul_add(p, 1.0 / 24.0);
    p = r.mul_add(p, 1.0 / 6.0);
    p = r.mul_add(p, 0.5);
    p = (r * r).mul_add(p, r) + 1.0;
    // 2ⁿ in two factors: n reaches -150 and 128, outside one normal exponent; only the second product can round.
    let n = shifted.to_bits().wrapping_sub(ROUND_TO_INTEGER.to_bits()) as i32;
    let half = n >> 1;
    p * exponent_bits(half) * exponent_bits(n - half)
}

/// ln(x): x = 2ᵉ (1+f) with 1+f in [√½, √2); ln(1+f) = f - (f²/2 - s (f²/2 + R(s²))) with s = f/(2+f).
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * power_of_two(23) } else { x };
    let bits = scaled.to_bits();
    // Shifts the binade border from 1 to √½, so that the mantissa is centred around 1.
    let offset = bits.wrapping_sub(SQRT_HALF_BITS);
    let exponent = (offset as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)) - 1.0;
    let e = exponent as f32 - if subnormal { 23.0 } else { 0.0 };
    let s = f / (2.0 + f);
    let s2 = s * s;
    let mut r = 2.0 / 11.0;
    r = s2.mul_add(r, 2.0 / 9.0);
    r = s2.mul_add(r, 2.0 / 7.0);
    r = s2.mul_add(r, 2.0 / 5.0);
    r = s2.mul_add(r, 2.0 / 3.0);
    r *= s2;
    let half_square = 0.5 * f * f;
    let tail = s.mul_add(half_square + r, e * LN_2_LOW);
    let value = e.mul_add(LN_2_HIGH, f - (half_square - tail));
    let value = if x == f32::INFINITY { x } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    if x >= 0.0 { value } else { f32::NAN }
}

/// 1 / (1 + e^-x).
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    let (quotient, correction) = sigmoid_parts(x);
    quotient + correction
}

/// x · sigmoid(x).
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    let (quotient, correction) = sigmoid_parts(x);
    // The correction is 0 long before 128, and must not meet an infinite x.
    let bounded = if x > 128.0 { 0.0 } else { x };
    x.mul_add(quotient, bounded * correction)
}

/// Sigmoid as a quotient and its correction, written with e^-|x| so that neither end overflows. The correction is the remainder
/// against the unrounded denominator, which leaves little more than the error of the exponential.
#[inline(always)]
fn sigmoid_parts(x: f32) -> (f32, f32) {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    let denominator = 1.0 + e;
    let lost = e - (denominator - 1.0);
    let inverse = 1.0 / denominator;
    let quotient = numerator * inverse;
    let remainder = (-quotient).mul_add(denominator, numerator) - quotient * lost;
    (quotient, remainder * inverse)
}

#[inline(always)]
fn exponent_bits(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Below this e^x rounds to zero.
const EXP_LOWEST: f32 = -104.0;
/// Above this e^x overflows.
const EXP_HIGHEST: f32 = 89.0;
const ROUND_TO_INTEGER: f32 = 12_582_912.0;
/// ln 2 with eight trailing zero bits, so that its product with any exponent is exact.
const LN_2_HIGH: f32 = f32::from_bits(0x3F31_7200);
/// ln 2 - `LN_2_HIGH`.
const LN_2_LOW: f32 = 1.428_606_8e-6;
/// The bits of √½.
const SQRT_HALF_BITS: u32 = 0x3F35_04F3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{assert_same_bits, isas};

    /// Distance from the correctly rounded value in units in the last place of that value.
    fn ulps(got: f32, want: f64) -> f64 {
        let rounded = want as f32;
        if rounded.is_infinite() || rounded.is_nan() || got.is_infinite() {
            return if got == rounded || got.is_nan() && rounded.is_nan() { 0.0 } else { f64::INFINITY };
        }
        let unit = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
        (f64::from(got) - want).abs() / unit
    }

    /// Every 997th bit pattern: all binades, both signs, subnormals, infinities and NaN.
    fn dense_samples() -> Vec<f32> {
        let mut samples: Vec<f32> = (0..=u32::MAX).step_by(997).map(f32::from_bits).collect();
        samples.extend((-110_000..=95_000).map(|i| i as f32 * 1e-3));
        samples.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1.0, -1.0]);
        samples
    }

    fn check(name: &str, floor: fn(f64) -> f64, in_place: fn(Isa, &mut [f32]), oracle: fn(f64) -> f64) {
        let samples = dense_samples();
        let mut results = samples.clone();
        in_place(Isa::SCALAR, &mut results);
        for (&x, &got) in samples.iter().zip(&results) {
            let want = oracle(f64::from(x));
            let error = ulps(got, want);
            let below_floor = (f64::from(got) - want).abs() <= floor(f64::from(x));
            assert!(error <= 2.0 || below_floor, "{name}({x:e}) = {got:e}: {error} ulp");
        }
        for isa in isas() {
            let mut other = samples.clone();
            in_place(isa, &mut other);
            assert_same_bits(&results, &other, name);
        }
    }

    #[test]
    fn exp_is_within_two_ulps() {
        check("exp", |_| 0.0, exp_in_place, f64::exp);
    }

    #[test]
    fn ln_is_within_two_ulps() {
        check("ln", |_| 0.0, ln_in_place, f64::ln);
    }

    #[test]
    fn sigmoid_is_within_two_ulps() {
        check("sigmoid", |_| 0.0, sigmoid_in_place, |x| 1.0 / (1.0 + (-x).exp()));
    }

    #[test]
    fn silu_is_within_two_ulps_or_the_spacing_of_a_subnormal_sigmoid() {
        check("silu", |x| x.abs() * 2f64.powi(-149), silu_in_place, |x| x / (1.0 + (-x).exp()));
    }

    #[test]
    fn special_values() {
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan() && ln(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!(ln(1.0).to_bits(), 0);
        assert_eq!((ln(0.0), ln(-0.0)), (f32::NEG_INFINITY, f32::NEG_INFINITY));
        assert!(ln(-1.0).is_nan());
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)), (1.0, 0.0));
    }
}
