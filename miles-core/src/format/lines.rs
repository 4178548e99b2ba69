//! Lines of row-major data as contiguous slices, in both directions, and transposition.
//!
//! Lines without values are not visited: a shape may claim as many of them as it likes, and none has anything to read.

/// Columns gathered at a time: one cache line of `f32` per row.
const STRIPE: usize = 16;

/// Calls `visit(column index, values of the column)` for every column of `values`, row-major `[rows, cols]`.
pub(super) fn for_each_column(values: &[f32], rows: usize, cols: usize, mut visit: impl FnMut(usize, &[f32])) {
    if values.is_empty() {
        return;
    }
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

/// Calls `visit(row index, values of the row)` for every row of `values`, row-major `[_, cols]`.
pub(super) fn for_each_row(values: &[f32], cols: usize, mut visit: impl FnMut(usize, &[f32])) {
    for (row, values) in values.chunks_exact(cols.max(1)).enumerate() {
        visit(row, values);
    }
}

/// The transpose `[cols, rows]` of row-major `[rows, cols]` data.
pub(super) fn transpose<T: Copy + Default>(values: &[T], rows: usize, cols: usize) -> Vec<T> {
    const TILE: usize = 32;
    if values.is_empty() {
        return Vec::new();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::MAX_EXTENT;

    #[test]
    fn every_line_with_values_is_visited_and_no_other() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for_each_row(&values, 3, |row, values| rows.push((row, values.to_vec())));
        for_each_column(&values, 2, 3, |column, values| columns.push((column, values.to_vec())));
        assert_eq!(rows, [(0, vec![1.0, 2.0, 3.0]), (1, vec![4.0, 5.0, 6.0])]);
        assert_eq!(columns, [(0, vec![1.0, 4.0]), (1, vec![2.0, 5.0]), (2, vec![3.0, 6.0])]);
        for_each_row(&[], 0, |row, _| panic!("row {row} has no values"));
        for_each_row(&[], MAX_EXTENT, |row, _| panic!("row {row} has no values"));
        for (rows, cols) in [(0, MAX_EXTENT), (MAX_EXTENT, 0)] {
            for_each_column(&[], rows, cols, |column, _| panic!("column {column} has no values"));
            assert!(transpose::<u8>(&[], rows, cols).is_empty());
        }
    }
}
