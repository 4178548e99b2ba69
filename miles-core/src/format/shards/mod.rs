//! Shards of one tensor: quantized apart, joined to the whole, split again.
//!
//! ```text
//! Source --quantize_shard(0)--> shard 0 --+
//!        --quantize_shard(1)--> shard 1 --+--join--> the whole, with the partition in its header --split--> shards
//! ```
//!
//! Joining moves bytes and computes nothing. The joined tensor's canonical bytes are those of the whole matrix quantized
//! with the same partition. Without outer scales, or with one per row and a cut by rows, its codes and scales are also
//! those of the matrix that is not cut: blocks never reach across a cut. An outer scale of the tensor is each shard's own.
//!
//! Rules with a block axis along rows keep codes and scales row-major, so shards of a cut by rows are stacked, those of
//! a cut by columns stand side by side in every row. Outer scales per row follow the rows; others follow the shards.

mod error;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use super::{
    Axis, BlockScales, Cut, FormatRule, Partition, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleScope, Source,
    SourceValues,
};

pub use error::ShardError;

/// Quantizes shard number `shard` of the matrix `source` by itself, as a rank that holds nothing else does.
///
/// `spec` is that of the whole: its partition says how `source` is cut. One shard of a matrix that is not cut is the
/// whole.
///
/// # Errors
/// [`ShardError::Format`] when there is no such shard, shards are not equal and of whole blocks, or the rule refuses.
pub fn quantize_shard(
    rule: &dyn FormatRule,
    source: &Source<'_>,
    spec: &QuantizeSpec,
    shard: u16,
) -> Result<QuantizedTensor, ShardError> {
    let (rows, cols) = (source.rows(), source.cols());
    let spec_of_shard = spec.clone().with_partition(spec.partition.shard(shard)?);
    spec.partition.check(&spec.format, (rows, cols), (1, 1))?;
    rule.layout(rows, cols, spec)?;
    let (of_rows, of_cols) = spec.partition.range(usize::from(shard), rows, cols);
    let (height, width) = (of_rows.len(), of_cols.len());
    let made = match source.storage() {
        SourceValues::F32(values) => {
            let values = cut_out(values, cols, of_rows, of_cols);
            rule.quantize(&Source::new(&values, height, width, source.dtype(), source.name())?, &spec_of_shard)
        }
        SourceValues::Bf16(values) => {
            let values = cut_out(values, cols, of_rows, of_cols);
            rule.quantize(&Source::bf16(&values, height, width, source.name())?, &spec_of_shard)
        }
    };
    Ok(made?)
}

/// Joins the shards of one tensor, given in any order; `name` is used in errors.
///
/// # Errors
/// [`ShardError`] when a shard is missing or there twice, or the tensors are not shards of one tensor.
pub fn join(
    rule: &dyn FormatRule,
    shards: &[QuantizedTensor],
    name: Option<&str>,
) -> Result<QuantizedTensor, ShardError> {
    let tensor = || name.unwrap_or("<unnamed>").to_owned();
    let shards = in_order(shards, &tensor)?;
    let first = shards.first().ok_or_else(|| ShardError::NoShards { tensor: tensor() })?;
    refuse_columns(first, &tensor)?;
    let count = shards.len();
    let partition = Partition::new(first.partition().cut(), first.partition().shards())?;
    let (rows, cols) = match partition.cut() {
        Cut::Rows => (first.rows() * count, first.cols()),
        Cut::Cols => (first.rows(), first.cols() * count),
    };
    let parts = QuantizedParts { partition, rows, cols, ..first.to_parts() };
    let frame = Frame::new(rule, &parts, &tensor)?;
    let codes = shards.iter().map(|shard| shard.codes()).collect::<Vec<_>>();
    let scales = match first.scales() {
        BlockScales::U8(_) => {
            BlockScales::U8(frame.scales.join(&shards.iter().filter_map(|s| s.scales().as_u8()).collect::<Vec<_>>()))
        }
        BlockScales::F32(_) => {
            BlockScales::F32(frame.scales.join(&shards.iter().filter_map(|s| s.scales().as_f32()).collect::<Vec<_>>()))
        }
    };
    let outer = shards.iter().map(|shard| shard.outer()).collect::<Vec<_>>();
    let amax = shards.iter().map(|shard| shard.amax()).collect::<Vec<_>>();
    let parts = QuantizedParts {
        codes: frame.codes.join(&codes),
        scales,
        outer: frame.outer.join(&outer),
        amax: frame.outer.join(&amax),
        ..parts
    };
    Ok(QuantizedTensor::from_parts(rule, name, parts)?)
}

