//! Assembling quantized tensors from loose parts, as a checkpoint reader does, and decoding what was accepted.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use miles_core::format::{BlockScales, QuantizedParts, QuantizedTensor, TensorLayout};
use miles_fuzz::{Request, tiled};

#[derive(Debug, Arbitrary)]
struct Case {
    request: Request,
    rows: Extent,
    cols: Extent,
    codes: Vec<u8>,
    scales: Vec<u32>,
    scales_are_floats: bool,
    outer: Vec<f32>,
    amax: Vec<f32>,
    knows_amax: bool,
    fits: bool,
}

#[derive(Debug, Arbitrary)]
enum Extent {
    Small(u8),
    Any(usize),
}

impl Extent {
    fn get(&self) -> usize {
        match self {
            Extent::Small(extent) => usize::from(*extent),
            Extent::Any(extent) => *extent,
        }
    }
}

fuzz_target!(|case: Case| {
    let (rule, spec) = (case.request.rule(), case.request.spec());
    let (rows, cols) = (case.rows.get(), case.cols.get());
    let layout = rule.layout(rows, cols, &spec).ok().filter(|layout| case.fits && is_small(layout));
    let length = |own: usize, of: fn(&TensorLayout) -> usize| layout.as_ref().map_or(own, of);
    let codes = tiled(&case.codes, length(case.codes.len(), |layout| layout.codes_bytes));
    let words = tiled(&case.scales, length(case.scales.len(), |layout| layout.scale_rows * layout.scale_cols));
    let scales = match case.scales_are_floats {
        true => BlockScales::F32(words.into_iter().map(f32::from_bits).collect()),
        false => BlockScales::U8(words.into_iter().map(|word| word as u8).collect()),
    };
    let outer = tiled(&case.outer, length(case.outer.len(), |layout| layout.outer_len));
    let amax = tiled(&case.amax, length(case.amax.len(), |layout| layout.amax_len));
    let parts = QuantizedParts {
        format: rule.id(),
        operand: spec.operand,
        axis: spec.axis,
        scope: spec.scope,
        partition: spec.partition,
        rows,
        cols,
        codes,
        scales,
        outer,
        amax: if case.knows_amax { amax } else { Vec::new() },
    };
    let Ok(tensor) = QuantizedTensor::from_parts(rule, Some("t"), parts) else { return };
    assert_eq!(rule.dequantize(&tensor).unwrap().len(), rows * cols);
    assert_eq!(tensor.dequantize_f32().unwrap().len(), rows * cols);
    tensor.dequantize_bf16().unwrap();
    assert_eq!(tensor.digest(), QuantizedTensor::from_parts(rule, None, tensor.to_parts()).unwrap().digest());
});

/// Whether everything that would have to be allocated is at most 65536 elements.
fn is_small(layout: &TensorLayout) -> bool {
    let sum = || {
        let scales = layout.scale_rows.checked_mul(layout.scale_cols)?;
        layout.codes_bytes.checked_add(scales)?.checked_add(layout.outer_len)?.checked_add(layout.amax_len)
    };
    sum().is_some_and(|elements| elements <= 1 << 16)
}
