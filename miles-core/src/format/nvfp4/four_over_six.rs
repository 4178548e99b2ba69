//! Four-over-six: of two block scales, the one whose codes lie nearer to the values.
//!
//! With `t = (amax_b / 6) * S_enc` the candidates are `e4m3(min(t * 1.5, 448))`, which maps the amax to code value 4, and
//! `e4m3(min(t, 448))`, which maps it to 6. Both are tried:
//!
//! ```text
//! v_i   = ((code_i * s) * A) / largest      largest = 6 * 448 or 6 * 256, which also is S_enc * A
//! d_i   = v_i - x_i
//! error = sum of |d_i| or of d_i * d_i      i ascending, from +0, every operation rounded to f32
//! ```
//!
//! Four is taken only where its error is strictly less. A 16x16 block adds the errors of its 16 rows pairwise: row `i` and
//! row `i + 8`, then 4, 2 and 1 apart.

use super::block::{Place, products, sixth_of};
use super::{BLOCK, OuterScale, Rounding};
use crate::number::{e2m1, e4m3};

/// How four-over-six chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FourOverSix {
    /// What is summed.
    pub error: ErrorSum,
    /// What the largest block scale of a row or tensor is.
    pub largest_scale: LargestScale,
}

/// The error that four-over-six compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorSum {
    /// Absolute differences (`mae`).
    Absolute,
    /// Squared differences (`mse`).
    Squared,
}

/// The block scale that the outer scale gives to the block with the amax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LargestScale {
    /// 448, the largest E4M3 value: the block with the amax cannot be mapped to 4.
    At448,
    /// 256, so that every block can be: 256 * 1.5 is an E4M3 value.
    At256,
}

impl FourOverSix {
    /// The scale of a block with that amax; `error` is the error of its values under one scale.
    pub(super) fn scale(self, amax: f32, outer: &OuterScale, error: impl Fn(u8) -> f32) -> u8 {
        let sixth = sixth_of(amax, outer);
        let [four, six] = [sixth * 1.5, sixth].map(|scale| e4m3::encode(scale.min(e4m3::MAX)));
        // False where an error is NaN, which infinite values give.
        if error(four) < error(six) { four } else { six }
    }

    /// The error of 16 values of one line under a block scale.
    pub(super) fn error(self, values: &[f32; BLOCK], scale: u8, outer: &OuterScale, rounding: Rounding) -> f32 {
        let codes = rounding.encode(Place::default(), products(values, scale, outer));
        let largest = e2m1::MAX * self.largest();
        values.iter().zip(codes).fold(0.0, |sum: f32, (&x, code)| {
            let value = e2m1::decode(code) * e4m3::decode(scale) * outer.amax() / largest;
            let difference = value - x;
            sum + match self.error {
                ErrorSum::Absolute => difference.abs(),
                ErrorSum::Squared => difference * difference,
            }
        })
    }

    /// The error of a 16x16 block.
    pub(super) fn tile_error(
        self,
        rows: &[[f32; BLOCK]; BLOCK],
        scale: u8,
        outer: &OuterScale,
        rounding: Rounding,
    ) -> f32 {
        let mut errors = rows.map(|row| self.error(&row, scale, outer, rounding));
        let mut half = BLOCK / 2;
        while half > 0 {
            for row in 0..half {
                errors[row] += errors[row + half];
            }
            half /= 2;
        }
        errors[0]
    }

    const fn largest(self) -> f32 {
        match self.largest_scale {
            LargestScale::At448 => e4m3::MAX,
            LargestScale::At256 => 256.0,
        }
    }
}