/// Takes a tensor that was quantized with a partition apart into its shards, in order.
///
/// # Errors
/// [`ShardError::NotJoined`] for a tensor that is not cut or is one shard itself; [`ShardError::BlockAxis`] for a
/// column-wise copy.
pub fn split(
    rule: &dyn FormatRule,
    whole: &QuantizedTensor,
    name: Option<&str>,
) -> Result<Vec<QuantizedTensor>, ShardError> {
    let tensor = || name.unwrap_or("<unnamed>").to_owned();
    let partition = whole.partition();
    if partition.is_whole() || partition.shard_index().is_some() {
        return Err(ShardError::NotJoined { tensor: tensor(), partition });
    }
    refuse_columns(whole, &tensor)?;
    let parts = whole.to_parts();
    let frame = Frame::new(rule, &parts, &tensor)?;
    let shard = |index: u16| {
        let at = usize::from(index);
        let (rows, cols) = partition.range(at, whole.rows(), whole.cols());
        let part = QuantizedParts {
            partition: partition.shard(index)?,
            rows: rows.len(),
            cols: cols.len(),
            codes: frame.codes.take(whole.codes(), at),
            scales: match whole.scales() {
                BlockScales::U8(scales) => BlockScales::U8(frame.scales.take(scales, at)),
                BlockScales::F32(scales) => BlockScales::F32(frame.scales.take(scales, at)),
            },
            outer: frame.outer.take(whole.outer(), at),
            amax: frame.outer.take(whole.amax(), at),
            ..parts.clone()
        };
        Ok(QuantizedTensor::from_parts(rule, name, part)?)
    };
    (0..partition.shards()).map(shard).collect()
}

/// The shards by number; refuses a set that is not exactly the shards of one tensor.
fn in_order<'s>(
    shards: &'s [QuantizedTensor],
    tensor: &dyn Fn() -> String,
) -> Result<Vec<&'s QuantizedTensor>, ShardError> {
    let Some(first) = shards.first() else { return Ok(Vec::new()) };
    let count = first.partition().shards();
    let mut found: Vec<Option<&QuantizedTensor>> = vec![None; usize::from(count)];
    for (position, candidate) in shards.iter().enumerate() {
        let partition = candidate.partition();
        let Some(shard) = partition.shard_index() else {
            return Err(ShardError::NotAShard { tensor: tensor(), position, partition });
        };
        for ((what, expected), (_, found)) in traits(first).into_iter().zip(traits(candidate)) {
            if expected != found {
                return Err(ShardError::Differs { tensor: tensor(), shard, what, expected, found });
            }
        }
        if found[usize::from(shard)].replace(candidate).is_some() {
            return Err(ShardError::Twice { tensor: tensor(), shard, shards: count });
        }
    }
    let numbered = (0..count).zip(found);
    let present = |(shard, found): (u16, Option<&'s QuantizedTensor>)| {
        found.ok_or_else(|| ShardError::Missing { tensor: tensor(), shard, shards: count })
    };
    numbered.map(present).collect()
}

