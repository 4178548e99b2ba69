//! Lines of row-major data as contiguous slices, in both directions, and transposition.

/// Columns gathered at a time: one cache line of `f32` per row.
const STRIPE: usize = 16;

/// Calls `visit(column index, values of the column)` for every column of `values`, row-major `[rows, cols]`.
pub(super) fn for_each_column(values: &[f32], rows: usize, cols: usize, mut visit: impl FnMut(usize, &[f32])) {
    let mut stripe = vec![0.0; STRIPE * rows];
    for first in (0..cols).step_by(STRIPE) {
        let width = STRIPE.min(cols - first);
        for row in 0..rows {
            let start = row * cols + first;
            for (lane, &value) in values[start..start + width].iter().enumerate() {
                stripe[lane * rows + row] = value;
            }
        }
        for lane in 0..width {
            visit(first + lane, &stripe[lane * rows..][..rows]);
        }
    }
}

/// Calls `visit(row index, values of the row)` for every row, also for rows without values.
pub(super) fn for_each_row(values: &[f32], rows: usize, cols: usize, mut visit: impl FnMut(usize, &[f32])) {
    for row in 0..rows {
        visit(row, &values[row * cols..][..cols]);
    }
}

/// The transpose `[cols, rows]` of row-major `[rows, cols]` data.
pub(super) fn transpose<T: Copy + Default>(values: &[T], rows: usize, cols: usize) -> Vec<T> {
    const TILE: usize = 32;
    let mut transposed = vec![T::default(); values.len()];
    for row_start in (0..rows).step_by(TILE) {
        for col_start in (0..cols).step_by(TILE) {
            for row in row_start..rows.min(row_start + TILE) {
                for col in col_start..cols.min(col_start + TILE) {
                    transposed[col * rows + row] = values[row * cols + col];
                }
            }
        }
    }
    transposed
}
