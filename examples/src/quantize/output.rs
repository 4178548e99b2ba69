//! The tensors that one quantized matrix is written as.

use miles_core::format::layout::{ScaleLayout, swizzled_scales};
use miles_core::format::{Axis, BlockScales, FormatError, QuantizedTensor, TensorLayout, builtin_rule};
use miles_core::number::bf16;

use crate::OutputTensor;

/// `NAME/codes`, `NAME/scales`, `NAME/dequantized` and, where the format has them, `NAME/outer`. A matrix without rows or
/// columns has the same parts as any other, some of them empty.
pub(super) fn parts(
    name: &str,
    tensor: &QuantizedTensor,
    values: &[f32],
    layout: ScaleLayout,
) -> Result<Vec<(String, OutputTensor)>, FormatError> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let bits: Vec<u16> = values.iter().map(|&x| bf16::encode(x)).collect();
    let mut parts = vec![
        (format!("{name}/codes"), OutputTensor::u8(codes_shape(tensor)?, tensor.codes().to_vec())),
        (format!("{name}/scales"), scales(tensor, layout)?),
        (format!("{name}/dequantized"), OutputTensor::bf16(vec![rows, cols], &bits)),
    ];
    if layout_of(tensor, rows.max(SIDE), cols.max(SIDE))?.outer_len > 0 {
        parts.push((format!("{name}/outer"), OutputTensor::f32(vec![tensor.outer().len()], tensor.outer())));
    }
    Ok(parts)
}

/// Lines and bytes per line. What a line of a matrix without lines would have is asked of one that has some.
fn codes_shape(tensor: &QuantizedTensor) -> Result<Vec<usize>, FormatError> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let transposed = tensor.axis() == Axis::Column && tensor.format().family() != "mxfp8";
    Ok(match (if transposed { cols } else { rows }, transposed) {
        (0, true) => vec![0, layout_of(tensor, rows, SIDE)?.codes_bytes / SIDE],
        (0, false) => vec![0, layout_of(tensor, SIDE, cols)?.codes_bytes / SIDE],
        (lines, _) => vec![lines, tensor.codes().len() / lines],
    })
}

/// Sizes of the parts of another matrix that is quantized in the same way.
fn layout_of(tensor: &QuantizedTensor, rows: usize, cols: usize) -> Result<TensorLayout, FormatError> {
    match builtin_rule(tensor.format()) {
        Some(rule) => rule.layout(rows, cols, &tensor.spec()),
        None => Ok(*tensor.layout()),
    }
}

/// Compact scales as a matrix; scales in another layout as the buffer that a kernel reads.
fn scales(tensor: &QuantizedTensor, layout: ScaleLayout) -> Result<OutputTensor, FormatError> {
    let shape = vec![tensor.scale_rows(), tensor.scale_cols()];
    if layout != ScaleLayout::Linear {
        let buffer = swizzled_scales(tensor, layout)?;
        return Ok(OutputTensor::u8(vec![buffer.len()], buffer));
    }
    Ok(match tensor.scales() {
        BlockScales::U8(scales) => OutputTensor::u8(shape, scales.clone()),
        BlockScales::F32(scales) => OutputTensor::f32(shape, scales),
    })
}

/// A side that every format can have: a multiple of every block.
const SIDE: usize = 128;
