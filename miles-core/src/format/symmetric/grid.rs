//! [`Grid`]: which scale an element belongs to.
//!
//! A tensor is lines of equal length, each line is segments, and a segment has one scale:
//!
//! ```text
//! group of n   segments of n elements            scale = line * segments + segment
//! line         one segment (one per shard)       scale = line * segments + segment
//! scope row    as a line                         scale = line * segments + segment
//! other scope  one segment (one per shard)       scale = shard of the segment
//! ```

use super::Extent;
use crate::format::{Axis, Cut, Partition, ScaleScope};

pub(super) struct Grid {
    lines: usize,
    length: usize,
    segment: usize,
    /// Lines of one shard, where one scale covers all of them.
    shared_lines: Option<usize>,
    shards: usize,
}

impl Grid {
    /// The grid of a `[rows, cols]` tensor that `partition` was checked against.
    pub(super) fn new(
        extent: Extent,
        (rows, cols): (usize, usize),
        axis: Axis,
        scope: ScaleScope,
        partition: Partition,
    ) -> Self {
        let (lines, length, along_lines) = match axis {
            Axis::Row => (rows, cols, partition.cut() == Cut::Cols),
            Axis::Column => (cols, rows, partition.cut() == Cut::Rows),
        };
        let shards = partition.shards_here();
        let (across, along) = if along_lines { (1, shards) } else { (shards, 1) };
        let segment = match extent {
            Extent::Group(group) => group,
            Extent::Line | Extent::Scope => (length / along).max(1),
        };
        let shared = extent == Extent::Scope && scope != ScaleScope::Row;
        let shared_lines = shared.then(|| (lines / across).max(1));
        Self { lines, length, segment, shared_lines, shards }
    }

    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// Elements of a line.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Elements of a segment, the last one of a line excepted; at least 1.
    pub(super) fn segment(&self) -> usize {
        self.segment
    }

    /// Segments of a line.
    pub(super) fn segments(&self) -> usize {
        self.length.div_ceil(self.segment)
    }

    /// Number of scales.
    pub(super) fn scales(&self) -> usize {
        if self.shared_lines.is_some() { self.shards } else { self.lines * self.segments() }
    }

    /// The scale of a segment.
    pub(super) fn index(&self, line: usize, segment: usize) -> usize {
        match self.shared_lines {
            // Either the lines are cut or their segments are: one of the two terms is 0.
            Some(lines) => line / lines + segment,
            None => line * self.segments() + segment,
        }
    }
}
