//! Everything that a ledger says about one version, and in which lines.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::{ExportEvent, LedgerEvent, LogLine, PolicyVersion};
use crate::digest::Digest;
use crate::policy::snapshot::policy_digest;

/// Everything that a ledger says about one version.
///
/// The order of a version's events says nothing, and an event that is there twice says no more than once.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedVersion {
    version: PolicyVersion,
    path: Arc<Path>,
    events: Vec<LedgerEvent>,
    /// Line of each event.
    lines: Vec<usize>,
    by_tensor: HashMap<String, usize>,
    exports: Vec<(ExportEvent, usize)>,
    repeats: Vec<usize>,
}

impl RecordedVersion {
    pub(super) fn new(version: PolicyVersion, path: Arc<Path>) -> Self {
        RecordedVersion {
            version,
            path,
            events: Vec::new(),
            lines: Vec::new(),
            by_tensor: HashMap::new(),
            exports: Vec::new(),
            repeats: Vec::new(),
        }
    }

    /// Keeps the first event of a tensor.
    pub(super) fn push(&mut self, event: LedgerEvent, line: usize) {
        self.by_tensor.insert(event.tensor.clone(), self.events.len());
        self.events.push(event);
        self.lines.push(line);
    }

    /// Keeps an export, unless it is there already.
    pub(super) fn push_export(&mut self, event: ExportEvent, line: usize) {
        match self.exports.iter().any(|(first, _)| *first == event) {
            true => self.repeat(line),
            false => self.exports.push((event, line)),
        }
    }

    /// Notes a line that says again what an earlier one said.
    pub(super) fn repeat(&mut self, line: usize) {
        self.repeats.push(line);
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// One event per tensor, in the order in which they were recorded.
    #[must_use]
    pub fn events(&self) -> &[LedgerEvent] {
        &self.events
    }

    /// Every event with its line.
    pub fn lines(&self) -> impl Iterator<Item = (&LedgerEvent, LogLine)> {
        self.events.iter().zip(&self.lines).map(|(event, &line)| (event, self.at(line)))
    }

    /// The event of a tensor.
    #[must_use]
    pub fn event(&self, tensor: &str) -> Option<&LedgerEvent> {
        self.by_tensor.get(tensor).map(|&index| &self.events[index])
    }

    /// The line of a tensor's event.
    #[must_use]
    pub fn line(&self, tensor: &str) -> Option<LogLine> {
        self.by_tensor.get(tensor).map(|&index| self.at(self.lines[index]))
    }

    /// The lines of the version's first and last event, exports not counted.
    #[must_use]
    pub fn extent(&self) -> [LogLine; 2] {
        let ends = [self.lines.first(), self.lines.last()];
        ends.map(|line| self.at(line.copied().unwrap_or_default()))
    }

    /// The last export of the version, if one was recorded.
    #[must_use]
    pub fn export(&self) -> Option<&ExportEvent> {
        self.exports.last().map(|(event, _)| event)
    }

    /// Every export that differs from those before it, with its line.
    pub fn exports(&self) -> impl DoubleEndedIterator<Item = (&ExportEvent, LogLine)> {
        self.exports.iter().map(|(event, line)| (event, self.at(*line)))
    }

    /// The lines that say again what an earlier line says.
    pub fn repeats(&self) -> impl Iterator<Item = LogLine> {
        self.repeats.iter().map(|&line| self.at(line))
    }

    /// The digest that a policy of these tensors has under a precision map.
    #[must_use]
    pub fn policy_digest(&self, precision_map: &Digest) -> Digest {
        policy_digest(precision_map, self.events.iter().map(|event| (event.tensor.as_str(), &event.output_digest)))
    }

    /// A line of the ledger.
    fn at(&self, line: usize) -> LogLine {
        LogLine { path: self.path.to_path_buf(), line }
    }
}
