//! A number format of your own through the whole loop: MXFP6, six bits per element.
//!
//! ```console
//! cargo run --release --example custom_format
//! cargo test -p miles-examples --features conformance --example custom_format     # its conformance tests
//! ```
//!
//! E3M2 elements (1 sign, 3 exponent, 2 mantissa bits; largest 28, smallest 0.0625) in blocks of 32 with one E8M0 scale,
//! rounded up so that nothing saturates: `x` becomes `code * 2^(E - 127)`. Four codes fill three bytes; a line that ends
//! within a byte is padded with zero bits. The CPU backend has no kernel for the format, so it multiplies the decoded
//! values (`Emulated` in its capabilities). Checkpoints have no layout for it either: the policy is exported as BF16.
//!
//! Runs the quickstart's model for a few steps with the routed experts in MXFP6, once with the rule passed to the backend
//! as a value and once found by its registered name, and shows that both end in the same policy.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use miles_backend_cpu_ref::CpuRef;
use miles_core::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind,
    Source, TensorLayout, abs_max, check_joint_widths,
};
use miles_core::number::e8m0;
use miles_core::plugin::Backend;
use miles_core::register_format;
use miles_examples::training::{BothWaysArgs, both_ways};

/// The name in configs, ledgers and digests.
const ID: FormatId = FormatId::from_static("mxfp6-e3m2");
/// Elements per block.
const BLOCK: usize = 32;
/// The largest E3M2 number.
const LARGEST: f32 = 28.0;

/// MXFP6 with E3M2 elements.
#[derive(Clone, Copy, Debug, Default)]
struct Mxfp6;

/// The nearest E3M2 code, ties to even, saturating; NaN becomes the largest number.
fn encode(x: f32) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 5;
    let magnitude = x.abs().min(LARGEST);
    if magnitude.is_nan() {
        return 0x1F;
    }
    // Exponents below -2 share the subnormal step of 2^-4.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-2);
    let steps = (magnitude * 2.0_f32.powi(2 - exponent)).round_ties_even() as u8;
    // A subnormal has fewer than 4 steps and field 0; from field 1 on, 4 steps are the implicit bit. Rounding up to 8
    // carries into the next field by itself.
    sign | (((exponent + 2) as u8) << 2).wrapping_add(steps)
}

/// The value of an E3M2 code.
fn decode(code: u8) -> f32 {
    let (field, mantissa) = (i32::from(code >> 2 & 0x07), f32::from(code & 0x03));
    let magnitude = match field {
        0 => mantissa * 0.0625,
        _ => (4.0 + mantissa) * 2.0_f32.powi(field - 5),
    };
    if code & 0x20 == 0 { magnitude } else { -magnitude }
}

/// Bytes of a line of `length` codes.
fn line_bytes(length: usize) -> usize {
    (length * 6).div_ceil(8)
}

fn quantize_line(values: &[f32], codes: &mut Vec<u8>, scales: &mut Vec<u8>) {
    let mut line = Vec::with_capacity(values.len());
    for block in values.chunks(BLOCK) {
        let scale = e8m0::encode_ceil(abs_max(block) / LARGEST);
        let reciprocal = e8m0::decode_reciprocal(scale);
        scales.push(scale);
        line.extend(block.iter().map(|x| encode(x * reciprocal)));
    }
    for four in line.chunks(4) {
        let bits = four.iter().enumerate().fold(0_u32, |bits, (index, &code)| bits | u32::from(code) << (6 * index));
        codes.extend_from_slice(&bits.to_le_bytes()[..line_bytes(four.len())]);
    }
}

fn dequantize_line(codes: &[u8], scales: &[u8], length: usize, values: &mut Vec<f32>) {
    for index in 0..length {
        let quad = &codes[index / 4 * 3..codes.len().min(index / 4 * 3 + 3)];
        let bits = quad.iter().enumerate().fold(0_u32, |bits, (byte, &code)| bits | u32::from(code) << (8 * byte));
        let code = (bits >> (6 * (index % 4))) as u8 & 0x3F;
        values.push(decode(code) * e8m0::decode(scales[index / BLOCK]));
    }
}

/// Rows become columns.
fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|index| values[index % rows * cols + index / rows]).collect()
}

