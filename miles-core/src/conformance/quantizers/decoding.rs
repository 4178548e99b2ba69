//! Decoding, and counting what quantizing could not keep.

use super::Subject;
use crate::conformance::compare::{same, same_floats};
use crate::conformance::grid::{Grid, fitting, mix, spec_name};
use crate::conformance::{Failure, Verdict};
use crate::format::{
    BlockScales, FormatError, QuantizeCounts, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind, Source,
    SourceDtype,
};
use crate::number::{e4m3, e8m0};

/// Decoded values of the rule's tensors, also of tensors read from files, which lack the amax values.
pub(super) fn decode(subject: &Subject<'_>) -> Verdict {
    for (shape, is_zero) in [((33, 130), false), ((130, 258), false), ((4, 32), true), ((0, 64), true)] {
        for spec in subject.specs() {
            let (rows, cols) = fitting(subject.rule, &spec, shape)?;
            let grid = match is_zero {
                true => Grid::from_fn(rows, cols, |_, _| -0.0),
                false => Grid::scattered(rows, cols, 1),
            };
            let tensor = grid.quantize(subject.rule, &spec)?;
            let mut parts = tensor.to_parts();
            parts.amax = Vec::new();
            let read = QuantizedTensor::from_parts(subject.rule, None, parts)?;
            for tensor in [&tensor, &read] {
                let found = subject.quantizer.dequantize(tensor)?;
                same_floats("decoded values", &found, &subject.rule.dequantize(tensor)?).map_err(|failure| {
                    failure.at(format_args!("[{}, {}] {}", grid.rows, grid.cols, spec_name(&spec)))
                })?;
            }
        }
    }
    // Nothing to quantize is nothing quantized.
    let none: &[Source<'_>] = &[];
    let results = subject.quantizer.quantize(none, &super::supported_spec(subject.rule))?;
    same("results for no source", results.len(), 0)
}

/// Every code byte under scales from one end of their range to the other: values that are subnormal, that overflow, and
/// codes that are NaN decode to what the rule decodes them to.
pub(super) fn extremes(subject: &Subject<'_>) -> Verdict {
    for spec in subject.specs() {
        let shape = fitting(subject.rule, &spec, (256, 512))?;
        // Where tiles span rows, a taller matrix has as many lines of scales as there are scales to try.
        let has_tiles = subject.rule.layout(shape.0, shape.1, &spec)?.scale_rows < EXTREMES.len();
        let shape = if has_tiles { fitting(subject.rule, &spec, (1280, 256))? } else { shape };
        for (turn, outer_scale) in EXTREMES.iter().enumerate() {
            let tensor = at_the_ends(subject, &spec, shape, turn)?;
            let expected = subject.rule.dequantize(&tensor)?;
            same_floats("decoded values", &subject.quantizer.dequantize(&tensor)?, &expected).map_err(|failure| {
                failure.at(format_args!("{shape:?} {}, outer scale {outer_scale:e}", spec_name(&spec)))
            })?;
            // One outer scale takes a value in each turn, several take all of them in one.
            if tensor.outer().len() != 1 {
                break;
            }
        }
    }
    Ok(())
}

/// F32 scales: 0, subnormal, normal from end to end, with and without a mantissa.
const EXTREMES: [f32; 9] =
    [1.0, 0.0, f32::from_bits(1), f32::from_bits(0x0055_5555), f32::MIN_POSITIVE, 3.0e-30, 1.7e-13, 2.9e31, f32::MAX];

/// A tensor whose code bytes take every value in each line of scales, and whose scales take every value of their kind.
fn at_the_ends(
    subject: &Subject<'_>,
    spec: &QuantizeSpec,
    (rows, cols): (usize, usize),
    turn: usize,
) -> Result<QuantizedTensor, Failure> {
    let tensor = Grid::uniform(rows, cols, 1).quantize(subject.rule, spec)?;
    let (parts, layout) = (tensor.to_parts(), *tensor.layout());
    let line = |index: usize| index / layout.scale_cols.max(1);
    let bytes = |usable: &dyn Fn(u8) -> bool| -> Vec<u8> {
        let usable: Vec<u8> = (0..=u8::MAX).filter(|&byte| usable(byte)).collect();
        (0..parts.scales.len()).map(|index| usable[line(index) % usable.len()]).collect()
    };
    let scales = match (&parts.scales, layout.scale_kind) {
        (BlockScales::U8(_), ScaleKind::E4m3) => BlockScales::U8(bytes(&|byte| !e4m3::is_nan(byte))),
        (BlockScales::U8(_), ScaleKind::E8m0) => BlockScales::U8(bytes(&|byte| byte != e8m0::NAN)),
        // What the bytes of a format of one's own mean is not known here, so they stay.
        (BlockScales::U8(scales), _) => BlockScales::U8(scales.clone()),
        (BlockScales::F32(scales), _) => {
            let scale = |index| EXTREMES[(line(index) + index % layout.scale_cols.max(1)) % EXTREMES.len()];
            BlockScales::F32((0..scales.len()).map(scale).collect())
        }
    };
    // Lines begin at different bytes, so that a scale meets every code wherever its block lies.
    let codes_per_line = (parts.codes.len() / layout.scale_rows.max(1)).max(1);
    let codes = (0..parts.codes.len()).map(|index| (index + index / codes_per_line) as u8).collect();
    let outer = (0..parts.outer.len()).map(|index| EXTREMES[(index + turn) % EXTREMES.len()]).collect();
    let parts = QuantizedParts { codes, scales, outer, amax: Vec::new(), ..parts };
    Ok(QuantizedTensor::from_parts(subject.rule, None, parts)?)
}

/// What a quantizer counts, where it counts, is what the definition counts: saturated and underflowed, NaN and infinite.
pub(super) fn counts(subject: &Subject<'_>) -> Verdict {
    for spec in subject.specs() {
        let (rows, cols) = fitting(subject.rule, &spec, (18, 130))?;
        let finite = Grid::from_fn(rows, cols, |row, col| {
            let bits = mix(row as u64, col as u64);
            libm::ldexpf(bits as u8 as f32, if col / 32 % 2 == 0 { 0 } else { -(bits as i32 & 31) - row as i32 * 4 })
        });
        let (mut with_nan, mut with_infinity) = (finite.clone(), finite.clone());
        (with_nan.values[3], with_infinity.values[cols + 7]) = (f32::NAN, f32::INFINITY);
        for grid in [finite, with_nan, with_infinity] {
            let source = grid.source(SourceDtype::F32)?;
            let tensor = match subject.rule.quantize(&source, &spec) {
                // A format may have no scale for a block with an infinity.
                Err(FormatError::NanScale { .. }) => continue,
                made => made?,
            };
            if let Some(found) = subject.quantizer.count(&source, &tensor)? {
                let expected = QuantizeCounts::of(subject.rule, &source, &tensor)?;
                same("what is counted", found, expected).map_err(|failure| failure.at(spec_name(&spec)))?;
            }
        }
    }
    Ok(())
}
