//! Cutting column ranges out of each head, and joining them; both directions only move values.

use miles_core::Result;
use miles_core::network::HeadColumns;

use super::activation::Activation;
use super::error::same_size;

/// A column range of each head: `[rows, heads * width] -> [rows, heads * (end - start)]`.
///
/// # Errors
/// If the width of `x` is not `heads * width`.
pub fn head_columns(x: &Activation, columns: HeadColumns) -> Result<Activation> {
    let HeadColumns { heads, width, start, end } = columns;
    same_size("head_columns", "width of the activation", heads * width, x.cols())?;
    let values = x.values().chunks_exact(width).flat_map(|head| &head[start..end]).copied().collect();
    Ok(Activation::new(x.rows(), heads * (end - start), values))
}

/// Gradient of [`head_columns`]: adds `dy` `[rows, heads * (end - start)]` into the range of `dx` `[rows, heads * width]`.
pub fn head_columns_backward(dy: &[f32], columns: HeadColumns, dx: &mut [f32]) {
    let HeadColumns { width, start, end, .. } = columns;
    for (head, dy) in dx.chunks_exact_mut(width).zip(dy.chunks_exact(end - start)) {
        head[start..end].iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
    }
}

/// Per head, the columns of `a` followed by all columns of `b`, which every head shares (MLA's rotary key part):
/// `[rows, heads * a_width]` and `[rows, b_width]` give `[rows, heads * (a_width + b_width)]`.
///
/// # Errors
/// If the width of `a` does not divide into heads or the rows differ.
pub fn join_heads(a: &Activation, b: &Activation, heads: usize) -> Result<Activation> {
    same_size("join_heads", "number of rows", a.rows(), b.rows())?;
    let a_width = a.cols() / heads;
    same_size("join_heads", "width of the first part", a_width * heads, a.cols())?;
    let mut values = Vec::with_capacity(a.rows() * heads * (a_width + b.cols()));
    for row in 0..a.rows() {
        for head in a.row(row).chunks_exact(a_width) {
            values.extend_from_slice(head);
            values.extend_from_slice(b.row(row));
        }
    }
    Ok(Activation::new(a.rows(), heads * (a_width + b.cols()), values))
}

/// Gradient of [`join_heads`]: adds the parts of `dy` into `da` `[rows, heads * a_width]` and `db` `[rows, b_width]`,
/// which collects its heads in order.
pub fn join_heads_backward(dy: &[f32], heads: usize, a_width: usize, b_width: usize, da: &mut [f32], db: &mut [f32]) {
    let rows = dy.chunks_exact(heads * (a_width + b_width));
    for ((dy, da), db) in rows.zip(da.chunks_exact_mut(heads * a_width)).zip(db.chunks_exact_mut(b_width)) {
        for (dy, da) in dy.chunks_exact(a_width + b_width).zip(da.chunks_exact_mut(a_width)) {
            let (dy_a, dy_b) = dy.split_at(a_width);
            da.iter_mut().zip(dy_a).for_each(|(da, dy)| *da += dy);
            db.iter_mut().zip(dy_b).for_each(|(db, dy)| *db += dy);
        }
    }
}
