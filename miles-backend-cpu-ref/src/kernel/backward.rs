//! The two gradient products of a linear layer `y[m, n] = x[m, k] · w[n, k]ᵀ`, on values.
//!
//! * `dx[m, k] = dy[m, n] · w[n, k]`: from +0, one chain over n in order;
//! * `dw[n, k] += dyᵀ · x`: one chain over rows (tokens) in order that *continues from the gradient buffer*, so the cut of a
//!   batch into micro-batches never changes a bit.
//!
//! A backward pass on quantized operands needs no kernel of its own: both operands are quantized along the contraction axis
//! and laid out `[rows, contraction]`, then [`super::linear::linear`] is the product, and
//! [`accumulate`] adds a weight gradient to its buffer.

use std::ops::Range;

use super::gemm::{Start, product};
use super::pack::check;
use super::panel::{Line, PanelSource};
use super::reduce::Stored;
use super::split::PANEL;
use super::{Compute, Isa};

/// `dx[m, k] = dy[m, n] · w[n, k]`; `dx` is overwritten.
///
/// `w` holds FP32 values or BF16 bits.
///
/// # Panics
/// When a length differs from the shape.
pub fn input_gradient<T: Stored>(compute: &Compute, dy: &[f32], w: &[T], [m, n, k]: [usize; 3], dx: &mut [f32]) {
    check("output gradient", dy.len(), m * n);
    check("weight", w.len(), n * k);
    check("input gradient", dx.len(), m * k);
    product(compute, dy, n, &Strips { rows: w, cols: k }, Start::Zero, dx, k);
}

/// `dw[n, k] += dy[m, n]ᵀ · x[m, k]`, each chain continuing from `dw`.
///
/// # Panics
/// When a length differs from the shape.
pub fn weight_gradient(compute: &Compute, dy: &[f32], x: &[f32], [m, n, k]: [usize; 3], dw: &mut [f32]) {
    check("output gradient", dy.len(), m * n);
    check("input", x.len(), m * k);
    check("weight gradient", dw.len(), n * k);
    let dy_by_output = transpose(compute, dy, m, n);
    product(compute, &dy_by_output, m, &Strips { rows: x, cols: k }, Start::Output, dw, k);
}

/// `db[n] += dy[m, n]` summed over rows in order, continuing from `db`.
///
/// # Panics
/// When a length differs from the shape.
pub fn bias_gradient(dy: &[f32], m: usize, db: &mut [f32]) {
    check("output gradient", dy.len(), m * db.len());
    if !db.is_empty() {
        for row in dy.chunks_exact(db.len()) {
            accumulate(db, row);
        }
    }
}

/// `sum[i] += addend[i]`.
///
/// # Panics
/// When the lengths differ.
pub fn accumulate(sum: &mut [f32], addend: &[f32]) {
    check("addend", addend.len(), sum.len());
    for (sum, &addend) in sum.iter_mut().zip(addend) {
        *sum += addend;
    }
}

/// `[rows, cols]` to `[cols, rows]`.
///
/// # Panics
/// When `values` is not `rows * cols` long.
#[must_use]
pub fn transpose<T: Copy + Default + Send + Sync>(compute: &Compute, values: &[T], rows: usize, cols: usize) -> Vec<T> {
    check("matrix", values.len(), rows * cols);
    let mut out = vec![T::default(); rows * cols];
    if out.is_empty() {
        return out;
    }
    let bands = out.chunks_mut(rows * TRANSPOSE_TILE).enumerate().collect();
    compute.for_each(bands, |(band, out): (usize, &mut [T])| {
        for first_row in (0..rows).step_by(TRANSPOSE_TILE) {
            let tile_rows = first_row..rows.min(first_row + TRANSPOSE_TILE);
            for (i, out_row) in out.chunks_mut(rows).enumerate() {
                let col = band * TRANSPOSE_TILE + i;
                for row in tile_rows.clone() {
                    out_row[row] = values[row * cols + col];
                }
            }
        }
    });
    out
}

/// A row-major matrix `[contraction, cols]` read in panels of 16 columns.
struct Strips<'a, T> {
    rows: &'a [T],
    cols: usize,
}

impl<T: Stored> PanelSource for Strips<'_, T> {
    fn fill(&self, isa: Isa, panel: usize, k: Range<usize>, lines: &mut [Line]) {
        let first = panel * PANEL;
        let width = PANEL.min(self.cols - first);
        let rows = self.rows[k.start * self.cols..k.end * self.cols].chunks_exact(self.cols);
        isa.run(
            #[inline(always)]
            || {
                for (line, row) in lines.iter_mut().zip(rows) {
                    match row[first..].first_chunk::<PANEL>() {
                        Some(values) => line.0 = values.map(T::widen),
                        None => {
                            *line = Line::ZERO;
                            for (value, &stored) in line.0.iter_mut().zip(&row[first..first + width]) {
                                *value = stored.widen();
                            }
                        }
                    }
                }
            },
        );
    }
}

