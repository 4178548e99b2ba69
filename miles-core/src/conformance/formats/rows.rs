//! What a tensor's bytes do not depend on: repetition, memory around the source, other rows, company.

use crate::conformance::compare::{same, same_bytes, same_floats, same_tensor};
use crate::conformance::grid::{Grid, TENSOR, decoded, fitting};
use crate::conformance::{Failure, Verdict};
use crate::format::{
    Axis, BlockScales, FormatError, FormatRule, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype,
};

/// The same bytes twice, and the same whatever stands before and behind the source's memory.
pub(super) fn repeatable(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for shape in [(2, 2), (6, 34), (33, 130), (130, 258)] {
        let (rows, cols) = fitting(rule, spec, shape)?;
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

/// Every row of a batch has the bytes of the row alone; with random bits by position, of the row between other rows.
pub(super) fn rows(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for shape in [(7, 34), (67, 130), (5, 258), (130, 32)] {
        let (rows, cols) = fitting(rule, spec, shape)?;
        // Neighbours 2^80 apart, and some rows of zeros.
        let mut batch = Grid::uniform(rows, cols, 5).scaled_rows(|row| if row % 2 == 0 { 40 } else { -40 });
        batch.values[2 * cols..3 * cols].fill(0.0);
        let together = batch.quantize(rule, spec)?;
        let of_batch = decoded(rule, &together)?;
        for row in 0..rows {
            let (alone, place) = batch.alone(row, rule);
            let alone = alone.quantize(rule, spec)?;
            let compare = || {
                let values = decoded(rule, &alone)?;
                same_floats("decoded values", &of_batch[row * cols..][..cols], &values[place * cols..][..cols])?;
                same_row(&together, row, &alone, place)
            };
            compare().map_err(|failure: Failure| failure.at(format_args!("row {row} of [{rows}, {cols}]")))?;
        }
    }
    Ok(())
}

/// Row `row` of a batch against row `place` of a tensor that the same row is in, part by part.
pub(in crate::conformance) fn same_row(
    batch: &QuantizedTensor,
    row: usize,
    alone: &QuantizedTensor,
    place: usize,
) -> Verdict {
    fn of<'a, T>(
        what: &str,
        tensor: &QuantizedTensor,
        values: &'a [T],
        row: usize,
        per_row: usize,
    ) -> Result<&'a [T], Failure> {
        same(&format!("{what} of {} rows", tensor.rows()), values.len(), tensor.rows() * per_row)?;
        Ok(&values[row * per_row..][..per_row])
    }
    let per_row = |values: usize| values / alone.rows().max(1);
    let codes = per_row(alone.codes().len());
    let (found, expected) =
        (of("code bytes", batch, batch.codes(), row, codes)?, of("code bytes", alone, alone.codes(), place, codes)?);
    same_bytes("codes", found, expected)?;
    let scales = per_row(alone.scales().len());
    match (batch.scales(), alone.scales()) {
        (BlockScales::U8(found), BlockScales::U8(expected)) => same_bytes(
            "block scales",
            of("block scales", batch, found, row, scales)?,
            of("block scales", alone, expected, place, scales)?,
        )?,
        (BlockScales::F32(found), BlockScales::F32(expected)) => same_floats(
            "block scales",
            of("block scales", batch, found, row, scales)?,
            of("block scales", alone, expected, place, scales)?,
        )?,
        _ => return Err(Failure::new("block scales change their storage with the number of rows")),
    }
    let outer = per_row(alone.outer().len());
    let (found, expected) =
        (of("outer", batch, batch.outer(), row, outer)?, of("outer", alone, alone.outer(), place, outer)?);
    same_floats("outer", found, expected)
}

/// Tensors of any number that are quantized together decode to what their stack decodes to.
fn stacked(rule: &dyn FormatRule, spec: &QuantizeSpec, grids: &[&Grid]) -> Verdict {
    let sources = grids.iter().map(|grid| grid.source(SourceDtype::F32)).collect::<Result<Vec<_>, _>>()?;
    let tensors = rule.quantize_joint(&sources, spec)?;
    same("the number of results", tensors.len(), grids.len())?;
    for (tensor, grid) in tensors.iter().zip(grids) {
        same("the shape of a result", (tensor.rows(), tensor.cols()), (grid.rows, grid.cols))?;
        let first = tensors.iter().find(|tensor| tensor.rows() > 0).filter(|_| tensor.rows() > 0);
        if let Some(first) = first.filter(|_| spec.scope == ScaleScope::Tensor) {
            same_floats("outer scale of tensors quantized together", tensor.outer(), first.outer())?;
        }
    }
    if spec.axis == Axis::Row {
        let values: Vec<f32> = grids.iter().flat_map(|grid| grid.values.iter().copied()).collect();
        let rows = grids.iter().map(|grid| grid.rows).sum();
        let stack = Grid::new(values, rows, grids.first().map_or(0, |grid| grid.cols));
        let expected = decoded(rule, &stack.quantize(rule, spec)?)?;
        let found = tensors.iter().map(|tensor| decoded(rule, tensor)).collect::<Result<Vec<_>, _>>()?.concat();
        same_floats("decoded values of the stack", &found, &expected)?;
    }
    Ok(())
}

/// One tensor quantized jointly is that tensor quantized; several are their rows stacked, under one outer scale.
pub(super) fn joint(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    Failure::unless(rule.quantize_joint(&[], spec)?.is_empty(), || "no tensor became some".to_owned())?;
    let (_, cols) = fitting(rule, spec, (256, 258))?;
    let (gate, up) = (Grid::uniform(256, cols, 1), Grid::uniform(128, cols, 2).scaled_rows(|_| 5));
    let alone = gate.quantize(rule, spec)?;
    match rule.quantize_joint(&[gate.source(SourceDtype::F32)?], spec)?.as_slice() {
        [one] => same_tensor(one, &alone).map_err(|failure| failure.at("one tensor"))?,
        other => return Err(Failure::new(format!("one tensor became {}", other.len()))),
    }
    // The largest values in each place, and empty neighbours.
    let small = Grid::uniform(128, cols, 3).scaled_rows(|_| -3);
    let none = Grid::new(Vec::new(), 0, cols);
    let orders: [&[&Grid]; 6] = [
        &[&gate, &up],
        &[&up, &gate],
        &[&gate, &small, &up],
        &[&up, &gate, &small],
        &[&small, &up, &gate],
        &[&none, &small, &none, &gate, &up],
    ];
    for grids in orders {
        stacked(rule, spec, grids).map_err(|failure| failure.at(format_args!("{} tensors", grids.len())))?;
    }
    let narrow = Grid::uniform(4, 32, 3);
    match rule.quantize_joint(&[gate.source(SourceDtype::F32)?, narrow.source(SourceDtype::F32)?], spec) {
        Err(FormatError::JointWidth { expected, found: 32, .. }) if expected == cols => Ok(()),
        other => Err(Failure::new(format!("widths {cols} and 32 jointly gave {:?}", other.map(|pair| pair.len())))),
    }
}
