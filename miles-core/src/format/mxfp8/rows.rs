//! The loops of MXFP8: rows in 1x32 blocks, and groups of 32 rows in columns or tiles.

use super::super::amax::raise_magnitudes;
use super::super::{Axis, abs_max};
use super::{BLOCK, Mxfp8, ScaleRounding, block_scale};
use crate::number::{e4m3, e8m0};

/// Quantizes one row by the default rounding: one code per value, one E8M0 byte per started block.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub fn quantize_row(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    row_blocks(block_scale, values, codes, scales);
}

/// Quantizes up to 32 rows of `cols` values by the default rounding as one block per column: codes `[rows, cols]`, one
/// E8M0 byte per column.
///
/// # Panics
/// When there are more than 32 rows, or `codes` or `scales` has not exactly the length that `values` needs.
pub fn quantize_row_group_by_column(values: &[f32], cols: usize, codes: &mut [u8], scales: &mut [u8]) {
    Mxfp8::DEFAULT.quantize_row_group_by_column(values, cols, codes, scales);
}

impl Mxfp8 {
    /// Quantizes one row in 1x32 blocks: one code per value, one E8M0 byte per started block.
    ///
    /// # Panics
    /// When `codes` or `scales` has not exactly the length that `values` needs.
    pub fn quantize_row(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        match self.scale_rounding {
            ScaleRounding::Up => quantize_row(values, codes, scales),
            other => row_blocks(|amax| other.block_scale(amax), values, codes, scales),
        }
    }

    /// Quantizes up to 32 rows of `cols` values as one block per column: codes `[rows, cols]`, one E8M0 byte per column.
    ///
    /// # Panics
    /// When there are more than 32 rows, or `codes` or `scales` has not exactly the length that `values` needs.
    pub fn quantize_row_group_by_column(&self, values: &[f32], cols: usize, codes: &mut [u8], scales: &mut [u8]) {
        assert_eq!(scales.len(), cols, "one MXFP8 scale per column");
        self.quantize_row_group(values, cols, codes, scales, 1);
    }

    /// Quantizes up to 32 rows of `cols` values as one 32x32 tile per 32 columns: codes `[rows, cols]`, one E8M0 byte
    /// per started tile.
    ///
    /// # Panics
    /// When there are more than 32 rows, or `codes` or `scales` has not exactly the length that `values` needs.
    pub fn quantize_tile_row(&self, values: &[f32], cols: usize, codes: &mut [u8], scales: &mut [u8]) {
        assert_eq!(scales.len(), cols.div_ceil(BLOCK), "one MXFP8 scale per tile");
        self.quantize_row_group(values, cols, codes, scales, BLOCK);
    }

    /// One scale for each `width` columns of a group of rows.
    fn quantize_row_group(&self, values: &[f32], cols: usize, codes: &mut [u8], scales: &mut [u8], width: usize) {
        assert!(values.len() <= BLOCK * cols, "one MXFP8 block has at most 32 rows");
        assert_eq!(codes.len(), values.len(), "one MXFP8 code per value");
        if cols == 0 {
            return;
        }
        let mut maxima = vec![0; cols];
        values.chunks_exact(cols).for_each(|row| raise_magnitudes(&mut maxima, row));
        let mut reciprocals = vec![0.0; cols];
        let blocks = maxima.chunks(width).zip(reciprocals.chunks_mut(width));
        for (scale, (maxima, reciprocals)) in scales.iter_mut().zip(blocks) {
            let amax = maxima.iter().fold(0, |largest: i32, &bits| largest.max(bits));
            *scale = self.scale_rounding.block_scale(f32::from_bits(amax as u32));
            reciprocals.fill(e8m0::decode_reciprocal(*scale));
        }
        for (row, row_codes) in values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols)) {
            for ((code, &x), &reciprocal) in row_codes.iter_mut().zip(row).zip(&reciprocals) {
                *code = e4m3::encode(x * reciprocal);
            }
        }
    }

    /// Codes and scales of a tiled weight; each tile's scale stands once per row (or column) of the tile.
    pub(super) fn quantize_tiles(&self, values: &[f32], cols: usize, axis: Axis, codes: &mut [u8], scales: &mut [u8]) {
        let group = (BLOCK * cols).max(1);
        let (tile_cols, scale_cols) =
            (cols.div_ceil(BLOCK), if axis == Axis::Row { cols.div_ceil(BLOCK) } else { cols });
        let mut tile_scales = vec![0; tile_cols];
        let group_scales = match axis {
            Axis::Row => BLOCK * scale_cols,
            Axis::Column => scale_cols,
        };
        let groups = values.chunks(group).zip(codes.chunks_mut(group));
        for ((values, codes), scales) in groups.zip(scales.chunks_mut(group_scales.max(1))) {
            self.quantize_tile_row(values, cols, codes, &mut tile_scales);
            match axis {
                Axis::Row => scales.chunks_mut(tile_cols.max(1)).for_each(|row| row.copy_from_slice(&tile_scales)),
                Axis::Column => scales.chunks_mut(BLOCK).zip(&tile_scales).for_each(|(row, &scale)| row.fill(scale)),
            }
        }
    }
}

#[inline]
fn row_blocks(scale_of: impl Fn(f32) -> u8, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    assert_eq!(codes.len(), values.len(), "one MXFP8 code per value");
    assert_eq!(scales.len(), values.len().div_ceil(BLOCK), "one MXFP8 scale per block of 32");
    let (blocks, tail) = values.as_chunks::<BLOCK>();
    let (code_blocks, code_tail) = codes.as_chunks_mut::<BLOCK>();
    for ((block, block_codes), scale) in blocks.iter().zip(code_blocks).zip(scales.iter_mut()) {
        *scale = scale_of(abs_max(block));
        let reciprocal = e8m0::decode_reciprocal(*scale);
        *block_codes = block.map(|x| e4m3::encode(x * reciprocal));
    }
    if let Some(scale) = scales.last_mut().filter(|_| !tail.is_empty()) {
        *scale = scale_of(abs_max(tail));
        let reciprocal = e8m0::decode_reciprocal(*scale);
        for (code, &x) in code_tail.iter_mut().zip(tail) {
            *code = e4m3::encode(x * reciprocal);
        }
    }
}
