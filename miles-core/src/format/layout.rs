//! Layouts in which matrix-multiplication libraries want block scales, and the way back.
//!
//! A quantized tensor keeps its scales compact and row-major. Blackwell's tensor cores read one-byte scales in tiles
//! ([`ScaleLayout`]); cuBLAS reads the FP32 scales of block FP8 transposed or with padded rows ([`GemmScales`]), DeepGEMM
//! transposed, as FP32 or as packed exponents ([`DeepGemmScales`]). Padding is written as zero and ignored when read.
//! Canonical bytes and digests never depend on any of this.
//!
//! ```text
//! 128x4 tile, 512 bytes:  offset = (r % 32) * 16 + (r % 128 / 32) * 4 + c % 4
//! 8x4 tile, 32 bytes:     offset = (r % 8) * 4 + c % 4
//! tiles are row-major over ceil(rows / tile rows) x ceil(blocks / 4)
//! ```

mod deepgemm;
mod tensor;

use super::{FormatError, MAX_EXTENT};

pub use deepgemm::{DeepGemmScales, exponent_bytes, exponent_values, repeat_tile_rows};
pub use tensor::{canonical_scales, swizzled_scales};

/// Where the one-byte scale of (row, block) stands in a buffer.
///
/// Column copies of `mxfp8` are laid out by the transposed scale matrix: row = column of the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleLayout {
    /// Row-major, compact.
    Linear,
    /// Row-major with rows padded to a multiple of 128 and blocks to one of 4: TransformerEngine's allocation.
    PaddedLinear,
    /// Tiles of 128 rows by 4 blocks: cuBLASLt, `tcgen05`, CUTLASS.
    Tile128x4,
    /// Tiles of 8 rows by 4 blocks: small batches in FlashInfer and TensorRT-LLM.
    Tile8x4,
}

impl ScaleLayout {
    /// Bytes of the buffer for a `[rows, blocks]` scale matrix, padding included.
    #[must_use]
    pub const fn buffer_bytes(self, rows: usize, blocks: usize) -> usize {
        match self {
            Self::Linear => rows * blocks,
            Self::PaddedLinear | Self::Tile128x4 => rows.next_multiple_of(128) * blocks.next_multiple_of(4),
            Self::Tile8x4 => rows.next_multiple_of(8) * blocks.next_multiple_of(4),
        }
    }

    /// Offset of the scale of (`row`, `block`) when a row has `blocks` of them.
    #[must_use]
    pub const fn offset(self, row: usize, block: usize, blocks: usize) -> usize {
        let tiles_per_row = blocks.div_ceil(4);
        match self {
            Self::Linear => row * blocks + block,
            Self::PaddedLinear => row * blocks.next_multiple_of(4) + block,
            Self::Tile128x4 => {
                let tile = row / 128 * tiles_per_row + block / 4;
                tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4
            }
            Self::Tile8x4 => (row / 8 * tiles_per_row + block / 4) * 32 + row % 8 * 4 + block % 4,
        }
    }

    /// Lays a row-major `[rows, blocks]` scale matrix out, padding with zeros.
    ///
    /// # Errors
    /// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`] rows or blocks;
    /// [`FormatError::ScaleBufferLength`] when `scales` is not `rows * blocks` long.
    pub fn swizzle(self, scales: &[u8], rows: usize, blocks: usize) -> Result<Vec<u8>, FormatError> {
        check_length(Self::Linear.name(), rows, blocks, || rows * blocks, scales.len())?;
        let mut buffer = vec![0; self.buffer_bytes(rows, blocks)];
        for (index, &scale) in scales.iter().enumerate() {
            buffer[self.offset(index / blocks, index % blocks, blocks)] = scale;
        }
        Ok(buffer)
    }