impl FormatRule for Mxfp6 {
    fn id(&self) -> FormatId {
        ID
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        if spec.format != format {
            return Err(FormatError::FormatMismatch { rule: format, requested: spec.format.clone() });
        }
        let (lines, length, block) = match spec.axis {
            Axis::Row => (rows, cols, (1, BLOCK)),
            Axis::Column => (cols, rows, (BLOCK, 1)),
        };
        spec.partition.check(&format, (rows, cols), block)?;
        let Some(codes_bytes) = length.checked_mul(6).and_then(|bits| lines.checked_mul(bits.div_ceil(8))) else {
            return Err(FormatError::TooLarge { format, rows, cols });
        };
        let scale_cols = length.div_ceil(BLOCK);
        let scale_kind = ScaleKind::E8m0;
        Ok(TensorLayout { codes_bytes, scale_kind, scale_rows: lines, scale_cols, outer_len: 0, amax_len: 0 })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let (rows, cols) = (source.rows(), source.cols());
        let layout = self.layout(rows, cols, spec)?;
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            Axis::Row => column / BLOCK,
            Axis::Column => row / BLOCK,
        })?;
        let (mut codes, mut scales) = (Vec::with_capacity(layout.codes_bytes), Vec::new());
        let values = source.values();
        let (lines, length) = match spec.axis {
            Axis::Row => (values.into_owned(), cols),
            Axis::Column => (transposed(&values, rows, cols), rows),
        };
        for line in lines.chunks(length.max(1)) {
            quantize_line(line, &mut codes, &mut scales);
        }
        let parts = QuantizedParts::new(source, spec, codes, BlockScales::U8(scales));
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        // Blocks are all there is: nothing to share.
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        if *tensor.format() != self.id() {
            return Err(FormatError::FormatMismatch { rule: self.id(), requested: tensor.format().clone() });
        }
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let (lines, length) = match tensor.axis() {
            Axis::Row => (rows, cols),
            Axis::Column => (cols, rows),
        };
        let scales = tensor.scales().as_u8().unwrap_or_default();
        let mut values = Vec::with_capacity(rows * cols);
        for line in 0..lines {
            let codes = &tensor.codes()[line * line_bytes(length)..][..line_bytes(length)];
            dequantize_line(codes, &scales[line * tensor.scale_cols()..][..tensor.scale_cols()], length, &mut values);
        }
        Ok(match tensor.axis() {
            Axis::Row => values,
            Axis::Column => transposed(&values, cols, rows),
        })
    }
}

register_format!("mxfp6-e3m2", |_options| Ok(Box::new(Mxfp6)));

/// The CPU backend with MXFP6 among the formats of its quantizer.
fn backend() -> miles_core::Result<Backend> {
    let cpu = CpuRef::new();
    let quantizer = Arc::new(cpu.quantizer()?.with_rule(Arc::new(Mxfp6))?);
    Ok(Backend { quantizer, ..cpu.backend()? })
}

/// Trains with a user's own number format, by value and by name.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    both_ways: BothWaysArgs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let rule = r#"precision.rules=[{ roles = ["expert-gate", "expert-up", "expert-down"], format = "mxfp6-e3m2" }]"#;
    let common = [rule, "precision.recipe=bf16", "export.form=bf16"];
    let run = || {
        let backend = backend()?;
        both_ways(&arguments.both_ways, &common, |builder| builder.backend(backend), &[])
    };
    miles_examples::exit(run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "conformance")]
    miles_core::conformance_tests! { format: Mxfp6 }

    #[test]
    fn every_code_decodes_to_the_value_that_encodes_to_it() {
        for code in 0..64 {
            assert_eq!(encode(decode(code)), code, "{code:#04x}");
        }
        assert_eq!((decode(0x1F), decode(0x01), decode(0x04)), (28.0, 0.0625, 0.25));
    }

    #[test]
    fn rounding_is_to_the_nearest_code_with_ties_to_even() {
        // Between neighbours a < b: below the middle a, above it b, at it the one whose last bit is 0.
        for code in 0..31_u8 {
            let (a, b) = (decode(code), decode(code + 1));
            let middle = (a + b) / 2.0;
            assert_eq!(encode(middle), code + code % 2, "between {a} and {b}");
            assert_eq!((encode(middle.next_down()), encode(middle.next_up())), (code, code + 1));
        }
        assert_eq!((encode(1e9), encode(-1e9), encode(f32::NAN)), (0x1F, 0x3F, 0x1F));
    }
}
