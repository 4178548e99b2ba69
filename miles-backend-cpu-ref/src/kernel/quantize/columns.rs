//! Columns of row-major values as contiguous lines, in parallel, and transposition.

use std::mem::MaybeUninit;

use super::Slot;
use super::element::Element;
use super::output::Output;
use super::reference::Scratch;
use crate::kernel::Compute;

/// A tensor whose columns become the lines of codes and scales.
pub(super) struct Lines<'a, E, S> {
    /// Row-major `[rows, cols]`.
    pub values: &'a [E],
    pub rows: usize,
    pub cols: usize,
    /// Codes of all lines, and the codes of one.
    pub codes: (&'a mut [Slot<u8>], usize),
    /// Scales of all lines, and the scales of one.
    pub scales: (&'a mut [Slot<S>], usize),
}

/// Runs `quantize(scratch, values of the column, its codes, its scales, its place in `of_line`)` for every column that has
/// values.
pub(super) fn for_each_line<E: Element, S: Send, P: Send>(
    compute: &Compute,
    lines: Lines<'_, E, S>,
    of_line: &mut [P],
    quantize: impl Fn(&mut Scratch, &[f32], &mut [Slot<u8>], &mut [Slot<S>], &mut P) + Send + Sync,
) {
    let Lines { values, rows, cols, codes: (codes, line_codes), scales: (scales, line_scales) } = lines;
    if rows == 0 {
        // Columns without values have neither codes nor scales.
        return;
    }
    let stripes = codes.chunks_mut(STRIPE * line_codes).zip(scales.chunks_mut(STRIPE * line_scales));
    let stripes = stripes.zip(of_line.chunks_mut(STRIPE)).enumerate().collect();
    compute.for_each(stripes, |(stripe, ((codes, scales), places))| {
        let first = stripe * STRIPE;
        let mut gathered = vec![0.0; places.len() * rows];
        for (row, values) in values.chunks_exact(cols).enumerate() {
            for (lane, value) in values[first..][..places.len()].iter().enumerate() {
                gathered[lane * rows + row] = value.widen();
            }
        }
        let mut scratch = Scratch::default();
        let outputs = codes.chunks_exact_mut(line_codes).zip(scales.chunks_exact_mut(line_scales)).zip(places);
        for (line, ((codes, scales), place)) in gathered.chunks_exact(rows).zip(outputs) {
            quantize(&mut scratch, line, codes, scales, place);
        }
    });
}

/// The transpose `[cols, rows]` of row-major `[rows, cols]` data.
pub(super) fn transpose<T: Copy + Send + Sync>(compute: &Compute, data: &[T], rows: usize, cols: usize) -> Vec<T> {
    let mut transposed = Output::new(data.len());
    let stripes = transposed.slots().chunks_mut((TILE * rows).max(1)).enumerate().collect();
    compute.for_each(stripes, |(stripe, slots): (usize, &mut [MaybeUninit<T>])| {
        for row_start in (0..rows).step_by(TILE) {
            let row_end = rows.min(row_start + TILE);
            for (lane, line) in slots.chunks_exact_mut(rows).enumerate() {
                let col = stripe * TILE + lane;
                for (row, slot) in (row_start..row_end).zip(&mut line[row_start..row_end]) {
                    slot.write(data[row * cols + col]);
                }
            }
        }
    });
    // SAFETY: the stripes cover all lines, and the loop writes every row of every line.
    unsafe { transposed.written() }
}

/// Columns gathered at a time: one cache line of `f32` per row.
const STRIPE: usize = 16;
/// Columns of the transposed piece that stays in the first-level cache.
const TILE: usize = 64;
