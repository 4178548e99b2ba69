//! A `[rows, cols]` output cut into rectangular blocks that several threads may write.
//!
//! A block of columns is not contiguous, so a block holds one mutable slice per row. That costs a few words per row and
//! block, and keeps the parallel kernels free of unsafe code.

/// Columns of a panel: two AVX2 registers.
pub(crate) const PANEL: usize = 16;

/// One rectangle of an output.
pub(crate) struct Block<'a> {
    /// First row of the rectangle in the whole output.
    pub first_row: usize,
    /// First panel (16 columns) of the rectangle in the whole output.
    pub first_panel: usize,
    /// The rectangle's rows, all of one width.
    pub rows: Vec<&'a mut [f32]>,
}

impl<'a> Block<'a> {
    /// Panels of the rectangle, the last one possibly narrower than 16 columns.
    pub fn panels(&self) -> usize {
        self.rows.first().map_or(0, |row| row.len().div_ceil(PANEL))
    }

    /// Calls `work(first_row, rows)` for tiles of up to [`ROW_TILE`] rows; `first_row` counts in the whole output.
    pub fn for_each_tile(&mut self, mut work: impl FnMut(usize, &mut [&'a mut [f32]])) {
        for (tile, rows) in self.rows.chunks_mut(ROW_TILE).enumerate() {
            work(self.first_row + tile * ROW_TILE, rows);
        }
    }
}

/// Cuts `out` `[rows, cols]` into blocks of at most `block_rows` rows and `block_panels` panels; nothing for an empty output.
pub(crate) fn blocks(out: &mut [f32], cols: usize, block_rows: usize, block_panels: usize) -> Vec<Block<'_>> {
    if out.is_empty() || cols == 0 {
        return Vec::new();
    }
    let block_cols = block_panels * PANEL;
    let mut all = Vec::new();
    for (band, rows) in out.chunks_mut(block_rows * cols).enumerate() {
        let mut blocks: Vec<Block> = (0..cols.div_ceil(block_cols))
            .map(|index| Block {
                first_row: band * block_rows,
                first_panel: index * block_panels,
                rows: Vec::with_capacity(rows.len() / cols),
            })
            .collect();
        for row in rows.chunks_mut(cols) {
            for (block, piece) in blocks.iter_mut().zip(row.chunks_mut(block_cols)) {
                block.rows.push(piece);
            }
        }
        all.append(&mut blocks);
    }
    all
}

/// Blocks for `threads` threads: column groups first (a decoded weight panel serves all rows), row bands when those are few.
pub(crate) fn balanced(
    out: &mut [f32],
    rows: usize,
    cols: usize,
    max_band_rows: usize,
    threads: usize,
) -> Vec<Block<'_>> {
    let panels = cols.div_ceil(PANEL).max(1);
    let wanted = if threads == 1 { 1 } else { threads * BLOCKS_PER_THREAD };
    let bands = rows.div_ceil(max_band_rows).max(1);
    let block_rows = rows.div_ceil(bands).next_multiple_of(ROW_TILE).max(1);
    let block_panels = (panels * bands).div_ceil(wanted).clamp(1, panels);
    blocks(out, cols, block_rows, block_panels)
}

/// Rows of the register tile.
pub(crate) const ROW_TILE: usize = 6;
/// More blocks than threads, so that a thread that the machine slows down does not hold up the others.
const BLOCKS_PER_THREAD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_every_element_once() {
        for (rows, cols) in [(0, 5), (5, 0), (1, 1), (1, 16), (3, 17), (13, 100), (200, 33)] {
            for (band, threads) in [(1, 1), (6, 2), (96, 3)] {
                let mut out = vec![0.0f32; rows * cols];
                for block in balanced(&mut out, rows, cols, band, threads) {
                    let (first_row, first_col) = (block.first_row, block.first_panel * PANEL);
                    for (i, row) in block.rows.into_iter().enumerate() {
                        for (j, value) in row.iter_mut().enumerate() {
                            *value += ((first_row + i) * cols + first_col + j + 1) as f32;
                        }
                    }
                }
                assert!(out.iter().enumerate().all(|(i, &value)| value == (i + 1) as f32), "{rows} x {cols}");
            }
        }
    }
}
