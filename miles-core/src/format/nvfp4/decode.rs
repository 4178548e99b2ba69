//! From codes and scales back to values.
//!
//! | function | of a rotated variant | outer scale |
//! |---|---|---|
//! | [`FormatRule::dequantize`](crate::format::FormatRule::dequantize) | values of the source: rotated back | yes |
//! | [`Nvfp4::dequantize_operand`] | values that a product multiplies: rotated | yes |
//! | [`dequantize_without_outer`] | the same | no |
//!
//! Without a rotation the first two are one.

use super::shards::LineShards;
use super::{BLOCK, DecodeOrder, Nvfp4};
use crate::format::lines::transpose;
use crate::format::rule::check_format;
use crate::format::{Axis, FormatError, FormatId, QuantizedTensor};
use crate::number::{e2m1, e4m3};

/// Code times block scale for every element, `[rows, cols]`, without the outer scale: always exact in BF16.
///
/// These are the operands of a BF16 matrix multiplication that computes NVFP4 products exactly and applies the outer
/// scales to its result. Of a rotated variant they are the rotated values: multiply them with the rotated other operand.
///
/// # Errors
/// [`FormatError::FormatMismatch`] when `tensor` is no variant of `nvfp4`.
pub fn dequantize_without_outer(tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
    if Nvfp4::of(tensor.format()).is_none() {
        check_format(&FormatId::nvfp4(), tensor.format())?;
    }
    let lines = decode_blocks(tensor, |_, scale, code| code * scale);
    Ok(in_source_orientation(tensor, lines))
}

impl Nvfp4 {
    /// The values that a matrix multiplication reads, `[rows, cols]` in the orientation of the source: those of
    /// [`dequantize`](crate::format::FormatRule::dequantize), but not rotated back.
    ///
    /// # Errors
    /// [`FormatError::FormatMismatch`] when `tensor` is of another format.
    pub fn dequantize_operand(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        Ok(in_source_orientation(tensor, self.decode_lines(tensor)?))
    }

    /// The values of the source.
    pub(super) fn decode_source(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        let mut lines = self.decode_lines(tensor)?;
        if let Some(hadamard) = self.hadamard {
            // Lines are whole blocks, so blocks do not straddle them.
            hadamard.inverse(&mut lines);
        }
        Ok(in_source_orientation(tensor, lines))
    }

    fn decode_lines(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        check_format(&self.name(), tensor.format())?;
        if self.decode_order == DecodeOrder::Scale || tensor.amax().is_empty() {
            let outer = tensor.outer();
            return Ok(decode_blocks(tensor, |at, scale, code| code * scale * outer[at]));
        }
        let amax = tensor.amax();
        let reciprocal = 1.0 / self.largest_product();
        Ok(decode_blocks(tensor, |at, scale, code| code * (scale * amax[at] * reciprocal)))
    }
}

/// `value(index of the outer scale, block scale, code value)` of every element, line by line.
fn decode_blocks(tensor: &QuantizedTensor, value: impl Fn(usize, f32, f32) -> f32) -> Vec<f32> {
    let shards = LineShards::new(tensor.axis(), tensor.partition(), tensor.rows(), tensor.cols());
    let length = shards.length;
    let scales = tensor.scales().as_u8().unwrap_or_default();
    let mut values = Vec::with_capacity(shards.lines * length);
    let lines = tensor.codes().chunks_exact(length.div_ceil(2).max(1));
    for (line, (codes, line_scales)) in lines.zip(scales.chunks_exact(tensor.scale_cols().max(1))).enumerate() {
        for (block, (packed, &scale)) in codes.chunks(BLOCK / 2).zip(line_scales).enumerate() {
            let at = shards.outer_index(tensor.scope(), line, shards.segment_of(block));
            let scale = e4m3::decode(scale);
            values.extend(packed.iter().flat_map(|&byte| e2m1::decode_pair(byte)).map(|code| value(at, scale, code)));
        }
        // A column of an odd number of tokens ends in half a byte of padding.
        values.truncate((line + 1) * length);
    }
    values
}

fn in_source_orientation(tensor: &QuantizedTensor, lines: Vec<f32>) -> Vec<f32> {
    match tensor.axis() {
        Axis::Row => lines,
        Axis::Column => transpose(&lines, tensor.cols(), tensor.rows()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reciprocals_of_the_largest_products_are_those_of_the_contract() {
        assert_eq!((1.0_f32 / 2688.0).to_bits(), 0x39C3_0C31);
        assert_eq!((1.0_f32 / 1536.0).to_bits(), 0x3A2A_AAAB);
        assert_eq!(Nvfp4::DEFAULT.largest_product(), 2688.0);
    }
}
