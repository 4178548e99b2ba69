//! Root-mean-square norm over rows of `[rows, cols]`.
//!
//! * forward: `inv = 1 / sqrt(sum_squares8(x) / cols + eps)`, `y = (x * inv) * weight`;
//! * backward with `h = x * inv`, `g = dy * weight`: `dx = (g - h * (dot8(g, h) / cols)) * inv`;
//! * `dweight = fma(dy, h, dweight)` over rows in order, continuing from the buffer.

use crate::kernel::Compute;
use crate::kernel::pack::check;
use crate::kernel::reduce::dot_lanes;

/// `y` `[rows, cols]` from `x` `[rows, cols]` and `weight` `[cols]`; `inverse_rms` `[rows]` receives what the backward pass reads.
///
/// # Panics
/// When a length differs from the shape.
pub fn rms_norm(compute: &Compute, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32], inverse_rms: &mut [f32]) {
    let cols = weight.len();
    check("norm input", x.len(), inverse_rms.len() * cols);
    check("norm output", y.len(), x.len());
    let isa = compute.isa();
    for (x, inverse_rms) in x.chunks_exact(cols.max(1)).zip(inverse_rms.iter_mut()) {
        *inverse_rms = isa.run(
            #[inline(always)]
            || 1.0 / (dot_lanes(x, x) / cols as f32 + eps).sqrt(),
        );
    }
    let inverse_rms = &*inverse_rms;
    compute.for_row_pieces(y, cols, |first_row, piece| {
        for (i, y) in piece.chunks_exact_mut(cols).enumerate() {
            let row = first_row + i;
            let (x, inverse_rms) = (&x[row * cols..(row + 1) * cols], inverse_rms[row]);
            isa.run(
                #[inline(always)]
                || {
                    for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
                        *y = (x * inverse_rms) * weight;
                    }
                },
            );
        }
    });
}

/// `dx` `[rows, cols]` (overwritten) from `dy` and what the forward pass read and made.
///
/// # Panics
/// When a length differs from the shape.
pub fn rms_norm_input_gradient(
    compute: &Compute,
    dy: &[f32],
    x: &[f32],
    weight: &[f32],
    inverse_rms: &[f32],
    dx: &mut [f32],
) {
    let cols = weight.len();
    check("norm input", x.len(), inverse_rms.len() * cols);
    check("norm output gradient", dy.len(), x.len());
    check("norm input gradient", dx.len(), x.len());
    let isa = compute.isa();
    compute.for_row_pieces(dx, cols, |first_row, piece| {
        let mut h = vec![0.0; cols];
        for (i, dx) in piece.chunks_exact_mut(cols).enumerate() {
            let row = first_row + i;
            let (x, dy, inverse_rms) = (&x[row * cols..][..cols], &dy[row * cols..][..cols], inverse_rms[row]);
            isa.run(
                #[inline(always)]
                || {
                    for ((((dx, h), &x), &dy), &weight) in dx.iter_mut().zip(&mut h).zip(x).zip(dy).zip(weight) {
                        *h = x * inverse_rms;
                        *dx = dy * weight;
                    }
                    let mean = dot_lanes(dx, &h) / cols as f32;
                    for (dx, &h) in dx.iter_mut().zip(&h) {
                        *dx = (*dx - h * mean) * inverse_rms;
                    }
                },
            );
        }
    });
}

/// `dweight` `[cols]` continued over the rows in order.
///
/// # Panics
/// When a length differs from the shape.
pub fn rms_norm_weight_gradient(compute: &Compute, dy: &[f32], x: &[f32], inverse_rms: &[f32], dweight: &mut [f32]) {
    let cols = dweight.len();
    check("norm input", x.len(), inverse_rms.len() * cols);
    check("norm output gradient", dy.len(), x.len());
    let isa = compute.isa();
    let pieces: Vec<(usize, &mut [f32])> = dweight.chunks_mut(WEIGHT_PIECE).enumerate().collect();
    compute.for_each(pieces, |(index, dweight)| {
        let first = index * WEIGHT_PIECE;
        isa.run(
            #[inline(always)]
            || {
                for (row, &inverse_rms) in inverse_rms.iter().enumerate() {
                    let (x, dy) = (&x[row * cols + first..], &dy[row * cols + first..]);
                    for ((dweight, &x), &dy) in dweight.iter_mut().zip(x).zip(dy) {
                        *dweight = dy.mul_add(x * inverse_rms, *dweight);
                    }
                }
            },
        );
    });
}

