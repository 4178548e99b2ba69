//! [`Arithmetic`]: how block FP8 gets from a tile's amax to its scale, and from an element to its code.
//!
//! Two families, `a` the amax, every operation an IEEE `f32` one:
//!
//! ```text
//! encode first:  scale = 448 / a                     stored: 1 / scale        code = e4m3(x * scale)
//! decode first:  sf = max(a, floor) / 448            stored: sf               code = e4m3(x * (1 / sf))
//!                  or max(a, floor) * (1/448)                                   or e4m3(x / sf)
//! ```
//!
//! | format | family | floor | sf | rounded to a power of two | element |
//! |---|---|---|---|---|---|
//! | `fp8-block` | encode | | | | times scale |
//! | `fp8-block/power-of-two` | encode | | | scale, down | times scale |
//! | `fp8-block/deepgemm` | decode | 1e-4 | a / 448 | | times 1/sf |
//! | `fp8-block/deepgemm-ue8m0` | decode | 1e-4 | a / 448 | sf, up | times 1/sf |
//! | `fp8-block/sglang` | decode | 1e-10 | a / 448 | | times 1/sf |
//! | `fp8-block/sglang-divide` | decode | 1e-10 | a / 448 | | divided by sf |
//! | `fp8-block/deepseek` | decode | 1e-4 | a * (1/448) | | divided by sf |
//! | `fp8-block/deepseek-ue8m0` | decode | 1e-4 | a * (1/448) | sf, up | divided by sf |
//!
//! Named after the libraries they are read from: TransformerEngine (the first two), DeepGEMM's casts, SGLang's per-token
//! and per-block casts, DeepSeek's `act_quant`. SGLang's Triton kernels compile `/` to an approximate division, whose
//! bytes no standard defines; `sglang-divide` is the IEEE reading.
//!
//! An infinite amax (with [`NonFinite::Hardware`](crate::format::NonFinite)) gives scale 1 in the encode family, as in
//! TransformerEngine's kernel, and counts as the largest finite `f32` in the decode family, where the libraries would
//! store an infinite scale, which no tensor here holds. Either way infinities become +-448 and NaN the NaN code.

use crate::format::SourceDtype;
use crate::number::{bf16, e4m3};

/// How a scale is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRounding {
    /// Not at all: any `f32`.
    #[default]
    Fp32,
    /// To a power of two, in the direction that keeps elements in range: the encode scale down, the decode scale up.
    PowerOfTwo,
}

/// How a tile's scale comes about and is applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arithmetic {
    /// The order of derivation.
    pub family: Family,
    /// The rounding of the scale.
    pub rounding: ScaleRounding,
}

/// Which scale is derived from the amax, the other being its reciprocal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Family {
    /// The encode scale.
    EncodeFirst,
    /// The decode scale.
    DecodeFirst {
        /// Amax below which a tile counts as having this one.
        floor: f32,
        /// From amax to decode scale.
        quotient: Quotient,
        /// From element to code.
        applied: Applied,
    },
}

/// From amax to decode scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quotient {
    /// `a / 448`.
    Divided,
    /// `a * (1/448)`, 1/448 rounded to `f32`.
    ByReciprocal,
}

/// From element to the value that is converted to E4M3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Applied {
    /// `x * (1 / sf)`, `1 / sf` rounded once per tile.
    ByReciprocal,
    /// `x / sf`.
    Divided,
}

/// The scale of one tile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileScale {
    /// What is stored: the factor from code to value.
    pub decode: f32,
    factor: Factor,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Factor {
    Multiply(f32),
    Divide(f32),
}

impl Arithmetic {
    /// The scale of a tile whose largest magnitude is `amax`, of a source of precision `dtype`.
    #[inline]
    #[must_use]
    pub fn tile_scale(&self, amax: f32, dtype: SourceDtype) -> TileScale {
        match self.family {
            Family::EncodeFirst => {
                let encode = self.encode_scale(amax, dtype);
                TileScale { decode: 1.0 / encode, factor: Factor::Multiply(encode) }
            }
            Family::DecodeFirst { floor, quotient, applied } => {
                let amax = amax.max(floor).min(f32::MAX);
                let quotient = match quotient {
                    Quotient::Divided => amax / e4m3::MAX,
                    Quotient::ByReciprocal => amax * LARGEST_RECIPROCAL,
                };
                let decode = match self.rounding {
                    ScaleRounding::Fp32 => quotient,
                    ScaleRounding::PowerOfTwo => power_of_two_up(quotient),
                };
                let factor = match applied {
                    Applied::ByReciprocal => Factor::Multiply(1.0 / decode),
                    Applied::Divided => Factor::Divide(decode),
                };
                TileScale { decode, factor }
            }
        }
    }

    /// The factor from value to code before conversion; exact or rounded once, and the whole story only where
    /// elements are multiplied.
    #[inline]
    #[must_use]
    pub(super) const fn encode_scale(&self, amax: f32, dtype: SourceDtype) -> f32 {
        let largest = match dtype {
            SourceDtype::Bf16 => bf16::decode(BF16_MAX_BITS),
            SourceDtype::F32 => f32::MAX,
        };
        let quotient = e4m3::MAX / amax;
        let capped = if quotient > f32::MAX { largest } else { quotient };
        let scale = if amax > 0.0 && amax.is_finite() { capped } else { 1.0 };
        match self.rounding {
            ScaleRounding::Fp32 => scale,
            ScaleRounding::PowerOfTwo => f32::from_bits(scale.to_bits() & EXPONENT_BITS),
        }
    }
}

impl TileScale {
    /// Writes one code per value.
    #[inline]
    pub fn encode(&self, values: &[f32], codes: &mut [u8]) {
        let pairs = codes.iter_mut().zip(values);
        match self.factor {
            Factor::Multiply(factor) => pairs.for_each(|(code, &x)| *code = e4m3::encode(x * factor)),
            Factor::Divide(divisor) => pairs.for_each(|(code, &x)| *code = e4m3::encode(x / divisor)),
        }
    }
}

const LARGEST_RECIPROCAL: f32 = f32::from_bits(0x3B12_4925);
const BF16_MAX_BITS: u16 = 0x7F7F;
const EXPONENT_BITS: u32 = 0xFF80_0000;
const MANTISSA_BITS: u32 = 0x007F_FFFF;

/// The smallest power of two that is not below a positive, normal `x` of at most 2^127.
#[inline]
const fn power_of_two_up(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + MANTISSA_BITS) & EXPONENT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_kept_and_others_go_up() {
        assert_eq!(power_of_two_up(0.25), 0.25);
        assert_eq!(power_of_two_up(f32::from_bits(0.25_f32.to_bits() + 1)), 0.5);
        assert_eq!(power_of_two_up(0.49), 0.5);
        assert_eq!(power_of_two_up(f32::MAX / 448.0), 2_f32.powi(120));
    }
}
