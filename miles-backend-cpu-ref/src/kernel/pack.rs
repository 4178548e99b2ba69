//! Weights `[n, k]` rearranged once for the kernels, still in their stored precision.
//!
//! ```text
//! panel 0                          panel 1
//! k=0: n0 n1 ... n15               k=0: n16 ... n31
//! k=1: n0 n1 ... n15               ...
//! ```
//!
//! Memory is codes plus scales (columns rounded up to 16, NVFP4 also k to 16); the only widening is the block-FP8
//! scale, held once per column (3 % of the codes). NVFP4 bytes pair k and k+2 so that one load, a mask and a shift give
//! pairs of neighbouring k ready for the byte dot product:
//!
//! ```text
//! quarter q of a 16-block, byte 2c+i:  low nibble = code[n=c][4q+i], high nibble = code[n=c][4q+2+i]
//! ```

use rayon::prelude::*;

use super::Compute;
use super::decode::e4m3_is_nan;
use super::panel::{Line, MXFP8_LARGEST_PLAIN_SCALE};
use super::split::PANEL;

/// A weight matrix `[n, k]` (outputs, inputs) packed for [`super::linear::linear`].
#[derive(Clone, Debug)]
pub struct PackedWeight {
    n: usize,
    k: usize,
    pub(crate) store: Store,
}

/// The codes of all panels, `[panels, k]` unless said otherwise.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    F32(Vec<Line>),
    Bf16(Vec<[u16; PANEL]>),
    /// `scales` `[panels, ceil(k/32)]`; `extreme` `[panels]`.
    Mxfp8 {
        codes: Vec<[u8; PANEL]>,
        scales: Vec<[u8; PANEL]>,
        extreme: Vec<bool>,
    },
    /// `codes` `[panels, ceil(k/16)]` blocks, `scales` alike.
    Nvfp4 {
        codes: Vec<NibbleBlock>,
        scales: Vec<[u8; PANEL]>,
        outer_scale: f32,
    },
    /// `scales` `[panels, ceil(k/128)]`; `extreme` `[panels]`.
    Fp8Block {
        codes: Vec<[u8; PANEL]>,
        scales: Vec<Line>,
        extreme: Vec<bool>,
    },
}

/// Sixteen k of sixteen columns of E2M1 codes, in four quarters of four k.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct NibbleBlock(pub [[u8; 32]; 4]);

/// NVFP4 elements per scale.
pub const NVFP4_BLOCK: usize = 16;
/// MXFP8 elements per scale.
pub const MXFP8_BLOCK: usize = 32;
/// Block-FP8 elements per scale along k.
pub const FP8_BLOCK: usize = 128;

impl PackedWeight {
    /// From FP32 values `[n, k]`.
    ///
    /// # Panics
    /// When `values` is not `n * k` long.
    #[must_use]
    pub fn from_f32(compute: &Compute, values: &[f32], n: usize, k: usize) -> PackedWeight {
        check("values", values.len(), n * k);
        let lines = interleave(compute, values, n, k, 0.0).into_iter().map(Line).collect();
        PackedWeight { n, k, store: Store::F32(lines) }
    }

    /// From BF16 bits `[n, k]`.
    ///
    /// # Panics
    /// When `bits` is not `n * k` long.
    #[must_use]
    pub fn from_bf16(compute: &Compute, bits: &[u16], n: usize, k: usize) -> PackedWeight {
        check("BF16 bits", bits.len(), n * k);
        PackedWeight { n, k, store: Store::Bf16(interleave(compute, bits, n, k, 0)) }
    }

    /// From E4M3 codes `[n, k]` and E8M0 scales `[n, ceil(k/32)]`.
    ///
    /// # Panics
    /// When a slice has another length.
    #[must_use]
    pub fn from_mxfp8(compute: &Compute, codes: &[u8], scales: &[u8], n: usize, k: usize) -> PackedWeight {
        let blocks = k.div_ceil(MXFP8_BLOCK);
        check("MXFP8 codes", codes.len(), n * k);
        check("MXFP8 scales", scales.len(), n * blocks);
        let codes = interleave(compute, codes, n, k, 0);
        let scales = interleave(compute, scales, n, blocks, 0);
        let extreme = (0..n.div_ceil(PANEL))
            .map(|panel| {
                codes[panel * k..(panel + 1) * k].as_flattened().iter().any(|&code| e4m3_is_nan(code))
                    || scales[panel * blocks..(panel + 1) * blocks]
                        .as_flattened()
                        .iter()
                        .any(|&s| s > MXFP8_LARGEST_PLAIN_SCALE)
            })
            .collect();
        PackedWeight { n, k, store: Store::Mxfp8 { codes, scales, extreme } }
    }

