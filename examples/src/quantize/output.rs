//! The tensors that one quantized matrix is written as.

use miles_core::format::layout::{ScaleLayout, swizzled_scales};
use miles_core::format::{Axis, BlockScales, FormatError, QuantizedTensor};
use miles_core::number::bf16;

use crate::OutputTensor;

/// `NAME/codes`, `NAME/scales`, `NAME/dequantized` and, where the format has them, `NAME/outer`.
pub(super) fn parts(
    name: &str,
    tensor: &QuantizedTensor,
    values: &[f32],
    layout: ScaleLayout,
) -> Result<Vec<(String, OutputTensor)>, FormatError> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let transposed = tensor.axis() == Axis::Column && tensor.format().family() != "mxfp8";
    let lines = if transposed { cols } else { rows };
    let codes_shape = vec![lines, tensor.codes().len() / lines.max(1)];
    let bits: Vec<u16> = values.iter().map(|&x| bf16::encode(x)).collect();
    let mut parts = vec![
        (format!("{name}/codes"), OutputTensor::u8(codes_shape, tensor.codes().to_vec())),
        (format!("{name}/scales"), scales(tensor, layout)?),
        (format!("{name}/dequantized"), OutputTensor::bf16(vec![rows, cols], &bits)),
    ];
    if !tensor.outer().is_empty() {
        parts.push((format!("{name}/outer"), OutputTensor::f32(vec![tensor.outer().len()], tensor.outer())));
    }
    Ok(parts)
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
