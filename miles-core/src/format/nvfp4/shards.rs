//! [`LineShards`]: the quantized lines of a matrix, and where its outer scales lie on them.

use super::BLOCK;
use super::block::Place;
use crate::format::{Axis, Cut, Partition, ScaleScope};

/// The lines along which blocks run, cut into shards.
///
/// A cut across the lines gives each shard some of them; a cut along them gives each line one segment per shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineShards {
    /// Number of lines.
    pub(super) lines: usize,
    /// Elements of a line.
    pub(super) length: usize,
    /// Segments of a line.
    pub(super) segments: usize,
    lines_per_shard: usize,
}

impl LineShards {
    /// The lines of a `[rows, cols]` tensor at hand.
    pub(super) fn new(axis: Axis, partition: Partition, rows: usize, cols: usize) -> Self {
        let (lines, length, cut_along) = match axis {
            Axis::Row => (rows, cols, Cut::Cols),
            Axis::Column => (cols, rows, Cut::Rows),
        };
        let shards = partition.shards_here();
        match partition.cut() == cut_along {
            true => Self { lines, length, segments: shards, lines_per_shard: lines.max(1) },
            false => Self { lines, length, segments: 1, lines_per_shard: (lines / shards).max(1) },
        }
    }

    /// Elements of a segment: whole blocks where there is more than one.
    pub(super) const fn segment_length(&self) -> usize {
        self.length / self.segments
    }

    /// The shard that a segment of a line belongs to.
    pub(super) const fn shard(&self, line: usize, segment: usize) -> usize {
        if self.segments > 1 { segment } else { line / self.lines_per_shard }
    }

    /// Index of the outer scale of a segment: `[lines, segments]` for the scope of a row, one per shard otherwise.
    pub(super) fn outer_index(&self, scope: ScaleScope, line: usize, segment: usize) -> usize {
        match scope {
            ScaleScope::Row => line * self.segments + segment,
            _ => self.shard(line, segment),
        }
    }

    /// The segment that a block of a line lies in.
    pub(super) fn segment_of(&self, block: usize) -> usize {
        if self.segments == 1 { 0 } else { block / (self.segment_length() / BLOCK).max(1) }
    }
}

/// Where the tensor at hand starts in the whole matrix, which has `rows_before` rows of the same shard before it.
pub(super) fn origin(axis: Axis, partition: Partition, [rows, cols]: [usize; 2], rows_before: usize) -> Place {
    let shard = partition.shard_index().map_or(0, usize::from);
    let (row, column) = match (partition.shard_index(), partition.cut()) {
        (Some(_), Cut::Rows) => (rows_before * usize::from(partition.shards()) + shard * rows, 0),
        (Some(_), Cut::Cols) => (rows_before, shard * cols),
        (None, _) => (rows_before, 0),
    };
    match axis {
        Axis::Row => Place { line: row, block: column / BLOCK },
        Axis::Column => Place { line: column, block: row / BLOCK },
    }
}
