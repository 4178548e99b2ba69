//! Values and specs that the tests share.

use miles_core::format::{
    Axis, FormatId, NonFinite, Operand, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype, builtin_rule,
};

/// Block borders of all formats, both sides, and primes.
pub const LENGTHS: [usize; 16] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 61, 127, 128, 129, 130, 254, 257];

pub fn formats() -> [FormatId; 4] {
    [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block(), FormatId::fp8_block_pow2()]
}

/// Both operands, axes and scopes of a format, with the hardware's rule for non-finite values.
pub fn specs(format: &FormatId) -> Vec<QuantizeSpec> {
    let mut specs = Vec::new();
    for base in [QuantizeSpec::activation(format.clone()), QuantizeSpec::weight(format.clone())] {
        for axis in [Axis::Row, Axis::Column] {
            for scope in [ScaleScope::Row, ScaleScope::Tensor] {
                let spec = base.clone().with_axis(axis).with_scope(scope);
                specs.push(spec.with_non_finite(NonFinite::Hardware));
            }
        }
    }
    specs
}

/// Whether the format can hold the shape (NVFP4 needs an even length along its blocks).
pub fn fits(spec: &QuantizeSpec, rows: usize, cols: usize) -> bool {
    let length = if spec.axis == Axis::Row { cols } else { rows };
    spec.format != FormatId::nvfp4() || length.is_multiple_of(2)
}

pub fn quantize(values: &[f32], rows: usize, cols: usize, spec: &QuantizeSpec) -> QuantizedTensor {
    let source = Source::new(values, rows, cols, SourceDtype::F32, Some("sample")).unwrap();
    builtin_rule(&spec.format).unwrap().quantize(&source, spec).unwrap()
}

/// Reproducible values of both signs over about 24 binades, with zeros among them.
pub fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..count)
        .map(|_| {
            let (bits, exponent) = (next(), next() % 24);
            let fraction = (f64::from(bits) / f64::from(u32::MAX) * 2.0 - 1.0) as f32;
            if bits % 17 == 0 { 0.0 } else { fraction * f32::from_bits((115 + exponent) << 23) }
        })
        .collect()
}

pub fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| values[i % rows * cols + i / rows]).collect()
}

/// Same bits (NaN by payload too).
#[track_caller]
pub fn assert_same_bits(found: &[f32], expected: &[f32]) {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(found), bits(expected));
}

/// The axis' lines and the elements of each.
pub fn lines(spec: &QuantizeSpec, rows: usize, cols: usize) -> (usize, usize) {
    if spec.axis == Axis::Row { (rows, cols) } else { (cols, rows) }
}

pub fn is_tiled(spec: &QuantizeSpec) -> bool {
    spec.operand == Operand::Weight && spec.format.as_str().starts_with("fp8-block")
}
