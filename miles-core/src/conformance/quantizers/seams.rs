//! Where a quantizer meets others: tensors quantized together, neighbours, names, earlier calls, calls on other threads.

use super::Subject;
use super::witnesses::agree_on_sources;
use crate::conformance::compare::{same, same_floats, same_tensor};
use crate::conformance::formats::same_row;
use crate::conformance::grid::{Grid, fitting, spec_name};
use crate::conformance::wait::together;
use crate::conformance::{Failure, Verdict};
use crate::format::{Axis, NonFinite, Operand, QuantizeSpec, ScaleScope, SourceDtype};

/// Gate and up, in one call, by every spec and in both orders; more tensors than two, the largest values in any of them;
/// widths that do not fit.
pub(super) fn joint(subject: &Subject<'_>) -> Verdict {
    let pairs = [
        vec![Grid::uniform(48, 258, 1), Grid::uniform(17, 258, 2).scaled_rows(|_| 6)],
        vec![Grid::uniform(130, 32, 3).scaled_rows(|_| 9), Grid::uniform(130, 32, 4)],
        vec![Grid::from_fn(8, 64, |_, _| 0.0), Grid::uniform(8, 64, 5)],
        vec![Grid::new(Vec::new(), 0, 64), Grid::uniform(8, 64, 6)],
    ];
    let of_many = |count: usize, largest: usize| -> Vec<Grid> {
        let grid = |index: usize| Grid::uniform(5 + 9 * index, 96, index as u64);
        (0..count).map(|index| grid(index).scaled_rows(|_| if index == largest { 7 } else { -1 })).collect()
    };
    let many = [of_many(3, 0), of_many(3, 1), of_many(3, 2), of_many(5, 4)];
    let swapped: Vec<Vec<Grid>> = pairs.iter().map(|pair| pair.iter().rev().cloned().collect()).collect();
    for grids in pairs.iter().chain(&swapped).chain(&many) {
        let sources = grids.iter().map(|grid| grid.source(SourceDtype::F32)).collect::<Result<Vec<_>, _>>()?;
        for spec in subject.specs() {
            agree_on_sources(subject, &sources, &spec)
                .map_err(|failure| failure.at(format_args!("{} tensors", grids.len())))?;
        }
    }
    let (wide, narrow) = (Grid::uniform(4, 64, 1), Grid::uniform(4, 32, 1));
    let sources = [wide.source(SourceDtype::F32)?, narrow.source(SourceDtype::F32)?];
    let spec = super::supported_spec(subject.rule);
    let expected = subject.rule.quantize_joint(&sources, &spec).err().map(|error| error.to_string());
    same("the error for two widths", subject.quantizer.quantize(&sources, &spec).err().map(|e| e.to_string()), expected)
}

/// Names stand in errors and nowhere else: sources without a name and under any name, quantized and refused.
pub(super) fn names(subject: &Subject<'_>) -> Verdict {
    let grid = Grid::uniform(34, 258, 3);
    let (mut refused, narrow) = (grid.clone(), Grid::uniform(34, 32, 4));
    refused.values[700] = f32::NAN;
    for spec in subject.specs() {
        let strict = spec.clone().with_non_finite(NonFinite::Error);
        for name in [None, Some(""), Some("another.weight")] {
            let source = |grid| Grid::named(grid, SourceDtype::F32, name);
            let check = || {
                agree_on_sources(subject, &[source(&grid)?], &spec)?;
                agree_on_sources(subject, &[source(&grid)?, source(&grid)?], &spec)?;
                agree_on_sources(subject, &[source(&grid)?, source(&narrow)?], &spec)?;
                agree_on_sources(subject, &[source(&refused)?], &strict)
            };
            check().map_err(|failure: Failure| failure.at(format_args!("a source of the name {name:?}")))?;
        }
    }
    Ok(())
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

/// Calls at the same time, of different tensors by different specs, have the bytes of calls one after the other.
pub(super) fn threads(subject: &Subject<'_>) -> Verdict {
    let mut work = Vec::new();
    for (index, spec) in subject.specs().into_iter().enumerate() {
        for shape in [(9, 50), (64, 258)] {
            let (rows, cols) = fitting(subject.rule, &spec, shape)?;
            let grid = Grid::uniform(rows, cols, (rows + index) as u64).scaled_rows(|row| (row + index) as i32 % 9);
            let expected = grid.quantize(subject.rule, &spec)?;
            let decoded = subject.rule.dequantize(&expected)?;
            work.push((grid, spec.clone(), expected, decoded));
        }
    }
    let task = |first: usize| {
        let work = &work;
        Box::new(move || {
            for turn in 0..2 * work.len() {
                let (grid, spec, expected, decoded) = &work[(first + turn) % work.len()];
                let found = subject.quantize(grid, SourceDtype::F32, spec)?;
                same_tensor(&found, expected).map_err(|failure| failure.at(spec_name(spec)))?;
                same_floats("decoded values", &subject.quantizer.dequantize(expected)?, decoded)?;
            }
            Ok(())
        }) as Box<dyn FnOnce() -> Verdict + Send>
    };
    together((0..4).map(|thread| task(3 * thread)).collect())
        .into_iter()
        .try_for_each(|verdict| verdict.map_err(|failure| failure.at("while other threads quantize")))
}
