//! The NVFP4 product: exact integer block dots, then one FMA per block.
//!
//! E2M1 values are multiples of ½, so with doubled codes a 16-block dot is an integer of at most 2304 and four times the
//! exact `S_b`. The factor ¼ moves into the activation scale, a power of two, so `fma(4 S_b, (s_x/4) s_w, acc)` has
//! the bits of `fma(S_b, s_x s_w, acc)`; the product of the two E4M3 scales is exact.

use super::Compute;
use super::decode::{e2m1_doubled, e4m3};
use super::gemm::store;
use super::pack::{NVFP4_BLOCK, NibbleBlock};
use super::split::{Block, PANEL, balanced};

/// Quantized activation rows, prepared for the kernels.
pub(crate) struct Rows<'a> {
    /// Doubled codes, `[rows, blocks]`; beyond k they are 0.
    pub codes: Vec<[i8; NVFP4_BLOCK]>,
    /// -12 times the sum of a block's doubled codes, `[rows, blocks]`: what takes the offset of the vector form out again.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub offsets: Vec<i16>,
    /// A quarter of the E4M3 block scale, `[rows, blocks]`.
    pub scales: Vec<f32>,
    /// Decode scale per row.
    pub token_scales: &'a [f32],
    /// Blocks per row.
    pub blocks: usize,
}

/// The weight of a product.
#[derive(Clone, Copy)]
pub(crate) struct Weight<'a> {
    /// `[panels, blocks]`.
    pub codes: &'a [NibbleBlock],
    /// `[panels, blocks]`.
    pub scales: &'a [[u8; PANEL]],
    /// Decode scale of the matrix.
    pub outer_scale: f32,
}

impl<'a> Rows<'a> {
    /// From code bytes `[rows, ceil(k/2)]`, E4M3 scales `[rows, ceil(k/16)]` and a decode scale per row.
    pub fn prepare(codes: &[u8], scales: &[u8], token_scales: &'a [f32], k: usize) -> Rows<'a> {
        let (row_bytes, blocks) = (k.div_ceil(2), k.div_ceil(NVFP4_BLOCK));
        let mut doubled = vec![[0i8; NVFP4_BLOCK]; token_scales.len() * blocks];
        for row in 0..token_scales.len() {
            let bytes = &codes[row * row_bytes..(row + 1) * row_bytes];
            let out = doubled[row * blocks..(row + 1) * blocks].as_flattened_mut();
            for (pair, &byte) in out.chunks_exact_mut(2).zip(bytes) {
                pair[0] = e2m1_doubled(byte);
                pair[1] = e2m1_doubled(byte >> 4);
            }
            if k % 2 == 1 {
                // The spare nibble of the last byte is padding, whatever it holds.
                out[k] = 0;
            }
        }
        let sum = |block: &[i8; NVFP4_BLOCK]| block.iter().map(|&code| i16::from(code)).sum::<i16>();
        let offsets = doubled.iter().map(|block| -12 * sum(block)).collect();
        let scales = scales.iter().map(|&code| 0.25 * e4m3(code)).collect();
        Rows { codes: doubled, offsets, scales, token_scales, blocks }
    }
}

/// `out[rows, n] = x · wᵀ`.
pub(crate) fn product(compute: &Compute, x: &Rows, w: Weight, out: &mut [f32], n: usize) {
    let rows = x.token_scales.len();
    compute.for_each(balanced(out, rows, n, BAND_ROWS, compute.threads()), |mut block| {
        #[cfg(target_arch = "x86_64")]
        if compute.isa().has_avx2_fma() {
            return super::nvfp4_avx2::block(compute.isa(), x, w, &mut block);
        }
        scalar_block(x, w, &mut block);
    });
}

/// The readable form.
fn scalar_block(x: &Rows, w: Weight, block: &mut Block) {
    for panel in 0..block.panels() {
        for (i, row) in block.rows.iter_mut().enumerate() {
            let row_index = block.first_row + i;
            let mut acc = [0.0f32; PANEL];
            for b in 0..x.blocks {
                let at = (block.first_panel + panel) * x.blocks + b;
                let codes = &x.codes[row_index * x.blocks + b];
                let row_scale = x.scales[row_index * x.blocks + b];
                for (column, acc) in acc.iter_mut().enumerate() {
                    let dot = block_dot(codes, &w.codes[at], column);
                    *acc = (dot as f32).mul_add(row_scale * e4m3(w.scales[at][column]), *acc);
                }
            }
            finish(&mut acc, w.outer_scale, x.token_scales[row_index]);
            store(&mut [&mut **row], panel, &[acc]);
        }
    }
}

/// Four times the exact dot of one block and column.
fn block_dot(x: &[i8; NVFP4_BLOCK], w: &NibbleBlock, column: usize) -> i32 {
    let mut dot = 0;
    for (quarter, bytes) in w.0.iter().enumerate() {
        for i in 0..2 {
            let byte = bytes[2 * column + i];
            dot += i32::from(x[4 * quarter + i]) * i32::from(e2m1_doubled(byte));
            dot += i32::from(x[4 * quarter + 2 + i]) * i32::from(e2m1_doubled(byte >> 4));
        }
    }
    dot
}

/// `RN(RN(acc * outer) * token)`.
#[inline(always)]
pub(crate) fn finish(acc: &mut [f32; PANEL], outer_scale: f32, token_scale: f32) {
    for value in acc {
        *value = *value * outer_scale * token_scale;
    }
}

/// Rows of a band whose prepared activations stay in the second-level cache.
const BAND_ROWS: usize = 256;
