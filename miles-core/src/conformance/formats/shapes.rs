//! Sizes of parts, empty tensors, transposition and padding.

use crate::conformance::compare::{same, same_bytes, same_floats};
use crate::conformance::grid::{Grid, LENGTHS, decoded, fitting};
use crate::conformance::{Failure, Verdict};
use crate::format::{Axis, FormatRule, QuantizeSpec, QuantizedTensor, ScaleScope};

/// Parts have the lengths that the layout declares; a shape that the layout refuses is refused with the same error.
pub(super) fn lengths(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let mut quantized = 0;
    for rows in [1, 2, 17, 32, 33, 129] {
        for cols in LENGTHS {
            let grid = Grid::scattered(rows, cols, (rows * 1000 + cols) as u64);
            let place = format!("[{rows}, {cols}]");
            match rule.layout(rows, cols, spec) {
                Ok(_) => check_lengths(rule, &grid, spec).map_err(|failure| failure.at(&place))?,
                Err(declared) => {
                    let refused = rule.quantize(&grid.source(crate::format::SourceDtype::F32)?, spec).err();
                    same(&format!("{place}: the error of quantize"), refused, Some(declared))?;
                    continue;
                }
            }
            quantized += 1;
        }
    }
    Failure::unless(quantized > 0, || "no shape fits".to_owned())
}

/// Tensors without elements have no codes, and decode to nothing.
pub(super) fn empty(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for (rows, cols) in [(0, 0), (0, 1), (0, 256), (1, 0), (256, 0)] {
        if rule.layout(rows, cols, spec).is_ok() {
            let grid = Grid::new(Vec::new(), rows, cols);
            check_lengths(rule, &grid, spec).map_err(|failure| failure.at(format_args!("[{rows}, {cols}]")))?;
        }
    }
    Failure::unless(rule.layout(0, 256, spec).is_ok(), || "a batch without rows is refused".to_owned())
}

fn check_lengths(rule: &dyn FormatRule, grid: &Grid, spec: &QuantizeSpec) -> Verdict {
    let layout = rule.layout(grid.rows, grid.cols, spec)?;
    let tensor = grid.quantize(rule, spec)?;
    same("shape", (tensor.rows(), tensor.cols()), (grid.rows, grid.cols))?;
    same("layout", tensor.layout(), &layout)?;
    same("code bytes", tensor.codes().len(), layout.codes_bytes)?;
    same("block scales", tensor.scales().len(), layout.scale_rows * layout.scale_cols)?;
    same("outer scales", tensor.outer().len(), layout.outer_len)?;
    same("amax values", tensor.amax().len(), layout.amax_len)?;
    same("format", tensor.format(), &rule.id())?;
    same("axis", tensor.axis(), spec.axis)?;
    same("scope", tensor.scope(), spec.scope)?;
    same("operand", tensor.operand(), spec.operand)?;
    decoded(rule, &tensor).map(drop)
}

/// The column copy of a tensor is the row copy of its transpose: in values, and in codes where one code is one byte.
pub(super) fn transpose(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let row_spec = spec.clone().with_axis(Axis::Row);
    for shape in [(32, 64), (34, 62), (2, 130), (130, 258), (256, 128)] {
        let (rows, cols) = fitting(rule, spec, shape)?;
        let grid = Grid::scattered(rows, cols, (rows * cols) as u64);
        let place = format!("[{rows}, {cols}]");
        let column = grid.quantize(rule, spec)?;
        let row = grid.transposed().quantize(rule, &row_spec)?;
        let expected = Grid::new(decoded(rule, &row)?, cols, rows).transposed();
        let compare = || {
            same_floats("decoded values", &decoded(rule, &column)?, &expected.values)?;
            same_floats("outer", column.outer(), row.outer())?;
            same_codes(&column, &row)
        };
        compare().map_err(|failure: Failure| failure.at(&place))?;
    }
    Ok(())
}

/// Codes of the column copy, stored either as the row copy of the transpose or turned back to `[rows, cols]`.
fn same_codes(column: &QuantizedTensor, row: &QuantizedTensor) -> Verdict {
    let (rows, cols) = (column.rows(), column.cols());
    if column.codes().len() != rows * cols || column.codes() == row.codes() {
        return Ok(());
    }
    let turned: Vec<u8> = (0..rows * cols).map(|index| row.codes()[index % cols * rows + index / cols]).collect();
    same_bytes("codes", column.codes(), &turned)
}

/// A tensor decodes like the corner of the same tensor padded with zeros to whole blocks and tiles.
pub(super) fn padding(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for length in LENGTHS.into_iter().filter(|&length| length > 0) {
        for lines in [1, 3, 130] {
            let (rows, cols) = if spec.axis == Axis::Row { (lines, length) } else { (length, lines) };
            if rule.layout(rows, cols, spec).is_err() {
                continue;
            }
            let grid = Grid::scattered(rows, cols, length as u64);
            let short = grid.quantize(rule, spec)?;
            let padded = grid.padded(rows.next_multiple_of(256), cols.next_multiple_of(256));
            let long = padded.quantize(rule, spec)?;
            let of_padded = Grid::new(decoded(rule, &long)?, padded.rows, padded.cols).corner(rows, cols);
            let compare = || {
                same_floats("decoded values", &decoded(rule, &short)?, &of_padded.values)?;
                let outer = if spec.scope == ScaleScope::Row { short.outer().len() } else { long.outer().len() };
                same_floats("outer", short.outer(), &long.outer()[..outer])
            };
            compare().map_err(|failure: Failure| failure.at(format_args!("[{rows}, {cols}]")))?;
        }
    }
    Ok(())
}