/// What every shard of a tensor has in common.
fn traits(shard: &QuantizedTensor) -> [(&'static str, String); 7] {
    let partition = shard.partition();
    [
        ("the format", shard.format().to_string()),
        ("the operand", format!("{:?}", shard.operand())),
        ("the block axis", shard.axis().to_string()),
        ("the extent of the outer scale", shard.scope().to_string()),
        ("the cut", format!("{:?} x {}", partition.cut(), partition.shards())),
        ("the shape", format!("[{}, {}]", shard.rows(), shard.cols())),
        ("the number of amax values", shard.amax().len().to_string()),
    ]
}

fn refuse_columns(tensor: &QuantizedTensor, name: &dyn Fn() -> String) -> Result<(), ShardError> {
    match tensor.axis() {
        Axis::Row => Ok(()),
        axis @ Axis::Column => Err(ShardError::BlockAxis { tensor: name(), axis }),
    }
}

/// How the parts of a whole are made of those of its shards.
struct Frame {
    codes: Pieces,
    scales: Pieces,
    outer: Pieces,
}

impl Frame {
    /// Compares the layouts of the whole and of one shard.
    fn new(rule: &dyn FormatRule, whole: &QuantizedParts, tensor: &dyn Fn() -> String) -> Result<Self, ShardError> {
        let (spec, partition) = (whole.spec(), whole.partition);
        partition.check(&whole.format, (whole.rows, whole.cols), (1, 1))?;
        let (rows, cols) = partition.range(0, whole.rows, whole.cols);
        let of_whole = rule.layout(whole.rows, whole.cols, &spec)?;
        let of_shard = rule.layout(rows.len(), cols.len(), &spec.with_partition(partition.shard(0)?))?;
        let shards = usize::from(partition.shards());
        let side_by_side = partition.cut() == Cut::Cols;
        let refused =
            |part| ShardError::NotDivisible { tensor: tensor(), format: whole.format.clone(), partition, part };
        let divided = |part, whole: usize, shard: usize| {
            if whole == shards * shard { Ok(()) } else { Err(refused(part)) }
        };
        divided("codes", of_whole.codes_bytes, of_shard.codes_bytes)?;
        let scale_count = |rows: usize, cols: usize| rows * cols;
        let shard_scales = scale_count(of_shard.scale_rows, of_shard.scale_cols);
        divided("scales", scale_count(of_whole.scale_rows, of_whole.scale_cols), shard_scales)?;
        divided("outer", of_whole.outer_len, of_shard.outer_len)?;
        if side_by_side && of_whole.scale_rows != of_shard.scale_rows {
            return Err(refused("scales"));
        }
        let lines = |count: usize| if side_by_side { count } else { 1 };
        let outer_lines = if whole.scope == ScaleScope::Row { rows.len() } else { 1 };
        Ok(Frame {
            codes: Pieces { lines: lines(rows.len()), shards },
            scales: Pieces { lines: lines(of_shard.scale_rows), shards },
            outer: Pieces { lines: lines(outer_lines), shards },
        })
    }
}

/// Data of `lines` lines, in each of which the shards' pieces stand in order. A stack of shards is one line. Where there
/// is no data, lines are not counted: a shape without elements may claim any number.
#[derive(Clone, Copy)]
struct Pieces {
    lines: usize,
    shards: usize,
}

impl Pieces {
    fn join<T: Copy>(self, shards: &[&[T]]) -> Vec<T> {
        let length: usize = shards.iter().map(|shard| shard.len()).sum();
        if length == 0 {
            return Vec::new();
        }
        let mut joined = Vec::with_capacity(length);
        for line in 0..self.lines {
            for shard in shards {
                let length = shard.len() / self.lines;
                joined.extend_from_slice(&shard[line * length..][..length]);
            }
        }
        joined
    }

    fn take<T: Copy>(self, whole: &[T], shard: usize) -> Vec<T> {
        if whole.is_empty() {
            return Vec::new();
        }
        let length = whole.len() / (self.lines * self.shards).max(1);
        let start = |line: usize| (line * self.shards + shard) * length;
        (0..self.lines).flat_map(|line| whole[start(line)..][..length].iter().copied()).collect()
    }
}

/// The given rows and columns of row-major values with `cols` columns.
fn cut_out<T: Copy>(
    values: &[T],
    cols: usize,
    of_rows: std::ops::Range<usize>,
    of_cols: std::ops::Range<usize>,
) -> Vec<T> {
    if values.is_empty() {
        return Vec::new();
    }
    of_rows.flat_map(|row| values[row * cols..][of_cols.clone()].iter().copied()).collect()
}
