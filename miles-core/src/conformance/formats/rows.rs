//! What a tensor's bytes do not depend on: repetition, memory around the source, other rows, company.

use crate::conformance::compare::{same, same_bytes, same_floats, same_tensor};
use crate::conformance::grid::{Grid, TENSOR};
use crate::conformance::{Failure, Verdict};
use crate::format::{
    Axis, BlockScales, FormatError, FormatRule, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype,
};

/// The same bytes twice, and the same whatever stands before and behind the source's memory.
pub(super) fn repeatable(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for (rows, cols) in [(2, 2), (6, 34), (33, 130), (130, 258)] {
        let grid = Grid::scattered(rows, cols, 11);
        let first = grid.quantize(rule, spec)?;
        same_tensor(&grid.quantize(rule, spec)?, &first).map_err(|failure| failure.at("the second time"))?;
        for dirt in [f32::NAN, f32::INFINITY, f32::MAX] {
            for offset in [1, 64, 67] {
                let mut memory = vec![dirt; grid.values.len() + 2 * 67];
                memory[offset..][..grid.values.len()].copy_from_slice(&grid.values);
                let values = &memory[offset..][..grid.values.len()];
                let source = Source::new(values, rows, cols, SourceDtype::F32, Some(TENSOR))?;
                same_tensor(&rule.quantize(&source, spec)?, &first)
                    .map_err(|failure| failure.at(format_args!("[{rows}, {cols}] between {dirt}")))?;
            }
        }
    }
    Ok(())
}

/// Every row of a batch has the bytes of the row alone.
pub(super) fn rows(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for (rows, cols) in [(7, 34), (67, 130), (5, 258), (130, 32)] {
        // Neighbours 2^80 apart, and some rows of zeros.
        let mut batch = Grid::uniform(rows, cols, 5).scaled_rows(|row| if row % 2 == 0 { 40 } else { -40 });
        batch.values[2 * cols..3 * cols].fill(0.0);
        let together = batch.quantize(rule, spec)?;
        let decoded = rule.dequantize(&together)?;
        for row in 0..rows {
            let alone = batch.row(row).quantize(rule, spec)?;
            let compare = || {
                let values = rule.dequantize(&alone)?;
                same_floats("decoded values", &decoded[row * cols..][..cols], &values)?;
                same_row(&together, row, &alone)
            };
            compare().map_err(|failure: Failure| failure.at(format_args!("row {row} of [{rows}, {cols}]")))?;
        }
    }
    Ok(())
}

/// Row `row` of a batch against the same row quantized alone, part by part.
pub(in crate::conformance) fn same_row(batch: &QuantizedTensor, row: usize, alone: &QuantizedTensor) -> Verdict {
    let rows = batch.rows();
    let part = |what: &str, whole: usize, one: usize| same(&format!("{what} of {rows} rows"), whole, rows * one);
    part("code bytes", batch.codes().len(), alone.codes().len())?;
    part("block scales", batch.scales().len(), alone.scales().len())?;
    part("outer scales", batch.outer().len(), alone.outer().len())?;
    same_bytes("codes", &batch.codes()[row * alone.codes().len()..][..alone.codes().len()], alone.codes())?;
    let from = row * alone.scales().len();
    match (batch.scales(), alone.scales()) {
        (BlockScales::U8(batch), BlockScales::U8(alone)) => {
            same_bytes("block scales", &batch[from..][..alone.len()], alone)?;
        }
        (BlockScales::F32(batch), BlockScales::F32(alone)) => {
            same_floats("block scales", &batch[from..][..alone.len()], alone)?;
        }
        _ => return Err(Failure::new("block scales change their storage with the number of rows")),
    }
    same_floats("outer", &batch.outer()[row * alone.outer().len()..][..alone.outer().len()], alone.outer())
}

/// One tensor quantized jointly is that tensor quantized; several are their rows stacked, under one outer scale.
pub(super) fn joint(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    Failure::unless(rule.quantize_joint(&[], spec)?.is_empty(), || "no tensor became some".to_owned())?;
    let (gate, up) = (Grid::uniform(256, 258, 1), Grid::uniform(128, 258, 2).scaled_rows(|_| 5));
    let alone = gate.quantize(rule, spec)?;
    match rule.quantize_joint(&[gate.source(SourceDtype::F32)?], spec)?.as_slice() {
        [one] => same_tensor(one, &alone).map_err(|failure| failure.at("one tensor"))?,
        other => return Err(Failure::new(format!("one tensor became {}", other.len()))),
    }
    let pair = rule.quantize_joint(&[gate.source(SourceDtype::F32)?, up.source(SourceDtype::F32)?], spec)?;
    let [first, second] = pair.as_slice() else {
        return Err(Failure::new(format!("two tensors became {}", pair.len())));
    };
    if spec.axis == Axis::Row {
        let stacked = Grid::new([&gate.values[..], &up.values[..]].concat(), gate.rows + up.rows, gate.cols);
        let expected = rule.dequantize(&stacked.quantize(rule, spec)?)?;
        let found = [rule.dequantize(first)?, rule.dequantize(second)?].concat();
        same_floats("decoded values of the stacked pair", &found, &expected)?;
    }
    if spec.scope == ScaleScope::Tensor {
        same_floats("outer scale of the pair", first.outer(), second.outer())?;
    }
    let narrow = Grid::uniform(4, 32, 3);
    match rule.quantize_joint(&[gate.source(SourceDtype::F32)?, narrow.source(SourceDtype::F32)?], spec) {
        Err(FormatError::JointWidth { expected: 258, found: 32, .. }) => Ok(()),
        other => Err(Failure::new(format!("widths 258 and 32 jointly gave {:?}", other.map(|pair| pair.len())))),
    }
}
