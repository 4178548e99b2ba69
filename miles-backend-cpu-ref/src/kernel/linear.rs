//! `y[m, n] = x[m, k] · w[n, k]ᵀ` for packed weights of every format.
//!
//! With `w'` the exact value of a code and its scale:
//!
//! * BF16, F32, MXFP8: `acc = +0; for k: acc = fma(x'[k], w'[k], acc)`, one chain;
//! * block FP8: per 128 k a chain `p` over the bare codes from +0, then `acc = fma(p, RN(s_x * s_w), acc)`;
//! * NVFP4: per 16 k the exact dot `S` of the bare codes, `acc = fma(S, s_x * s_w, acc)`, at the end
//!   `RN(RN(acc * outer_w) * token_x)`.
//!
//! Few rows decode codes in registers and are bound by reading them; many rows decode a panel once per block of rows. Same bits.

use super::Compute;
use super::decode::{e4m3, e8m0};
use super::direct::{DIRECT_ROWS, Rows, direct_block, direct_blocks, direct_tiles};
use super::gemm::{Promotion, Start, product, promoted_block};
use super::nvfp4;
use super::pack::{FP8_BLOCK, MXFP8_BLOCK, NVFP4_BLOCK, PackedWeight, Store, check};
use super::panel::{Bf16Panel, F32Panel, FP8_ROW_LIFT, Line};
use super::source::{fp8_panel, mxfp8_panel, no_common_product};
use super::split::{Block, PANEL, balanced};

/// Activation rows `[m, k]` in the precision that a product reads.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// Values `[m, k]`, for F32, BF16 and MXFP8 weights (the last is weight-only quantization).
    Values(&'a [f32]),
    /// E4M3 codes `[m, k]` and E8M0 scales `[m, ceil(k/32)]`, for F32, BF16 and MXFP8 weights.
    Mxfp8 {
        /// E4M3 codes.
        codes: &'a [u8],
        /// E8M0 scales.
        scales: &'a [u8],
    },
    /// E2M1 codes `[m, ceil(k/2)]` bytes (even k low), E4M3 scales `[m, ceil(k/16)]`, decode scale `[m]`, for NVFP4 weights.
    Nvfp4 {
        /// E2M1 codes, two a byte.
        codes: &'a [u8],
        /// E4M3 block scales.
        scales: &'a [u8],
        /// FP32 decode scale per row.
        token_scales: &'a [f32],
    },
    /// E4M3 codes `[m, k]` and FP32 decode scales `[m, ceil(k/128)]`, for block-FP8 weights.
    Fp8Block {
        /// E4M3 codes.
        codes: &'a [u8],
        /// FP32 decode scales.
        scales: &'a [f32],
    },
}

/// `out[m, n] = x[m, k] · w[n, k]ᵀ`; `out` is overwritten.
///
/// # Panics
/// When a length differs from the shapes, or activations and weight are not a pair listed at [`Activations`].
pub fn linear(compute: &Compute, x: Activations, m: usize, w: &PackedWeight, out: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    check("output", out.len(), m * n);
    match (x, &w.store) {
        (
            Activations::Nvfp4 { codes, scales, token_scales },
            Store::Nvfp4 { codes: w_codes, scales: w_scales, outer_scale },
        ) => {
            check("NVFP4 activation bytes", codes.len(), m * k.div_ceil(2));
            check("NVFP4 activation scales", scales.len(), m * k.div_ceil(NVFP4_BLOCK));
            check("NVFP4 token scales", token_scales.len(), m);
            let rows = nvfp4::Rows::prepare(codes, scales, token_scales, k);
            let weight = nvfp4::Weight { codes: w_codes, scales: w_scales, outer_scale: *outer_scale };
            nvfp4::product(compute, &rows, weight, out, n);
        }
        (Activations::Fp8Block { codes, scales }, Store::Fp8Block { codes: w_codes, scales: w_scales, extreme }) => {
            let blocks = k.div_ceil(FP8_BLOCK);
            check("block-FP8 activation codes", codes.len(), m * k);
            check("block-FP8 activation scales", scales.len(), m * blocks);
            let lifted: Vec<f32> = codes.iter().map(|&code| e4m3(code) * FP8_ROW_LIFT).collect();
            let rows = Rows { values: &lifted, k, promotion: Promotion { row_scales: scales, blocks } };
            fp8_block(compute, rows, w_codes, w_scales, extreme, out, n);
        }
        (Activations::Values(values), Store::F32(_) | Store::Bf16(_) | Store::Mxfp8 { .. }) => {
            check("activation values", values.len(), m * k);
            chained(compute, values, m, w, out);
        }
        (Activations::Mxfp8 { codes, scales }, Store::F32(_) | Store::Bf16(_) | Store::Mxfp8 { .. }) => {
            check("MXFP8 activation codes", codes.len(), m * k);
            check("MXFP8 activation scales", scales.len(), m * k.div_ceil(MXFP8_BLOCK));
            chained(compute, &mxfp8_values(codes, scales, k), m, w, out);
        }
        _ => no_common_product(),
    }
}

