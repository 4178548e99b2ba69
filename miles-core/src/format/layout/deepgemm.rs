//! DeepGEMM's layouts of block scales.
//!
//! Both are transposed (rows of the operand are adjacent) with rows padded to 16 bytes:
//!
//! ```text
//! SM90    f32    [blocks, rows rounded up to 4]
//! SM100   u32    [ceil(blocks / 4), rows rounded up to 4]   E8M0 bytes of four consecutive blocks, the first lowest
//! ```
//!
//! SM100 wants one scale per row: [`repeat_tile_rows`] repeats those of 128x128 tiles. On SM90 tile scales stay compact.

use super::{GemmScales, check_extent, check_length};
use crate::format::FormatError;
use crate::number::e8m0;

/// Where DeepGEMM wants the scale of (row, block).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeepGemmScales {
    /// F32, for Hopper.
    Sm90,
    /// Four E8M0 bytes to a word, for Blackwell.
    Sm100,
}

impl DeepGemmScales {
    /// 32-bit words of the buffer for a `[rows, blocks]` scale matrix, padding included.
    #[must_use]
    pub const fn buffer_len(self, rows: usize, blocks: usize) -> usize {
        match self {
            Self::Sm90 => GemmScales::Block1x128.buffer_len(rows, blocks),
            Self::Sm100 => blocks.div_ceil(4) * rows.next_multiple_of(4),
        }
    }

    /// Lays row-major `[rows, blocks]` F32 scales out as 32-bit words, padding with zeros.
    ///
    /// # Errors
    /// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`](crate::format::MAX_EXTENT) rows or blocks;
    /// [`FormatError::ScaleBufferLength`] when `scales` is not `rows * blocks` long; for SM100
    /// [`FormatError::NotAPowerOfTwo`] when a scale is not a power of two that E8M0 has.
    pub fn arrange(self, scales: &[f32], rows: usize, blocks: usize) -> Result<Vec<u32>, FormatError> {
        match self {
            Self::Sm90 => {
                let words = GemmScales::Block1x128.arrange(scales, rows, blocks)?;
                Ok(words.into_iter().map(f32::to_bits).collect())
            }
            Self::Sm100 => pack(&exponent_bytes(scales, blocks)?, rows, blocks),
        }
    }

    /// The row-major `[rows, blocks]` F32 scales back; whatever stands in the padding is ignored.
    ///
    /// # Errors
    /// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`](crate::format::MAX_EXTENT) rows or blocks;
    /// [`FormatError::ScaleBufferLength`] when `words` has not [`buffer_len`](Self::buffer_len) elements.
    pub fn compact(self, words: &[u32], rows: usize, blocks: usize) -> Result<Vec<f32>, FormatError> {
        match self {
            Self::Sm90 => {
                let scales: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
                GemmScales::Block1x128.compact(&scales, rows, blocks)
            }
            Self::Sm100 => {
                check_length("DeepGEMM SM100", rows, blocks, || self.buffer_len(rows, blocks), words.len())?;
                let byte = |index| {
                    let (word, shift) = place(index / blocks, index % blocks, rows);
                    (words[word] >> shift) as u8
                };
                Ok(exponent_values(&(0..rows * blocks).map(byte).collect::<Vec<_>>()))
            }
        }
    }
}

/// The E8M0 bytes of power-of-two scales, row-major with `blocks` per row.
///
/// # Errors
/// [`FormatError::NotAPowerOfTwo`].
pub fn exponent_bytes(scales: &[f32], blocks: usize) -> Result<Vec<u8>, FormatError> {
    let byte = |(index, &scale): (usize, &f32)| {
        let byte = e8m0::encode_ceil(scale);
        if e8m0::decode(byte) == scale {
            return Ok(byte);
        }
        let blocks = blocks.max(1);
        Err(FormatError::NotAPowerOfTwo { row: index / blocks, block: index % blocks, value: scale })
    };
    scales.iter().enumerate().map(byte).collect()
}

/// The values of E8M0 bytes.
#[must_use]
pub fn exponent_values(bytes: &[u8]) -> Vec<f32> {
    bytes.iter().map(|&byte| e8m0::decode(byte)).collect()
}

/// Scales of `[ceil(rows / 128), blocks]` tiles, each repeated for every row of its tile: `[rows, blocks]`.
///
/// # Errors
/// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`](crate::format::MAX_EXTENT) rows or blocks;
/// [`FormatError::ScaleBufferLength`] when there is not one scale per tile.
pub fn repeat_tile_rows<T: Copy>(scales: &[T], rows: usize, blocks: usize) -> Result<Vec<T>, FormatError> {
    let tile_rows = rows.div_ceil(TILE_ROWS);
    check_extent("compact", rows, blocks)?;
    check_length("compact", tile_rows, blocks, || tile_rows * blocks, scales.len())?;
    // By element and not by row: rows without blocks cost nothing, however many are claimed.
    let scale = |index: usize| scales[index / blocks / TILE_ROWS * blocks + index % blocks];
    Ok((0..rows * blocks).map(scale).collect())
}

const TILE_ROWS: usize = 128;

fn pack(bytes: &[u8], rows: usize, blocks: usize) -> Result<Vec<u32>, FormatError> {
    check_length("compact", rows, blocks, || rows * blocks, bytes.len())?;
    let mut words = vec![0; DeepGemmScales::Sm100.buffer_len(rows, blocks)];
    for (index, &byte) in bytes.iter().enumerate() {
        let (word, shift) = place(index / blocks, index % blocks, rows);
        words[word] |= u32::from(byte) << shift;
    }
    Ok(words)
}

/// The word of an SM100 buffer, and the lowest bit of the byte in it.
const fn place(row: usize, block: usize, rows: usize) -> (usize, usize) {
    (block / 4 * rows.next_multiple_of(4) + row, block % 4 * 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::MAX_EXTENT;

    #[test]
    fn rows_without_blocks_cost_nothing_and_no_more_rows_are_taken_than_a_tensor_has() {
        assert_eq!(repeat_tile_rows::<u8>(&[], MAX_EXTENT, 0), Ok(Vec::new()));
        // Their tiles alone would be few enough.
        let limit = MAX_EXTENT;
        for rows in [MAX_EXTENT + 1, MAX_EXTENT * TILE_ROWS, usize::MAX] {
            let refused = FormatError::ScaleExtent { layout: "compact", rows, blocks: 0, limit };
            assert_eq!(repeat_tile_rows::<u8>(&[], rows, 0), Err(refused));
        }
    }
}
