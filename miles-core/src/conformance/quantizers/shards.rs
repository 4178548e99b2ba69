//! Every extent of an outer scale, and cuts into shards with outer scales of their own.

use super::Subject;
use super::witnesses::agree_on_sources;
use crate::conformance::Verdict;
use crate::conformance::compare::same_floats;
use crate::conformance::grid::Grid;
use crate::format::{Cut, Partition, QuantizeSpec, ScaleScope, SourceDtype};

/// Scopes beyond a row and a tensor: those that the rule takes, one tensor and several, and those that it refuses.
pub(super) fn scopes(subject: &Subject<'_>) -> Verdict {
    let grids = [Grid::uniform(34, 130, 1), Grid::uniform(9, 130, 2).scaled_rows(|_| 5), Grid::uniform(16, 130, 3)];
    let sources = grids.iter().map(|grid| grid.source(SourceDtype::F32)).collect::<Result<Vec<_>, _>>()?;
    for spec in all_specs(subject) {
        for scope in [ScaleScope::Block, ScaleScope::Group, ScaleScope::Expert] {
            let spec = spec.clone().with_scope(scope);
            for count in 1..=sources.len() {
                agree_on_sources(subject, &sources[..count], &spec)
                    .map_err(|failure| failure.at(format_args!("{count} of [_, 130]")))?;
            }
        }
    }
    Ok(())
}

/// A matrix that is cut, each of its shards as a rank that holds nothing else quantizes it, pairs, and what cannot be cut.
pub(super) fn partition(subject: &Subject<'_>) -> Verdict {
    for (cut, shards, rows, cols) in
        [(Cut::Rows, 2, 256, 130), (Cut::Rows, 3, 384, 34), (Cut::Cols, 2, 130, 256), (Cut::Cols, 3, 34, 384)]
    {
        let partition = Partition::new(cut, shards)?;
        // Four binades between a shard and the next one, and some within each.
        let exponent = |row: usize, col: usize| {
            let place =
                if cut == Cut::Rows { row * usize::from(shards) / rows } else { col * usize::from(shards) / cols };
            4 * place as i32 - (row % 3) as i32
        };
        let uniform = Grid::uniform(rows, cols, u64::from(shards));
        let grid =
            Grid::from_fn(rows, cols, |row, col| libm::ldexpf(uniform.values[row * cols + col], exponent(row, col)));
        let larger = Grid::from_fn(rows, cols, |row, col| grid.values[row * cols + col] * 3.0);
        for spec in all_specs(subject) {
            for scope in [spec.scope, ScaleScope::Group] {
                let spec = spec.clone().with_scope(scope).with_partition(partition);
                check(subject, (&grid, &larger), &spec)
                    .map_err(|failure| failure.at(format_args!("[{rows}, {cols}] {partition}")))?;
            }
        }
    }
    Ok(())
}

/// One cut, with its shards.
fn check(subject: &Subject<'_>, (grid, larger): (&Grid, &Grid), spec: &QuantizeSpec) -> Verdict {
    let partition = spec.partition;
    let source = grid.source(SourceDtype::F32)?;
    agree_on_sources(subject, &[source], spec)?;
    agree_on_sources(subject, &[source, larger.source(SourceDtype::F32)?], spec)?;
    let shorter = grid.corner(grid.rows - 1, grid.cols - 2);
    agree_on_sources(subject, &[shorter.source(SourceDtype::F32)?], spec)?;
    for shard in 0..partition.shards() {
        let (rows, cols) = partition.range(usize::from(shard), grid.rows, grid.cols);
        let part = grid.part(rows, cols);
        let spec = spec.clone().with_partition(partition.shard(shard)?);
        agree_on_sources(subject, &[part.source(SourceDtype::F32)?], &spec)
            .map_err(|failure| failure.at(format_args!("shard {shard}")))?;
    }
    let Ok(whole) = subject.rule.quantize(&source, spec) else { return Ok(()) };
    same_floats("decoded values", &subject.quantizer.dequantize(&whole)?, &subject.rule.dequantize(&whole)?)
}

/// Both operands and axes, for whatever scope the format has them.
fn all_specs(subject: &Subject<'_>) -> Vec<QuantizeSpec> {
    crate::conformance::grid::specs(&subject.rule.id())
}
