//! Reductions over a vector by eight lane partials.
//!
//! Lane l takes the elements whose index is l mod 8, in index order; the lanes combine as
//! `((l0+l4)+(l2+l6))+((l1+l5)+(l3+l7))`. Eight lanes is one AVX2 register, and the combination is its usual halving.

use super::Isa;
use super::decode::bf16;

/// Lanes of a reduction.
pub(crate) const LANES: usize = 8;

/// A stored number that widens exactly to `f32`.
pub trait Stored: Copy + Send + Sync {
    /// The value.
    fn widen(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

/// BF16 bits.
impl Stored for u16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        bf16(self)
    }
}

/// Sum of the elements.
#[must_use]
pub fn sum8(isa: Isa, values: &[f32]) -> f32 {
    isa.run(
        #[inline(always)]
        || sum_lanes(values),
    )
}

/// Sum of the squares: each lane an FMA chain.
#[must_use]
pub fn sum_squares8(isa: Isa, values: &[f32]) -> f32 {
    isa.run(
        #[inline(always)]
        || dot_lanes(values, values),
    )
}

/// Dot product: each lane an FMA chain.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn dot8(isa: Isa, left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len(), "dot8 needs two vectors of one length");
    isa.run(
        #[inline(always)]
        || dot_lanes(left, right),
    )
}

/// Largest element, NaN ignored; `-inf` when there is none.
#[must_use]
pub fn max8(isa: Isa, values: &[f32]) -> f32 {
    isa.run(
        #[inline(always)]
        || max_lanes(values),
    )
}

/// Body of [`sum8`].
#[inline(always)]
pub(crate) fn sum_lanes(values: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, tail) = values.as_chunks::<LANES>();
    for block in blocks {
        for l in 0..LANES {
            lanes[l] += block[l];
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(tail) {
        *lane += value;
    }
    combine(lanes)
}

/// Body of [`dot8`]; the shorter length counts.
#[inline(always)]
pub(crate) fn dot_lanes<T: Stored>(left: &[f32], right: &[T]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (left_blocks, left_tail) = left.as_chunks::<LANES>();
    let (right_blocks, right_tail) = right.as_chunks::<LANES>();
    for (a, b) in left_blocks.iter().zip(right_blocks) {
        for l in 0..LANES {
            lanes[l] = a[l].mul_add(b[l].widen(), lanes[l]);
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(left_tail.iter().zip(right_tail)) {
        *lane = a.mul_add(b.widen(), *lane);
    }
    combine(lanes)
}

/// Body of [`max8`].
#[inline(always)]
pub(crate) fn max_lanes(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, tail) = values.as_chunks::<LANES>();
    for block in blocks {
        for l in 0..LANES {
            lanes[l] = larger(block[l], lanes[l]);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(tail) {
        *lane = larger(value, *lane);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |largest, lane| larger(lane, largest))
}

#[inline(always)]
fn larger(value: f32, largest: f32) -> f32 {
    if value > largest { value } else { largest }
}

/// The one combination of the lanes.
#[inline(always)]
pub(crate) fn combine(l: [f32; LANES]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{isas, numbers};

    #[test]
    fn reductions_follow_the_lane_rule_for_every_length_and_isa() {
        for n in [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 577] {
            let (a, b) = (numbers(1, n), numbers(2, n));
            let (mut sum, mut squares, mut dot) = ([0f32; 8], [0f32; 8], [0f32; 8]);
            for i in 0..n {
                sum[i % 8] += a[i];
                squares[i % 8] = a[i].mul_add(a[i], squares[i % 8]);
                dot[i % 8] = a[i].mul_add(b[i], dot[i % 8]);
            }
            let largest = a.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for isa in isas() {
                assert_eq!(sum8(isa, &a).to_bits(), combine(sum).to_bits(), "sum of {n}");
                assert_eq!(sum_squares8(isa, &a).to_bits(), combine(squares).to_bits(), "squares of {n}");
                assert_eq!(dot8(isa, &a, &b).to_bits(), combine(dot).to_bits(), "dot of {n}");
                assert_eq!(max8(isa, &a), largest, "max of {n}");
            }
        }
    }

    #[test]
    fn reductions_agree_with_double_precision() {
        let (a, b) = (numbers(3, 1000), numbers(4, 1000));
        let want: f64 = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        assert!((f64::from(dot8(Isa::detect(), &a, &b)) - want).abs() < 1e-4);
    }

    #[test]
    fn max_ignores_nan() {
        assert_eq!(max8(Isa::detect(), &[f32::NAN, -3.0, f32::NAN]), -3.0);
    }
}
