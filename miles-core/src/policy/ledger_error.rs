//! What can be wrong with a ledger file.

use std::path::PathBuf;

use super::PolicyVersion;

/// What can be wrong with a ledger file. Every variant but the first names the line, counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// No event at all: nothing can be compared with it.
    #[error("{}: the ledger holds no event", path.display())]
    Empty {
        /// File.
        path: PathBuf,
    },
    /// A line that is no event.
    #[error("{}:{line}: not an event: {source}", path.display())]
    Line {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
    /// An event, but not in the bytes that a ledger writes for it.
    #[error("{}:{line}: not as it was written: byte {byte} of the line differs from what its values are written as", path.display())]
    Form {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// First byte of the line that differs, counted from 0.
        byte: usize,
    },
    /// A last line without its end: whoever wrote it was stopped while writing.
    #[error("{}:{line}: the last line is torn after {bytes} bytes", path.display())]
    Torn {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Bytes of it that are there.
        bytes: usize,
    },
    /// A line longer than any event.
    #[error("{}:{line}: the line is longer than {limit_bytes} bytes", path.display())]
    LongLine {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Largest length.
        limit_bytes: u64,
    },
    /// A version after a newer one: the file mixes two runs.
    #[error("{}:{line}: version {version} after version {newest}", path.display())]
    Order {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Version of the line.
        version: PolicyVersion,
        /// Version of the line before.
        newest: PolicyVersion,
    },
    /// One tensor of one version with two sources, two results or two formats.
    #[error(
        "{}:{line}: tensor `{tensor}` of version {version} has {what} {second}, line {first_line} has {first}",
        path.display()
    )]
    Contradiction {
        /// File.
        path: PathBuf,
        /// Line of the second event.
        line: usize,
        /// Line of the first event.
        first_line: usize,
        /// Tensor.
        tensor: String,
        /// Version.
        version: PolicyVersion,
        /// What differs: `source`, `output` or `format`.
        what: &'static str,
        /// Value of the first event.
        first: String,
        /// Value of the second event.
        second: String,
    },
    /// An export of a version without quantization events.
    #[error("{}:{line}: version {version} was exported but none of its tensors was recorded", path.display())]
    ExportOnly {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Version.
        version: PolicyVersion,
    },
    /// An exported file outside the exported directory.
    #[error("{}:{line}: the exported file `{file}` is not below the directory", path.display())]
    ForeignFile {
        /// File.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Name of the exported file.
        file: String,
    },
}
