//! Scales of a whole quantized tensor in a kernel's layout.

use super::super::lines::transpose;
use super::ScaleLayout;
use crate::format::{Axis, BlockScales, FormatError, QuantizedTensor, ScaleKind};

/// The one-byte block scales of `tensor` as a `layout` buffer, padding zero.
///
/// Kernels want one row of scales per line that blocks run along. A column copy of `mxfp8` keeps its scales
/// `[blocks, cols]`, so they are transposed on the way; the other formats store column copies transposed already.
///
/// # Errors
/// [`FormatError::LayoutOfF32`] when the format's block scales are not bytes.
pub fn swizzled_scales(tensor: &QuantizedTensor, layout: ScaleLayout) -> Result<Vec<u8>, FormatError> {
    let scales = bytes(tensor, layout)?;
    let (rows, blocks) = (tensor.scale_rows(), tensor.scale_cols());
    if by_column(tensor) {
        return layout.swizzle(&transpose(scales, rows, blocks), blocks, rows);
    }
    layout.swizzle(scales, rows, blocks)
}

/// The scales in the order of [`QuantizedTensor::scales`], from a buffer as [`swizzled_scales`] writes it for a tensor
/// of the same format and shape as `like`; whatever stands in the padding is ignored.
///
/// # Errors
/// [`FormatError::LayoutOfF32`] as above; [`FormatError::ScaleBufferLength`] when `buffer` is not as long as the layout.
pub fn canonical_scales(like: &QuantizedTensor, layout: ScaleLayout, buffer: &[u8]) -> Result<Vec<u8>, FormatError> {
    bytes(like, layout)?;
    let (rows, blocks) = (like.scale_rows(), like.scale_cols());
    if by_column(like) {
        return Ok(transpose(&layout.unswizzle(buffer, blocks, rows)?, blocks, rows));
    }
    layout.unswizzle(buffer, rows, blocks)
}

/// Whether the scale matrix has a column, and not a row, per quantized line.
fn by_column(tensor: &QuantizedTensor) -> bool {
    tensor.axis() == Axis::Column && tensor.layout().scale_kind == ScaleKind::E8m0
}

fn bytes(tensor: &QuantizedTensor, layout: ScaleLayout) -> Result<&[u8], FormatError> {
    match tensor.scales() {
        BlockScales::U8(scales) => Ok(scales),
        BlockScales::F32(_) => Err(FormatError::LayoutOfF32 { format: tensor.format().clone(), layout: layout.name() }),
    }
}
