//! The rows of one forward: pieces of several sequences, packed without padding.

use std::ops::Range;

use super::cache::RunId;

/// Consecutive positions of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Rows of the batch.
    pub(super) rows: Range<usize>,
    /// Absolute position of the first row.
    pub(super) start: usize,
    /// The run of a shared prompt that comes before `run`.
    pub(super) prefix: Option<RunId>,
    /// The run that the rows' keys and values are appended to.
    pub(super) run: RunId,
}

/// Rows of one forward, one per token, segment after segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<Segment>,
    output_rows: Vec<usize>,
}

impl Batch {
    /// Adds a segment that starts at position `start`; `output` asks for the logits of its last row.
    pub(super) fn push(&mut self, tokens: &[u32], start: usize, prefix: Option<RunId>, run: RunId, output: bool) {
        let rows = self.tokens.len()..self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((start..start + tokens.len()).map(|position| position as u32));
        if output && !rows.is_empty() {
            self.output_rows.push(rows.end - 1);
        }
        self.segments.push(Segment { rows, start, prefix, run });
    }

    /// Asks for the logits of every row.
    pub(super) fn output_every_row(&mut self) {
        self.output_rows = (0..self.tokens.len()).collect();
    }

    /// Token id of each row.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Absolute position of each row.
    pub(super) fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Segments in row order.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Rows whose logits are wanted, ascending.
    pub(super) fn output_rows(&self) -> &[usize] {
        &self.output_rows
    }
}
