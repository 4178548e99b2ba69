//! What a block's bytes do not depend on: its place along a line, and the number type that the same values come in.

use crate::conformance::compare::{same_floats, same_tensor};
use crate::conformance::grid::{Grid, TENSOR, decoded, fitting};
use crate::conformance::{Failure, Verdict};
use crate::format::{Axis, FormatRule, QuantizeSpec, Source, SourceDtype};

/// Blocks far along a line decode like the same blocks at its start, under the same largest value of the line.
pub(super) fn blocks(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    // As long as every built-in block, and a multiple of each.
    const PIECE: usize = 128;
    for (lines, pieces) in [(3, 5), (1, 17), (2, 65)] {
        let length = pieces * PIECE;
        // The first piece holds the largest value of every line; rotated, it stays the largest.
        let uniform = Grid::uniform(lines, length, pieces as u64);
        let mut long = Grid::from_fn(lines, length, |line, at| {
            let exponent = if at < PIECE { -30 } else { -((line + at / PIECE) as i32 % 5) };
            libm::ldexpf(uniform.values[line * length + at], exponent)
        });
        (0..lines).for_each(|line| long.values[line * length] = 1024.0);
        let values = decode_lines(rule, spec, &long)?;
        for piece in [1, 4, pieces / 2, pieces - 1] {
            let columns = piece * PIECE..(piece + 1) * PIECE;
            let joined = Grid::from_fn(lines, 2 * PIECE, |line, at| {
                let from = if at < PIECE { at } else { columns.start + at - PIECE };
                long.values[line * length + from]
            });
            let (found, expected) = (
                values.part(0..lines, columns.clone()),
                decode_lines(rule, spec, &joined)?.part(0..lines, PIECE..2 * PIECE),
            );
            same_floats("decoded values", &found.values, &expected.values)
                .map_err(|failure| failure.at(format_args!("elements {columns:?} of lines of {length}")))?;
        }
    }
    Ok(())
}

/// Decodes lines along the block axis, whichever that is.
fn decode_lines(rule: &dyn FormatRule, spec: &QuantizeSpec, lines: &Grid) -> Result<Grid, Failure> {
    match spec.axis {
        Axis::Row => Ok(Grid::new(decoded(rule, &lines.quantize(rule, spec)?)?, lines.rows, lines.cols)),
        Axis::Column => {
            let turned = lines.transposed();
            Ok(Grid::new(decoded(rule, &turned.quantize(rule, spec)?)?, turned.rows, turned.cols).transposed())
        }
    }
}

/// BF16 values have the bytes of the same values in F32, and those of the same values as they lie in memory.
pub(super) fn bf16(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for shape in [(2, 2), (34, 130), (130, 258)] {
        let (rows, cols) = fitting(rule, spec, shape)?;
        for grid in
            [Grid::scattered(rows, cols, 6), Grid::uniform(rows, cols, 7), Grid::from_fn(rows, cols, |_, _| 0.0)]
        {
            let grid = grid.to_bf16();
            let expected = grid.quantize(rule, spec)?;
            let bytes = grid.bf16_bytes();
            for source in [grid.source(SourceDtype::Bf16)?, Source::bf16(&bytes, rows, cols, Some(TENSOR))?] {
                same_tensor(&rule.quantize(&source, spec)?, &expected)
                    .map_err(|failure| failure.at(format_args!("[{rows}, {cols}] in BF16")))?;
            }
        }
    }
    Ok(())
}