/// MXFP8 rows `[m, k]` with scales `[m, ceil(k/32)]` to values.
#[must_use]
pub fn mxfp8_values(codes: &[u8], scales: &[u8], k: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(codes.len());
    if k > 0 {
        for (row, scales) in codes.chunks_exact(k).zip(scales.chunks_exact(k.div_ceil(MXFP8_BLOCK))) {
            for (block, &scale) in row.chunks(MXFP8_BLOCK).zip(scales) {
                let scale = e8m0(scale);
                values.extend(block.iter().map(|&code| e4m3(code) * scale));
            }
        }
    }
    values
}

/// Formats whose product is one chain over decoded values.
fn chained(compute: &Compute, x: &[f32], m: usize, w: &PackedWeight, out: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    if m > DIRECT_ROWS || k == 0 {
        return product(compute, x, k, w, Start::Zero, out, n);
    }
    let rows = Rows { values: x, k, promotion: Promotion { row_scales: &[], blocks: 0 } };
    let isa = compute.isa();
    compute.for_each(direct_blocks(compute, out, [m, n, k]), |mut block| match &w.store {
        Store::F32(lines) => direct_block(isa, rows, |p| F32Panel(&lines[p * k..(p + 1) * k]), &mut block),
        Store::Bf16(codes) => direct_block(isa, rows, |p| Bf16Panel(&codes[p * k..(p + 1) * k]), &mut block),
        Store::Mxfp8 { codes, scales, extreme } if any_extreme(extreme, &block) => {
            direct_tiles::<_, 1, 1>(isa, rows, |p| mxfp8_panel::<true>(codes, scales, k, p), &mut block);
        }
        Store::Mxfp8 { codes, scales, .. } => {
            direct_block(isa, rows, |p| mxfp8_panel::<false>(codes, scales, k, p), &mut block);
        }
        Store::Nvfp4 { .. } | Store::Fp8Block { .. } => no_common_product(),
    });
}

fn fp8_block(
    compute: &Compute,
    rows: Rows,
    codes: &[[u8; PANEL]],
    scales: &[Line],
    extreme: &[bool],
    out: &mut [f32],
    n: usize,
) {
    let k = rows.k;
    if k == 0 {
        return out.fill(0.0);
    }
    let (isa, m) = (compute.isa(), rows.values.len() / k);
    let blocks = if m > DIRECT_ROWS {
        balanced(out, m, n, BAND_ROWS, compute.threads())
    } else {
        direct_blocks(compute, out, [m, n, k])
    };
    compute.for_each(blocks, |mut block| {
        let plain = |p| fp8_panel::<false>(codes, scales, k, p);
        let extreme_panel = |p| fp8_panel::<true>(codes, scales, k, p);
        match (m > DIRECT_ROWS, any_extreme(extreme, &block)) {
            (false, false) => direct_block(isa, rows, plain, &mut block),
            (false, true) => direct_tiles::<_, 1, 1>(isa, rows, extreme_panel, &mut block),
            (true, false) => promoted_block(isa, rows.values, k, rows.promotion, plain, &mut block),
            (true, true) => promoted_block(isa, rows.values, k, rows.promotion, extreme_panel, &mut block),
        }
    });
}

fn any_extreme(extreme: &[bool], block: &Block) -> bool {
    extreme[block.first_panel..block.first_panel + block.panels()].contains(&true)
}

/// Rows of a band of the promoted product.
const BAND_ROWS: usize = 192;

#[cfg(test)]
mod tests;
