//! Products straight from the codes, decoded in registers.
//!
//! For few rows the cost is reading the weight; decoding inside the chain overlaps with that and needs no scratch. Panels are the outer
//! loop, so codes come from memory once and from the cache for every further tile of rows.

use super::gemm::{Promotion, fma_line, promote, store};
use super::panel::Panel;
use super::split::{Block, PANEL, balanced};
use super::{Compute, Isa};

/// Left operand of a direct product.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[m, k]`.
    pub values: &'a [f32],
    /// Elements of a row.
    pub k: usize,
    /// Scales of promoted panels, otherwise empty.
    pub promotion: Promotion<'a>,
}

/// Up to this many rows a direct product is the faster one.
pub(crate) const DIRECT_ROWS: usize = 32;

/// Column blocks for few rows; a small weight stays on the calling thread.
pub(crate) fn direct_blocks<'a>(compute: &Compute, out: &'a mut [f32], [m, n, k]: [usize; 3]) -> Vec<Block<'a>> {
    let threads = if n * k < SERIAL_WEIGHTS { 1 } else { compute.threads() };
    balanced(out, m, n, DIRECT_ROWS, threads)
}

/// Fills a block by the tile that suits its number of rows.
pub(crate) fn direct_block<T: Panel>(isa: Isa, x: Rows, panel_at: impl Fn(usize) -> T, block: &mut Block) {
    match block.rows.len() {
        1 => direct_tiles::<T, 1, 4>(isa, x, panel_at, block),
        2 => direct_tiles::<T, 2, 2>(isa, x, panel_at, block),
        3 | 4 | 7 | 8 => direct_tiles::<T, 4, 1>(isa, x, panel_at, block),
        _ => direct_tiles::<T, 6, 1>(isa, x, panel_at, block),
    }
}

/// Fills a block by tiles of `R` rows and `P` panels, so that enough chains run side by side. Places of a tile beyond the
/// block repeat its last row or panel and are dropped.
pub(crate) fn direct_tiles<T: Panel, const R: usize, const P: usize>(
    isa: Isa,
    x: Rows,
    panel_at: impl Fn(usize) -> T,
    block: &mut Block,
) {
    let (k, scales_per_row) = (x.k, x.promotion.blocks);
    let (first_row, first_panel, panels) = (block.first_row, block.first_panel, block.panels());
    for panel in (0..panels).step_by(P) {
        let tile_panels: [T; P] = std::array::from_fn(|p| panel_at(first_panel + (panel + p).min(panels - 1)));
        for (tile, rows) in block.rows.chunks_mut(R).enumerate() {
            let row_at = |r: usize| first_row + tile * R + r.min(rows.len() - 1);
            let values = std::array::from_fn(|r| &x.values[row_at(r) * k..][..k]);
            let row_scales =
                std::array::from_fn(|r| &x.promotion.row_scales[row_at(r) * scales_per_row..][..scales_per_row]);
            let acc = direct::<T, R, P>(isa, values, row_scales, tile_panels);
            for (row, acc) in rows.iter_mut().zip(&acc) {
                for (p, acc) in acc.iter().enumerate().take(panels - panel) {
                    store(&mut [&mut **row], panel + p, &[*acc]);
                }
            }
        }
    }
}

/// `R` rows times `P` panels decoded in registers.
///
/// `row_scales` `[R][blocks]` is read by promoted panels only.
#[inline(never)]
fn direct<T: Panel, const R: usize, const P: usize>(
    isa: Isa,
    x: [&[f32]; R],
    row_scales: [&[f32]; R],
    panels: [T; P],
) -> [[[f32; PANEL]; P]; R] {
    isa.run(
        #[inline(always)]
        || direct_body(x, row_scales, panels),
    )
}

#[inline(always)]
fn direct_body<T: Panel, const R: usize, const P: usize>(
    x: [&[f32]; R],
    row_scales: [&[f32]; R],
    panels: [T; P],
) -> [[[f32; PANEL]; P]; R] {
    let k_len = panels.first().map_or(0, |panel| panel.codes().len());
    let mut acc = [[[0.0; PANEL]; P]; R];
    let mut start = 0;
    let mut block = 0;
    while start < k_len {
        let len = T::BLOCK.min(k_len - start);
        let mut scales = [[0.0; PANEL]; P];
        for p in 0..P {
            scales[p] = panels[p].scales(block);
        }
        let codes: [&[T::Codes]; P] = std::array::from_fn(|p| &panels[p].codes()[start..start + len]);
        let xs: [&[f32]; R] = std::array::from_fn(|r| &x[r][start..start + len]);
        if T::PROMOTED {
            let mut partial = [[[0.0; PANEL]; P]; R];
            chain::<T, R, P>(xs, codes, &scales, &mut partial);
            for r in 0..R {
                let row_scale = row_scales[r][block];
                for p in 0..P {
                    promote(&partial[r][p], row_scale, &scales[p], &mut acc[r][p]);
                }
            }
        } else {
            chain::<T, R, P>(xs, codes, &scales, &mut acc);
        }
        start += len;
        block += 1;
    }
    acc
}

#[inline(always)]
fn chain<T: Panel, const R: usize, const P: usize>(
    x: [&[f32]; R],
    codes: [&[T::Codes]; P],
    scales: &[[f32; PANEL]; P],
    acc: &mut [[[f32; PANEL]; P]; R],
) {
    let len = codes.first().map_or(0, |codes| codes.len());
    let x: [&[f32]; R] = std::array::from_fn(|r| &x[r][..len]);
    let codes: [&[T::Codes]; P] = std::array::from_fn(|p| &codes[p][..len]);
    let mut sums = *acc;
    for k in 0..len {
        for p in 0..P {
            let w = T::decode(&codes[p][k], &scales[p]);
            for r in 0..R {
                fma_line(x[r][k], &w, &mut sums[r][p]);
            }
        }
    }
    *acc = sums;
}

/// Weights below this count are multiplied on the calling thread: waking another costs more.
const SERIAL_WEIGHTS: usize = 64 * 1024;
