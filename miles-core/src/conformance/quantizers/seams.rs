//! Where a quantizer meets others: pairs, neighbours, earlier calls, and decoding.

use super::Subject;
use crate::conformance::compare::{same, same_floats, same_tensor};
use crate::conformance::formats::same_row;
use crate::conformance::grid::{Grid, fitting, spec_name};
use crate::conformance::{Failure, Verdict};
use crate::format::{Axis, NonFinite, Operand, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype};

/// Gate and up, in one call, by every spec; the order of the results; widths that do not fit.
pub(super) fn joint(subject: &Subject<'_>) -> Verdict {
    let pairs = [
        (Grid::uniform(48, 258, 1), Grid::uniform(17, 258, 2).scaled_rows(|_| 6)),
        (Grid::uniform(130, 32, 3).scaled_rows(|_| 9), Grid::uniform(130, 32, 4)),
        (Grid::from_fn(8, 64, |_, _| 0.0), Grid::uniform(8, 64, 5)),
        (Grid::new(Vec::new(), 0, 64), Grid::uniform(8, 64, 6)),
    ];
    for (gate, up) in &pairs {
        for spec in subject.specs() {
            let sources = [gate.source(SourceDtype::F32)?, up.source(SourceDtype::F32)?];
            let check =
                || match (subject.rule.quantize_joint(&sources, &spec), subject.quantizer.quantize(&sources, &spec)) {
                    (Ok(expected), Ok(found)) => {
                        same("results", found.len(), expected.len())?;
                        found.iter().zip(&expected).try_for_each(|(found, expected)| same_tensor(found, expected))
                    }
                    (Err(expected), Err(found)) => same("the error", found.to_string(), expected.to_string()),
                    (expected, found) => Err(Failure::new(format!(
                        "the rule gives {:?}, the quantizer {:?}",
                        expected.map(|tensors| tensors.len()),
                        found.map(|tensors| tensors.len())
                    ))),
                };
            check().map_err(|failure: Failure| {
                failure.at(format_args!("[{}, {}] {}", gate.rows, gate.cols, spec_name(&spec)))
            })?;
        }
    }
    let (wide, narrow) = (Grid::uniform(4, 64, 1), Grid::uniform(4, 32, 1));
    let sources = [wide.source(SourceDtype::F32)?, narrow.source(SourceDtype::F32)?];
    let spec = super::supported_spec(subject.rule);
    let expected = subject.rule.quantize_joint(&sources, &spec).err().map(|error| error.to_string());
    same("the error for two widths", subject.quantizer.quantize(&sources, &spec).err().map(|e| e.to_string()), expected)
}

/// Every row of a batch of activations has the bytes of the row alone, between neighbours 2^80 apart; with random bits
/// by position, those of the row between rows of zeros.
pub(super) fn neighbours(subject: &Subject<'_>) -> Verdict {
    let by_row = |spec: &QuantizeSpec| {
        spec.operand == Operand::Activation && spec.axis == Axis::Row && spec.scope == ScaleScope::Row
    };
    for spec in subject.specs().into_iter().filter(by_row) {
        for shape in [(9, 34), (129, 130)] {
            let (rows, cols) = fitting(subject.rule, &spec, shape)?;
            let batch = Grid::uniform(rows, cols, 5).scaled_rows(|row| if row % 2 == 0 { 40 } else { -40 });
            let together = subject.quantize(&batch, SourceDtype::F32, &spec)?;
            for row in 0..rows {
                let (alone, place) = batch.alone(row, subject.rule);
                let alone = subject.quantize(&alone, SourceDtype::F32, &spec)?;
                same_row(&together, row, &alone, place)
                    .map_err(|failure| failure.at(format_args!("row {row} of [{rows}, {cols}]")))?;
            }
        }
    }
    Ok(())
}

/// A call has the same bytes whatever was quantized before it: larger, smaller, refused.
pub(super) fn repeat(subject: &Subject<'_>) -> Verdict {
    let shapes = [(1, 2), (5, 18), (9, 50), (33, 130), (15, 6)];
    let huge = Grid::from_fn(64, 512, |row, col| if (row + col) % 2 == 0 { 3.0e38 } else { -3.0e38 });
    let mut refused = Grid::uniform(16, 64, 1);
    refused.values[100] = f32::NAN;
    for spec in subject.specs() {
        for shape in shapes {
            let (rows, cols) = fitting(subject.rule, &spec, shape)?;
            let grid = Grid::uniform(rows, cols, 8);
            let expected = grid.quantize(subject.rule, &spec)?;
            for before in ["nothing", "a huge tensor", "a refused tensor"] {
                let sources = match before {
                    "a huge tensor" => Some((&huge, spec.clone())),
                    "a refused tensor" => Some((&refused, spec.clone().with_non_finite(NonFinite::Error))),
                    _ => None,
                };
                if let Some((earlier, spec)) = sources {
                    let outcome = subject.quantizer.quantize(&[earlier.source(SourceDtype::F32)?], &spec);
                    same("whether the earlier call succeeds", outcome.is_ok(), before == "a huge tensor")?;
                }
                let found = subject.quantize(&grid, SourceDtype::F32, &spec)?;
                same_tensor(&found, &expected).map_err(|failure| {
                    failure.at(format_args!("[{rows}, {cols}] {} after {before}", spec_name(&spec)))
                })?;
            }
        }
    }
    Ok(())
}

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
