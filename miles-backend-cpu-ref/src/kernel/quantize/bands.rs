//! Rows of row-major values in bands, in parallel, where no band needs to know of another.

use std::sync::atomic::{AtomicBool, Ordering};

use super::element::Element;
use super::output::Output;
use super::reference::Scratch;
use super::{Quantized, Slot, rows_per_band};
use crate::kernel::Compute;

/// Runs `quantize(scratch, values, codes, scales)`, which writes every slot and says whether all values are finite, over
/// every `unit_rows` rows of `cols` values. They have one code per value and make one row of scales, one scale per
/// `block_cols` columns.
pub(super) fn quantize<E: Element, S: Copy + Send>(
    compute: &Compute,
    values: &[E],
    cols: usize,
    [unit_rows, block_cols]: [usize; 2],
    quantize: impl Fn(&mut Scratch, &[E], &mut [Slot<u8>], &mut [Slot<S>]) -> bool + Send + Sync,
) -> Quantized<S> {
    let scale_cols = cols.div_ceil(block_cols);
    let rows = values.len().checked_div(cols).unwrap_or(0);
    let (mut codes, mut scales) = (Output::new(values.len()), Output::new(rows.div_ceil(unit_rows) * scale_cols));
    let finite = AtomicBool::new(true);
    let band_rows = rows_per_band(cols, unit_rows);
    let code_bands = codes.slots().chunks_mut((band_rows * cols).max(1));
    let scale_bands = scales.slots().chunks_mut((band_rows / unit_rows * scale_cols).max(1));
    let bands = values.chunks((band_rows * cols).max(1)).zip(code_bands).zip(scale_bands).collect();
    compute.for_each(bands, |((values, codes), scales)| {
        let mut scratch = Scratch::default();
        let unit = unit_rows * cols;
        let units = values.chunks(unit).zip(codes.chunks_mut(unit)).zip(scales.chunks_mut(scale_cols));
        for ((values, codes), scales) in units {
            if !quantize(&mut scratch, values, codes, scales) {
                finite.store(false, Ordering::Relaxed);
            }
        }
    });
    // SAFETY: the bands cover every row, and `quantize` writes every code and scale of its rows.
    let (codes, scales) = unsafe { (codes.written(), scales.written()) };
    Quantized { codes, scales, finite: finite.into_inner() }
}