    /// From E2M1 codes `[n, ceil(k/2)]` bytes (even k in the low nibble), E4M3 scales `[n, ceil(k/16)]` and the decode
    /// scale of the whole matrix.
    ///
    /// # Panics
    /// When a slice has another length.
    #[must_use]
    pub fn from_nvfp4(
        compute: &Compute,
        codes: &[u8],
        scales: &[u8],
        outer_scale: f32,
        n: usize,
        k: usize,
    ) -> PackedWeight {
        let (row_bytes, blocks) = (k.div_ceil(2), k.div_ceil(NVFP4_BLOCK));
        check("NVFP4 code bytes", codes.len(), n * row_bytes);
        check("NVFP4 scales", scales.len(), n * blocks);
        let mut packed = vec![NibbleBlock([[0; 32]; 4]); n.div_ceil(PANEL) * blocks];
        if blocks > 0 {
            compute.pool().install(|| {
                packed
                    .par_chunks_mut(blocks)
                    .enumerate()
                    .for_each(|(panel, out)| pack_nibbles(codes, panel, n, k, out));
            });
        }
        let scales = interleave(compute, scales, n, blocks, 0);
        PackedWeight { n, k, store: Store::Nvfp4 { codes: packed, scales, outer_scale } }
    }

    /// From E4M3 codes `[n, k]` and FP32 decode scales `[ceil(n/scale_rows), ceil(k/128)]`: `scale_rows` is 128 for a
    /// weight in 128x128 blocks and 1 for an operand in 1x128 blocks (the gradient products).
    ///
    /// # Panics
    /// When a slice has another length or `scale_rows` is 0.
    #[must_use]
    pub fn from_fp8_block(
        compute: &Compute,
        codes: &[u8],
        scales: &[f32],
        scale_rows: usize,
        n: usize,
        k: usize,
    ) -> PackedWeight {
        let blocks = k.div_ceil(FP8_BLOCK);
        check("block-FP8 codes", codes.len(), n * k);
        check("block-FP8 scales", scales.len(), n.div_ceil(scale_rows) * blocks);
        let codes = interleave(compute, codes, n, k, 0);
        let mut lines = vec![Line::ZERO; n.div_ceil(PANEL) * blocks];
        for row in 0..n {
            for block in 0..blocks {
                lines[row / PANEL * blocks + block].0[row % PANEL] = scales[row / scale_rows * blocks + block];
            }
        }
        let extreme = (0..n.div_ceil(PANEL))
            .map(|panel| codes[panel * k..(panel + 1) * k].as_flattened().iter().any(|&code| e4m3_is_nan(code)))
            .collect();
        PackedWeight { n, k, store: Store::Fp8Block { codes, scales: lines, extreme } }
    }

    /// Output features (rows of the weight).
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features (columns of the weight).
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes held: codes and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::F32(lines) => size_of_val(&lines[..]),
            Store::Bf16(codes) => size_of_val(&codes[..]),
            Store::Mxfp8 { codes, scales, extreme } => {
                size_of_val(&codes[..]) + size_of_val(&scales[..]) + extreme.len()
            }
            Store::Nvfp4 { codes, scales, .. } => size_of_val(&codes[..]) + size_of_val(&scales[..]) + size_of::<f32>(),
            Store::Fp8Block { codes, scales, extreme } => {
                size_of_val(&codes[..]) + size_of_val(&scales[..]) + extreme.len()
            }
        }
    }
}

#[track_caller]
pub(crate) fn check(what: &str, got: usize, want: usize) {
    assert_eq!(got, want, "{what}: length differs from the shape");
}

/// `[n, k]` to `[panels, k][16]`, missing columns filled with `zero`.
fn interleave<T: Copy + Send + Sync>(compute: &Compute, rows: &[T], n: usize, k: usize, zero: T) -> Vec<[T; PANEL]> {
    let mut out = vec![[zero; PANEL]; n.div_ceil(PANEL) * k];
    if k > 0 {
        compute.pool().install(|| {
            out.par_chunks_mut(k).enumerate().for_each(|(panel, lines)| {
                for (lane, row) in rows.chunks_exact(k).skip(panel * PANEL).take(PANEL).enumerate() {
                    for (line, &value) in lines.iter_mut().zip(row) {
                        line[lane] = value;
                    }
                }
            });
        });
    }
    out
}

fn pack_nibbles(codes: &[u8], panel: usize, n: usize, k: usize, out: &mut [NibbleBlock]) {
    let row_bytes = k.div_ceil(2);
    for column in 0..PANEL.min(n - panel * PANEL) {
        let row = &codes[(panel * PANEL + column) * row_bytes..][..row_bytes];
        let code = |k_index: usize| {
            if k_index < k { row[k_index / 2] >> (4 * (k_index % 2)) & 0x0F } else { 0 }
        };
        for (block, nibbles) in out.iter_mut().enumerate() {
            for (quarter, bytes) in nibbles.0.iter_mut().enumerate() {
                let first = block * NVFP4_BLOCK + 4 * quarter;
                for i in 0..2 {
                    bytes[2 * column + i] = code(first + i) | code(first + 2 + i) << 4;
                }
            }
        }
    }
}
