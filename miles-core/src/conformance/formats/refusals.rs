//! Parts that make a tensor again, and everything that has to be refused by a typed error.

use super::block_length;
use crate::conformance::compare::{same, same_bytes, same_tensor};
use crate::conformance::grid::{Grid, TENSOR, fitting};
use crate::conformance::{Failure, Verdict};
use crate::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, NonFinite, QuantizeSpec, QuantizedParts, QuantizedTensor,
    SourceDtype, builtin_rules,
};

/// A spec that `layout` refuses is refused by `quantize` too; gives the reason.
pub(super) fn refuses_as_declared(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Result<String, Failure> {
    let grid = Grid::uniform(256, 256, 1);
    match (rule.layout(256, 256, spec), rule.quantize(&grid.source(SourceDtype::F32)?, spec)) {
        (Err(declared), Err(_)) => Ok(declared.to_string()),
        (Err(declared), Ok(_)) => Err(Failure::new(format!("layout says `{declared}`, and quantize does it"))),
        (Ok(_), _) => Err(Failure::new("layout refuses and accepts the same spec")),
    }
}

/// Parts make an equal tensor; so do canonical bytes, short of the amax values; parts of another size are refused.
pub(super) fn parts(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for shape in [(2, 2), (34, 130), (130, 258)] {
        let (rows, cols) = fitting(rule, spec, shape)?;
        let tensor = Grid::scattered(rows, cols, 9).quantize(rule, spec)?;
        let again = QuantizedTensor::from_parts(rule, Some(TENSOR), tensor.to_parts())?;
        same_tensor(&again, &tensor)?;
        let read = QuantizedTensor::from_parts(rule, Some(TENSOR), from_canonical(&tensor)?)?;
        same_bytes("canonical bytes of canonical bytes", &read.canonical_bytes(), &tensor.canonical_bytes())?;
        same("digest of canonical bytes", read.digest(), tensor.digest())?;

        let mut longer = tensor.to_parts();
        longer.codes.push(0);
        let error = QuantizedTensor::from_parts(rule, Some(TENSOR), longer).err();
        let named = matches!(&error, Some(FormatError::PartLength { tensor, part: "codes", .. }) if tensor == TENSOR);
        Failure::unless(named, || format!("a code too many gave {error:?}"))?;
    }
    Ok(())
}

/// Rebuilds codes, block scales and outer scales from the canonical bytes alone.
fn from_canonical(tensor: &QuantizedTensor) -> Result<QuantizedParts, Failure> {
    let bytes = tensor.canonical_bytes();
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| Failure::new("canonical bytes are shorter than a header"))?;
    let count =
        |slot: usize| header[16 + 8 * slot..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes) as usize);
    let (code_count, scale_count, outer_count) = (count(2), count(3), count(4));
    let scale_bytes = if header[10] == 1 { 4 } else { 1 };
    let sizes = [code_count, scale_count * scale_bytes, outer_count * 4];
    same("length of the canonical bytes", bytes.len(), HEADER_BYTES + sizes.iter().sum::<usize>())?;
    let (codes, rest) = bytes[HEADER_BYTES..].split_at(sizes[0]);
    let (scales, outer) = rest.split_at(sizes[1]);
    let floats =
        |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>();
    let mut parts = tensor.to_parts();
    (parts.rows, parts.cols) = (count(0), count(1));
    parts.codes = codes.to_vec();
    parts.scales = if scale_bytes == 4 { BlockScales::F32(floats(scales)) } else { BlockScales::U8(scales.to_vec()) };
    parts.outer = floats(outer);
    parts.amax = Vec::new();
    Ok(parts)
}

/// The header of canonical bytes, as [`QuantizedTensor::canonical_bytes`] documents it.
const HEADER_BYTES: usize = 56;

/// The first NaN or infinity is named by tensor, row, column and block; with the hardware rule it is no such error.
pub(super) fn non_finite(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let block_length = block_length(rule, spec)?;
    let (rows, cols) = fitting(rule, spec, (40, 320))?;
    let strict = spec.clone().with_non_finite(NonFinite::Error);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (at_row, at_column) in [(0, 0), (33, 300), (rows - 1, cols - 1)] {
            let mut grid = Grid::uniform(rows, cols, 1);
            grid.values[at_row * cols + at_column] = bad;
            grid.values[rows * cols - 1] = bad;
            let at_block = if spec.axis == Axis::Row { at_column } else { at_row } / block_length;
            let source = grid.source(SourceDtype::F32)?;
            for error in [rule.quantize(&source, &strict).err(), rule.quantize_joint(&[source], &strict).err()] {
                let Some(FormatError::NonFinite { tensor, row, column, block, value }) = error else {
                    return Err(Failure::new(format!("{bad} gave {error:?}")));
                };
                same("tensor named", tensor.as_str(), TENSOR)?;
                same("row, column and block named", (row, column, block), (at_row, at_column, at_block))?;
                Failure::unless(value.to_bits() == bad.to_bits(), || format!("{bad} is named as {value}"))?;
            }
            let converted = rule.quantize(&source, spec);
            // A format may have no scale for NaN; what it must not do is fall back on the strict policy.
            let strict_error = matches!(converted, Err(FormatError::NonFinite { .. }));
            Failure::unless(!strict_error, || format!("{bad} is an error although hardware conversion was asked for"))?;
        }
    }
    Ok(())
}

/// Specs and tensors of another format, and sizes beyond the address space, are errors and no panics.
pub(super) fn refusals(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let mismatch = |what: &str, requested: FormatId, error: Option<FormatError>| {
        same(what, error, Some(FormatError::FormatMismatch { rule: rule.id(), requested }))
    };
    let other = FormatId::new("another-format")?;
    let mut foreign = spec.clone();
    foreign.format = other.clone();
    let grid = Grid::uniform(32, 256, 1);
    let source = grid.source(SourceDtype::F32)?;
    mismatch("layout of another format", other.clone(), rule.layout(32, 256, &foreign).err())?;
    mismatch("quantize to another format", other.clone(), rule.quantize(&source, &foreign).err())?;
    mismatch("joint quantize to another format", other, rule.quantize_joint(&[source], &foreign).err())?;
    for builtin in builtin_rules().filter(|builtin| builtin.id() != rule.id()) {
        let weight = QuantizeSpec::weight(builtin.id());
        let tensor = builtin.quantize(&source, &weight)?;
        mismatch("dequantize of another format", builtin.id(), rule.dequantize(&tensor).err())?;
    }
    let error = rule.layout(usize::MAX, 64, spec).err();
    Failure::unless(error.is_some(), || "a tensor larger than the address space has a layout".to_owned())
}