    /// Reads the row-major `[rows, blocks]` scale matrix back; whatever stands in the padding is ignored.
    ///
    /// # Errors
    /// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`] rows or blocks;
    /// [`FormatError::ScaleBufferLength`] when `buffer` has not [`buffer_bytes`](Self::buffer_bytes) bytes.
    pub fn unswizzle(self, buffer: &[u8], rows: usize, blocks: usize) -> Result<Vec<u8>, FormatError> {
        check_length(self.name(), rows, blocks, || self.buffer_bytes(rows, blocks), buffer.len())?;
        Ok((0..rows * blocks).map(|index| buffer[self.offset(index / blocks, index % blocks, blocks)]).collect())
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::PaddedLinear => "padded linear",
            Self::Tile128x4 => "128x4",
            Self::Tile8x4 => "8x4",
        }
    }
}

/// Where cuBLAS wants the FP32 scale of (row, block) of block FP8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmScales {
    /// 1x128 blocks: transposed to `[blocks, rows rounded up to 4]`.
    Block1x128,
    /// 128x128 tiles: `[tile rows, tile columns rounded up to 4]`.
    Tile128x128,
}

impl GemmScales {
    /// Elements of the buffer for a `[rows, blocks]` scale matrix, padding included.
    #[must_use]
    pub const fn buffer_len(self, rows: usize, blocks: usize) -> usize {
        match self {
            Self::Block1x128 => blocks * rows.next_multiple_of(4),
            Self::Tile128x128 => rows * blocks.next_multiple_of(4),
        }
    }

    /// Offset of the scale of (`row`, `block`) of a `[rows, blocks]` scale matrix.
    #[must_use]
    pub const fn offset(self, row: usize, block: usize, rows: usize, blocks: usize) -> usize {
        match self {
            Self::Block1x128 => block * rows.next_multiple_of(4) + row,
            Self::Tile128x128 => row * blocks.next_multiple_of(4) + block,
        }
    }

    /// Lays a row-major `[rows, blocks]` scale matrix out, padding with zeros.
    ///
    /// # Errors
    /// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`] rows or blocks;
    /// [`FormatError::ScaleBufferLength`] when `scales` is not `rows * blocks` long.
    pub fn arrange(self, scales: &[f32], rows: usize, blocks: usize) -> Result<Vec<f32>, FormatError> {
        check_length("compact", rows, blocks, || rows * blocks, scales.len())?;
        let mut buffer = vec![0.0; self.buffer_len(rows, blocks)];
        for (index, &scale) in scales.iter().enumerate() {
            buffer[self.offset(index / blocks, index % blocks, rows, blocks)] = scale;
        }
        Ok(buffer)
    }

    /// Reads the row-major `[rows, blocks]` scale matrix back; whatever stands in the padding is ignored.
    ///
    /// # Errors
    /// [`FormatError::ScaleExtent`] beyond [`MAX_EXTENT`] rows or blocks;
    /// [`FormatError::ScaleBufferLength`] when `buffer` has not [`buffer_len`](Self::buffer_len) elements.
    pub fn compact(self, buffer: &[f32], rows: usize, blocks: usize) -> Result<Vec<f32>, FormatError> {
        check_length(self.name(), rows, blocks, || self.buffer_len(rows, blocks), buffer.len())?;
        Ok((0..rows * blocks).map(|index| buffer[self.offset(index / blocks, index % blocks, rows, blocks)]).collect())
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Block1x128 => "1x128 GEMM",
            Self::Tile128x128 => "128x128 GEMM",
        }
    }
}

/// Refuses sizes whose product could not be addressed, before anything is multiplied, and a buffer of another length.
fn check_length(
    layout: &'static str,
    rows: usize,
    blocks: usize,
    expected: impl FnOnce() -> usize,
    found: usize,
) -> Result<(), FormatError> {
    check_extent(layout, rows, blocks)?;
    match expected() {
        expected if expected == found => Ok(()),
        expected => Err(FormatError::ScaleBufferLength { layout, rows, blocks, expected, found }),
    }
}

fn check_extent(layout: &'static str, rows: usize, blocks: usize) -> Result<(), FormatError> {
    if rows <= MAX_EXTENT && blocks <= MAX_EXTENT {
        return Ok(());
    }
    Err(FormatError::ScaleExtent { layout, rows, blocks, limit: MAX_EXTENT })
}
