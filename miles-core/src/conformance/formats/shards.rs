//! Cuts: shards of equal size, of whole blocks, each with an outer scale of its own.

use super::block_length;
use crate::conformance::compare::{same, same_floats, same_tensor};
use crate::conformance::grid::{Grid, decoded};
use crate::conformance::{Failure, Verdict};
use crate::format::shards::{join, quantize_shard, split};
use crate::format::{
    Axis, Cut, FormatError, FormatRule, Partition, QuantizeSpec, QuantizedTensor, ScaleScope, SourceDtype,
};

/// Every cut that the layout takes, and those that no layout may take.
pub(super) fn partition(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for (cut, shards, rows, cols) in
        [(Cut::Rows, 2, 256, 130), (Cut::Rows, 3, 384, 34), (Cut::Cols, 2, 130, 256), (Cut::Cols, 3, 34, 384)]
    {
        let partition = Partition::new(cut, shards)?;
        let spec = spec.clone().with_partition(partition);
        let check = || {
            if rule.layout(rows, cols, &spec).is_err() {
                return refused(rule, &spec, (rows, cols), |_| true);
            }
            shards_are_those_of_the_whole(rule, &spec, (rows, cols))?;
            // One row or column fewer are no equal shards.
            let (rows, cols) = if cut == Cut::Rows { (rows - 1, cols) } else { (rows, cols - 1) };
            refused(rule, &spec, (rows, cols), is_uneven)?;
            cuts_through_a_block_are_refused(rule, &spec)
        };
        check().map_err(|failure: Failure| failure.at(partition))?;
    }
    Ok(())
}

/// What is longer is no block but a line.
const LONGEST_BLOCK: usize = 1024;

fn is_uneven(error: &FormatError) -> bool {
    matches!(error, FormatError::UnevenShards { .. })
}

/// `layout` and `quantize` refuse the shape with one and the same error.
fn refused(
    rule: &dyn FormatRule,
    spec: &QuantizeSpec,
    (rows, cols): (usize, usize),
    is_right: impl Fn(&FormatError) -> bool,
) -> Verdict {
    let grid = Grid::uniform(rows, cols, 1);
    let declared = rule.layout(rows, cols, spec).err();
    let right = declared.as_ref().is_some_and(is_right);
    Failure::unless(right, || format!("the layout of [{rows}, {cols}] gives {declared:?}"))?;
    same("the error of quantize", rule.quantize(&grid.source(SourceDtype::F32)?, spec).err(), declared)
}

/// Shards of one block and a half are equal, and are refused all the same.
fn cuts_through_a_block_are_refused(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let (partition, block) = (spec.partition, block_length(rule, &spec.clone().with_partition(Partition::WHOLE))?);
    let along = if spec.axis == Axis::Row { Cut::Cols } else { Cut::Rows };
    if partition.cut() != along || !(4..=LONGEST_BLOCK).contains(&block) {
        return Ok(());
    }
    let length = usize::from(partition.shards()) * (block + block / 2);
    refused(rule, spec, if along == Cut::Cols { (128, length) } else { (length, 128) }, is_uneven)
}

/// Shards quantized apart are the parts of the whole: joined and split to the byte, and in decoded values.
fn shards_are_those_of_the_whole(rule: &dyn FormatRule, spec: &QuantizeSpec, (rows, cols): (usize, usize)) -> Verdict {
    let partition = spec.partition;
    // Four binades between a shard and the next one.
    let grid = Grid::uniform(rows, cols, u64::from(partition.shards()));
    let grid = Grid::from_fn(rows, cols, |row, col| {
        libm::ldexpf(grid.values[row * cols + col], 4 * partition.shard_of(row, col, rows, cols) as i32)
    });
    let source = grid.source(SourceDtype::F32)?;
    let whole = grid.quantize(rule, spec)?;
    same("the partition of the whole", whole.partition(), partition)?;
    let numbers = 0..partition.shards();
    let shards: Vec<QuantizedTensor> =
        numbers.map(|shard| quantize_shard(rule, &source, spec, shard)).collect::<Result<_, _>>()?;
    if spec.axis == Axis::Row {
        same_tensor(&join(rule, &shards, None)?, &whole).map_err(|failure| failure.at("the shards, joined"))?;
        for (found, expected) in split(rule, &whole, None)?.iter().zip(&shards) {
            same_tensor(found, expected).map_err(|failure| failure.at("a shard, split off"))?;
        }
    }
    let values = Grid::new(decoded(rule, &whole)?, rows, cols);
    for (index, shard) in shards.iter().enumerate() {
        let (of_rows, of_cols) = partition.range(index, rows, cols);
        let expected = values.part(of_rows.clone(), of_cols.clone());
        same("the partition of a shard", shard.partition(), partition.shard(index as u16)?)?;
        same_floats("decoded values", &decoded(rule, shard)?, &expected.values)
            .map_err(|failure| failure.at(format_args!("shard {index}")))?;
        // By itself: nothing of the other shards is in it, and no cut in its arithmetic.
        if !rule.code_dependence().position {
            let alone = grid.part(of_rows, of_cols).quantize(rule, &spec.clone().with_partition(Partition::WHOLE))?;
            same_floats("decoded values", &decoded(rule, &alone)?, &expected.values)
                .map_err(|failure| failure.at(format_args!("shard {index} as a tensor of its own")))?;
        }
    }
    // Blocks never reach across a cut, so without an outer scale of the tensor the cut changes no value; unless a block is
    // a whole line, and the cut makes it two.
    let uncut = spec.clone().with_partition(Partition::WHOLE);
    let own_outer = !whole.outer().is_empty() && (spec.scope != ScaleScope::Row || partition.cut() == Cut::Cols);
    let own_blocks = partition.cut() == Cut::Cols && block_length(rule, &uncut)? > LONGEST_BLOCK;
    if own_outer || own_blocks || spec.axis == Axis::Column {
        return Ok(());
    }
    let uncut = grid.quantize(rule, &uncut)?;
    same_floats("decoded values", &values.values, &decoded(rule, &uncut)?)
        .map_err(|failure| failure.at("without a cut"))
}