/// Side of a transposition tile: two of them fit the first-level cache.
const TRANSPOSE_TILE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{assert_close, assert_same_bits, computes, numbers};

    const SHAPES: [[usize; 3]; 8] =
        [[1, 1, 1], [1, 33, 17], [2, 16, 40], [5, 300, 31], [7, 19, 65], [70, 20, 50], [300, 13, 18], [33, 64, 48]];

    #[test]
    fn input_gradient_is_one_chain_over_outputs() {
        for [m, n, k] in SHAPES {
            let (dy, bits) =
                (numbers(1, m * n), numbers(2, n * k).iter().map(|v| (v.to_bits() >> 16) as u16).collect::<Vec<_>>());
            let w: Vec<f32> = bits.iter().map(|&bits| bits.widen()).collect();
            let mut want = vec![0.0f32; m * k];
            let mut oracle = vec![0.0f64; m * k];
            for i in 0..m {
                for j in 0..k {
                    for o in 0..n {
                        want[i * k + j] = dy[i * n + o].mul_add(w[o * k + j], want[i * k + j]);
                        oracle[i * k + j] += f64::from(dy[i * n + o]) * f64::from(w[o * k + j]);
                    }
                }
            }
            assert_close(&oracle, &want, 1e-5, "oracle");
            for compute in computes() {
                let mut dx = vec![f32::NAN; m * k];
                input_gradient(&compute, &dy, &w, [m, n, k], &mut dx);
                assert_same_bits(&want, &dx, "values");
                let mut dx = vec![f32::NAN; m * k];
                input_gradient(&compute, &dy, &bits, [m, n, k], &mut dx);
                assert_same_bits(&want, &dx, "BF16 bits");
                let mut alone = vec![f32::NAN; k];
                input_gradient(&compute, &dy[..n], &w, [1, n, k], &mut alone);
                assert_same_bits(&want[..k], &alone, "first row alone");
            }
        }
    }

    #[test]
    fn weight_gradient_continues_from_the_buffer_whatever_the_cut() {
        for [m, n, k] in SHAPES {
            let (dy, x, start) = (numbers(1, m * n), numbers(2, m * k), numbers(3, n * k));
            let mut want = start.clone();
            let mut oracle: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
            for t in 0..m {
                for o in 0..n {
                    for j in 0..k {
                        want[o * k + j] = dy[t * n + o].mul_add(x[t * k + j], want[o * k + j]);
                        oracle[o * k + j] += f64::from(dy[t * n + o]) * f64::from(x[t * k + j]);
                    }
                }
            }
            assert_close(&oracle, &want, 1e-5, "oracle");
            for compute in computes() {
                for cut in [0, 1, m / 2, m] {
                    let cut = cut.min(m);
                    let mut dw = start.clone();
                    weight_gradient(&compute, &dy[..cut * n], &x[..cut * k], [cut, n, k], &mut dw);
                    weight_gradient(&compute, &dy[cut * n..], &x[cut * k..], [m - cut, n, k], &mut dw);
                    assert_same_bits(&want, &dw, &format!("{m} x {n} x {k} cut at {cut}"));
                }
            }
        }
    }

    #[test]
    fn empty_dimensions() {
        let compute = &computes()[2];
        let mut dx = [f32::NAN; 6];
        input_gradient::<f32>(compute, &[], &[], [2, 0, 3], &mut dx);
        assert_eq!(dx, [0.0; 6]);
        let mut dw = [7.0; 6];
        weight_gradient(compute, &[], &[], [0, 2, 3], &mut dw);
        assert_eq!(dw, [7.0; 6]);
        input_gradient::<f32>(compute, &[], &[], [0, 0, 0], &mut []);
    }

    #[test]
    fn transpose_moves_every_element() {
        for (rows, cols) in [(0, 3), (1, 70), (33, 65), (100, 2)] {
            let values: Vec<u32> = (0..(rows * cols) as u32).collect();
            let turned = transpose(&computes()[2], &values, rows, cols);
            for row in 0..rows {
                for col in 0..cols {
                    assert_eq!(turned[col * rows + row], values[row * cols + col]);
                }
            }
        }
    }

    #[test]
    fn bias_gradient_adds_rows_in_order() {
        let mut db = [1.0f32, 2.0];
        bias_gradient(&[0.5, 1.0, 0.25, 3.0], 2, &mut db);
        assert_eq!(db, [1.75, 6.0]);
    }
}
