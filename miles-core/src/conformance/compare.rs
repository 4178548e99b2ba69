//! Comparing quantized tensors and values to the bit, with the first difference in words.

use super::{Failure, Verdict};
use crate::format::{BlockScales, QuantizedTensor};

/// Every part of two tensors: shape, codes, scales, outer scales, amax, canonical bytes, digest.
pub(super) fn same_tensor(found: &QuantizedTensor, expected: &QuantizedTensor) -> Verdict {
    same("format", found.format(), expected.format())?;
    same("shape", (found.rows(), found.cols()), (expected.rows(), expected.cols()))?;
    same("operand", found.operand(), expected.operand())?;
    same("axis", found.axis(), expected.axis())?;
    same("scope", found.scope(), expected.scope())?;
    same("partition", found.partition(), expected.partition())?;
    same_bytes("codes", found.codes(), expected.codes())?;
    same_scales(found.scales(), expected.scales())?;
    same_floats("outer", found.outer(), expected.outer())?;
    same_floats("amax", found.amax(), expected.amax())?;
    same("layout", found.layout(), expected.layout())?;
    same_bytes("canonical bytes", &found.canonical_bytes(), &expected.canonical_bytes())?;
    same("digest", found.digest(), expected.digest())
}

pub(super) fn same_scales(found: &BlockScales, expected: &BlockScales) -> Verdict {
    match (found, expected) {
        (BlockScales::U8(found), BlockScales::U8(expected)) => same_bytes("block scales", found, expected),
        (BlockScales::F32(found), BlockScales::F32(expected)) => same_floats("block scales", found, expected),
        _ => Err(Failure::new("block scales are bytes on one side and F32 on the other")),
    }
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Verdict {
    Failure::unless(found == expected, || format!("{what} is {found:?}, expected {expected:?}"))
}

pub(super) fn same_bytes(what: &str, found: &[u8], expected: &[u8]) -> Verdict {
    same_elements(what, found, expected, |a, b| a == b, |byte| format!("{byte:#04x}"))
}

/// Equal bits; two NaN are equal whatever their payload.
pub(super) fn same_floats(what: &str, found: &[f32], expected: &[f32]) -> Verdict {
    let same_bits = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    same_elements(what, found, expected, same_bits, |value| format!("{value:e} ({:#010x})", value.to_bits()))
}

fn same_elements<T>(
    what: &str,
    found: &[T],
    expected: &[T],
    equal: impl Fn(&T, &T) -> bool,
    show: impl Fn(&T) -> String,
) -> Verdict {
    Failure::unless(found.len() == expected.len(), || {
        format!("{what}: {} elements, expected {}", found.len(), expected.len())
    })?;
    let mut pairs = found.iter().zip(expected);
    match pairs.position(|(found, expected)| !equal(found, expected)) {
        None => Ok(()),
        Some(index) => {
            let (found, expected) = (show(&found[index]), show(&expected[index]));
            Err(Failure::new(format!("{what}[{index}] is {found}, expected {expected}")))
        }
    }
}
