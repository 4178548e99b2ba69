//! Packed weights taken apart again: what the kernels multiply, in the order of the tensor that it was packed from.
//!
//! Nothing computes with the result. It is the evidence of a hand-off: the operand's own memory, hashed.

use super::pack::{FP8_BLOCK, MXFP8_BLOCK, NVFP4_BLOCK, NibbleBlock, PackedWeight, Store};
use super::split::PANEL;

/// The contents of a packed weight `[n, k]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Unpacked {
    /// Values `[n, k]`.
    F32(Vec<f32>),
    /// Bits `[n, k]`.
    Bf16(Vec<u16>),
    /// Codes and one-byte scales: MXFP8 `[n, k]` and `[n, ceil(k/32)]`.
    Mxfp8 {
        /// E4M3 codes.
        codes: Vec<u8>,
        /// E8M0 scales.
        scales: Vec<u8>,
    },
    /// NVFP4 `[n, ceil(k/2)]` bytes and `[n, ceil(k/16)]` scales.
    Nvfp4 {
        /// E2M1 codes, even k in the low nibble.
        codes: Vec<u8>,
        /// E4M3 scales.
        scales: Vec<u8>,
        /// Decode scale of the matrix.
        outer_scale: f32,
    },
    /// Block FP8 `[n, k]` and one decode scale per row and block `[n, ceil(k/128)]`.
    Fp8Block {
        /// E4M3 codes.
        codes: Vec<u8>,
        /// Decode scales, repeated over the rows of a tile.
        scales: Vec<f32>,
    },
}

impl PackedWeight {
    /// Takes the weight apart.
    #[must_use]
    pub fn unpack(&self) -> Unpacked {
        let (n, k) = (self.n(), self.k());
        match &self.store {
            Store::F32(lines) => Unpacked::F32(rows(n, k, |panel_line, lane| lines[panel_line].0[lane])),
            Store::Bf16(lines) => Unpacked::Bf16(rows(n, k, |panel_line, lane| lines[panel_line][lane])),
            Store::Mxfp8 { codes, scales, .. } => Unpacked::Mxfp8 {
                codes: rows(n, k, |panel_line, lane| codes[panel_line][lane]),
                scales: rows(n, k.div_ceil(MXFP8_BLOCK), |panel_line, lane| scales[panel_line][lane]),
            },
            Store::Nvfp4 { codes, scales, outer_scale } => Unpacked::Nvfp4 {
                codes: nibble_rows(codes, n, k),
                scales: rows(n, k.div_ceil(NVFP4_BLOCK), |panel_line, lane| scales[panel_line][lane]),
                outer_scale: *outer_scale,
            },
            Store::Fp8Block { codes, scales, .. } => Unpacked::Fp8Block {
                codes: rows(n, k, |panel_line, lane| codes[panel_line][lane]),
                scales: rows(n, k.div_ceil(FP8_BLOCK), |panel_line, lane| scales[panel_line].0[lane]),
            },
        }
    }
}

/// `[n, width]` from panels: `at(panel * width + column, lane)`.
fn rows<T>(n: usize, width: usize, at: impl Fn(usize, usize) -> T) -> Vec<T> {
    let at = &at;
    (0..n).flat_map(|row| (0..width).map(move |column| at(row / PANEL * width + column, row % PANEL))).collect()
}

fn nibble_rows(blocks: &[NibbleBlock], n: usize, k: usize) -> Vec<u8> {
    let per_row = k.div_ceil(NVFP4_BLOCK);
    let code = |row: usize, column: usize| {
        if column >= k {
            return 0;
        }
        let nibbles = &blocks[row / PANEL * per_row + column / NVFP4_BLOCK].0[column % NVFP4_BLOCK / 4];
        // Within a quarter of four k, byte i holds k = i in the low nibble and k = i + 2 in the high one.
        let (i, high) = (column % 2, column % 4 / 2);
        nibbles[2 * (row % PANEL) + i] >> (4 * high) & 0x0F
    };
    let code = &code;
    (0..n)
        .flat_map(|row| (0..k.div_ceil(2)).map(move |byte| code(row, 2 * byte) | code(row, 2 * byte + 1) << 4))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::kernel::Compute;

    /// Bytes that differ from place to place.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i.wrapping_mul(0x9E37_79B1) >> 11) as u8).collect()
    }

    #[test]
    fn unpacking_is_the_inverse_of_packing_for_every_shape() {
        let compute = Compute::new(NonZeroUsize::new(2).unwrap()).unwrap();
        for (n, k) in [(1, 1), (1, 2), (16, 16), (17, 34), (3, 130), (33, 258), (0, 32), (5, 0), (40, 31)] {
            let codes = bytes(n * k);
            let scales = bytes(n * k.div_ceil(MXFP8_BLOCK));
            let packed = PackedWeight::from_mxfp8(&compute, &codes, &scales, n, k);
            assert_eq!(packed.unpack(), Unpacked::Mxfp8 { codes: codes.clone(), scales }, "{n} x {k}");

            let mut nibbles = bytes(n * k.div_ceil(2));
            if k % 2 == 1 {
                nibbles.chunks_mut(k.div_ceil(2)).for_each(|row| *row.last_mut().unwrap() &= 0x0F);
            }
            let scales = bytes(n * k.div_ceil(NVFP4_BLOCK));
            let packed = PackedWeight::from_nvfp4(&compute, &nibbles, &scales, 0.25, n, k);
            assert_eq!(packed.unpack(), Unpacked::Nvfp4 { codes: nibbles, scales, outer_scale: 0.25 }, "{n} x {k}");

            let scales: Vec<f32> = (0..n * k.div_ceil(FP8_BLOCK)).map(|i| i as f32 + 0.5).collect();
            let packed = PackedWeight::from_fp8_block(&compute, &codes, &scales, 1, n, k);
            assert_eq!(packed.unpack(), Unpacked::Fp8Block { codes, scales }, "{n} x {k}");

            let bits: Vec<u16> = (0..n * k).map(|i| i as u16 ^ 0x3C00).collect();
            assert_eq!(PackedWeight::from_bf16(&compute, &bits, n, k).unpack(), Unpacked::Bf16(bits), "{n} x {k}");
            let values: Vec<f32> = (0..n * k).map(|i| i as f32 - 7.0).collect();
            assert_eq!(PackedWeight::from_f32(&compute, &values, n, k).unpack(), Unpacked::F32(values), "{n} x {k}");
        }
    }
}