/// Columns of a weight-gradient task.
const WEIGHT_PIECE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::reduce::combine;
    use crate::kernel::testing::{assert_close, assert_same_bits, computes, numbers};

    const EPS: f32 = 1e-5;

    fn run(compute: &Compute, x: &[f32], dy: &[f32], weight: &[f32], start: &[f32]) -> [Vec<f32>; 3] {
        let rows = x.len() / weight.len();
        let (mut y, mut inverse_rms) = (vec![f32::NAN; x.len()], vec![f32::NAN; rows]);
        rms_norm(compute, x, weight, EPS, &mut y, &mut inverse_rms);
        let (mut dx, mut dweight) = (vec![f32::NAN; x.len()], start.to_vec());
        rms_norm_input_gradient(compute, dy, x, weight, &inverse_rms, &mut dx);
        let half = rows / 2;
        let cut = half * weight.len();
        rms_norm_weight_gradient(compute, &dy[..cut], &x[..cut], &inverse_rms[..half], &mut dweight);
        rms_norm_weight_gradient(compute, &dy[cut..], &x[cut..], &inverse_rms[half..], &mut dweight);
        [y, dx, dweight]
    }

    #[test]
    fn forward_and_gradients_agree_with_double_precision_and_keep_bits() {
        for (rows, cols) in [(1, 1), (1, 576), (2, 7), (7, 64), (33, 577), (300, 130)] {
            let (x, dy) = (numbers(1, rows * cols), numbers(2, rows * cols));
            let (weight, start) = (numbers(3, cols), numbers(4, cols));
            let want = run(&computes()[0], &x, &dy, &weight, &start);
            let (mut y, mut dx) = (Vec::new(), Vec::new());
            let mut dweight: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
            for (x, dy) in x.chunks(cols).zip(dy.chunks(cols)) {
                let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / cols as f64;
                let inverse = 1.0 / (mean + f64::from(EPS)).sqrt();
                let h = |i: usize| f64::from(x[i]) * inverse;
                let g = |i: usize| f64::from(dy[i]) * f64::from(weight[i]);
                let dot = (0..cols).map(|i| g(i) * h(i)).sum::<f64>() / cols as f64;
                for i in 0..cols {
                    y.push(h(i) * f64::from(weight[i]));
                    dx.push((g(i) - h(i) * dot) * inverse);
                    dweight[i] += f64::from(dy[i]) * h(i);
                }
            }
            for (oracle, got) in [y, dx, dweight].iter().zip(&want) {
                assert_close(oracle, got, 2e-5, &format!("{rows} x {cols}"));
            }
            for compute in computes() {
                for (want, got) in want.iter().zip(&run(&compute, &x, &dy, &weight, &start)) {
                    assert_same_bits(want, got, &format!("{rows} x {cols}"));
                }
                let [y, dx, _] = run(&compute, &x[..cols], &dy[..cols], &weight, &start);
                assert_same_bits(&want[0][..cols], &y, "first row alone");
                assert_same_bits(&want[1][..cols], &dx, "first row alone");
            }
        }
    }

    #[test]
    fn forward_follows_the_written_rule() {
        let (x, weight) = (numbers(1, 19), numbers(2, 19));
        let mut lanes = [0.0f32; 8];
        for (i, &v) in x.iter().enumerate() {
            lanes[i % 8] = v.mul_add(v, lanes[i % 8]);
        }
        let inverse = 1.0 / (combine(lanes) / 19.0 + EPS).sqrt();
        let want: Vec<f32> = x.iter().zip(&weight).map(|(&x, &w)| (x * inverse) * w).collect();
        let (mut y, mut inverse_rms) = (vec![0.0; 19], [0.0]);
        rms_norm(&computes()[2], &x, &weight, EPS, &mut y, &mut inverse_rms);
        assert_same_bits(&want, &y, "rule");
        assert_eq!(inverse_rms[0].to_bits(), inverse.to_bits());
    }
}
