//! The register tile and the blocked product around it.
//!
//! Every output is one chain `acc = fma(x[k], w[k], acc)` over k in order. Blocking over k only spills `acc` to the output
//! and takes it up again, blocking over rows and columns never touches a chain: the bits do not depend on any of it.

use super::panel::{Line, Panel, PanelSource};
use super::split::{Block, PANEL, ROW_TILE, balanced};
use super::{Compute, Isa};

/// Where the chains of an output start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// At +0, whatever the output holds.
    Zero,
    /// At the values in the output.
    Output,
}

/// Block scales of the left operand for promoted chains, `[rows, blocks]`, and the right operand's.
#[derive(Clone, Copy)]
pub(crate) struct Promotion<'a> {
    pub row_scales: &'a [f32],
    pub blocks: usize,
}

/// `acc = fma(x, w, acc)` in 16 columns.
#[inline(always)]
pub(crate) fn fma_line(x: f32, w: &[f32; PANEL], acc: &mut [f32; PANEL]) {
    for j in 0..PANEL {
        acc[j] = x.mul_add(w[j], acc[j]);
    }
}

/// `acc = fma(2 partial, RN(s_x * s_w), acc)` in 16 columns; see [`super::panel::FP8_ROW_LIFT`] for the 2.
#[inline(always)]
pub(crate) fn promote(partial: &[f32; PANEL], row_scale: f32, scales: &[f32; PANEL], acc: &mut [f32; PANEL]) {
    for j in 0..PANEL {
        acc[j] = (partial[j] + partial[j]).mul_add(row_scale * scales[j], acc[j]);
    }
}

/// `out[rows, cols] (+)= x[rows, k_len] · source`, one chain over k per element.
pub(crate) fn product(
    compute: &Compute,
    x: &[f32],
    k_len: usize,
    source: &impl PanelSource,
    start: Start,
    out: &mut [f32],
    cols: usize,
) {
    if k_len == 0 {
        if start == Start::Zero {
            out.fill(0.0);
        }
        return;
    }
    let (isa, rows) = (compute.isa(), x.len() / k_len);
    compute.for_each(balanced(out, rows, cols, BAND_ROWS, compute.threads()), |mut block| {
        let mut lines = vec![Line::ZERO; K_BLOCK.min(k_len)];
        for panel in 0..block.panels() {
            for k in (0..k_len).step_by(K_BLOCK) {
                let lines = &mut lines[..K_BLOCK.min(k_len - k)];
                source.fill(isa, block.first_panel + panel, k..k + lines.len(), lines);
                let from_output = k > 0 || start == Start::Output;
                block.for_each_tile(|first_row, rows| {
                    let mut acc = load(rows, panel, from_output);
                    tile(isa, &x[first_row * k_len + k..], k_len, lines, &mut acc[..rows.len()]);
                    store(rows, panel, &acc[..]);
                });
            }
        }
    });
}

/// The promoted product of [`Panel::PROMOTED`] codes: a chain of its own per block of `T::BLOCK` k.
pub(crate) fn promoted_block<T: Panel>(
    isa: Isa,
    x: &[f32],
    k_len: usize,
    promotion: Promotion,
    panel_at: impl Fn(usize) -> T,
    block: &mut Block,
) {
    let mut lines = vec![Line::ZERO; T::BLOCK.min(k_len)];
    for panel in 0..block.panels() {
        let codes = panel_at(block.first_panel + panel);
        for k_block in 0..promotion.blocks {
            let k = k_block * T::BLOCK;
            let lines = &mut lines[..T::BLOCK.min(k_len - k)];
            super::panel::fill(isa, codes, k..k + lines.len(), lines);
            let scales = codes.scales(k_block);
            block.for_each_tile(|first_row, rows| {
                let mut partial = [[0.0; PANEL]; ROW_TILE];
                tile(isa, &x[first_row * k_len + k..], k_len, lines, &mut partial[..rows.len()]);
                let mut acc = load(rows, panel, k_block > 0);
                let row_scales =
                    promotion.row_scales[first_row * promotion.blocks + k_block..].iter().step_by(promotion.blocks);
                isa.run(
                    #[inline(always)]
                    || {
                        for ((acc, partial), &row_scale) in
                            acc.iter_mut().zip(&partial).zip(row_scales).take(rows.len())
                        {
                            promote(partial, row_scale, &scales, acc);
                        }
                    },
                );
                store(rows, panel, &acc[..]);
            });
        }
    }
}

/// Continues the chains of up to six rows (`x` starts at the first one, `stride` apart) by `lines`.
fn tile(isa: Isa, x: &[f32], stride: usize, lines: &[Line], acc: &mut [[f32; PANEL]]) {
    match acc.len() {
        0 => {}
        1 => tile_of::<1>(isa, x, stride, lines, acc),
        2 => tile_of::<2>(isa, x, stride, lines, acc),
        3 | 4 => tile_of::<4>(isa, x, stride, lines, acc),
        _ => tile_of::<6>(isa, x, stride, lines, acc),
    }
}

/// The register tile: `R` rows, 16 columns. Rows beyond `acc` repeat the last one and are dropped.
#[inline(never)]
fn tile_of<const R: usize>(isa: Isa, x: &[f32], stride: usize, lines: &[Line], acc: &mut [[f32; PANEL]]) {
    let last = acc.len() - 1;
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r.min(last) * stride..][..lines.len()]);
    let mut sums: [[f32; PANEL]; R] = std::array::from_fn(|r| acc[r.min(last)]);
    isa.run(
        #[inline(always)]
        || tile_chain(rows, lines, &mut sums),
    );
    let filled = acc.len();
    acc.copy_from_slice(&sums[..filled]);
}

#[inline(always)]
fn tile_chain<const R: usize>(x: [&[f32]; R], lines: &[Line], acc: &mut [[f32; PANEL]; R]) {
    let len = lines.len();
    let x: [&[f32]; R] = std::array::from_fn(|r| &x[r][..len]);
    let mut sums = *acc;
    for k in 0..len {
        let w = lines[k].0;
        for r in 0..R {
            fma_line(x[r][k], &w, &mut sums[r]);
        }
    }
    *acc = sums;
}

/// The values of up to six rows in one panel, or +0.
fn load(rows: &[&mut [f32]], panel: usize, from_output: bool) -> [[f32; PANEL]; ROW_TILE] {
    let mut acc = [[0.0; PANEL]; ROW_TILE];
    if from_output {
        for (acc, row) in acc.iter_mut().zip(rows) {
            let values = &row[panel * PANEL..];
            match values.first_chunk::<PANEL>() {
                Some(values) => *acc = *values,
                None => acc[..values.len()].copy_from_slice(values),
            }
        }
    }
    acc
}

/// Writes the columns of one panel that exist.
pub(crate) fn store(rows: &mut [&mut [f32]], panel: usize, acc: &[[f32; PANEL]]) {
    for (row, acc) in rows.iter_mut().zip(acc) {
        let values = &mut row[panel * PANEL..];
        match values.first_chunk_mut::<PANEL>() {
            Some(values) => *values = *acc,
            None => {
                let width = values.len();
                values.copy_from_slice(&acc[..width]);
            }
        }
    }
}

/// k steps whose decoded panel (16 KiB) stays in the first-level cache.
const K_BLOCK: usize = 256;
/// Rows of a band whose left operand stays in the second-level cache.
const BAND_ROWS: usize = 192;
