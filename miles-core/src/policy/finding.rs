//! One thing in which a ledger contradicts itself, or stored bytes contradict a ledger.

use std::fmt;
use std::path::PathBuf;

use super::{FileDigest, LogLine, PolicyVersion};
use crate::checkpoint::CheckpointError;
use crate::digest::Digest;
use crate::format::FormatError;

/// One thing in which a ledger contradicts itself, or stored bytes contradict a ledger; each names its tensor or file,
/// and the line of the ledger that it is about.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// A file has other bytes than were exported.
    File {
        /// Path in the directory.
        file: String,
        /// Export.
        at: LogLine,
        /// When it was exported.
        recorded: FileDigest,
        /// Now.
        found: FileDigest,
    },
    /// A file that was exported is not there.
    MissingFile {
        /// Path in the directory.
        file: String,
        /// Export.
        at: LogLine,
    },
    /// A file that was not exported.
    UnrecordedFile {
        /// Path in the directory.
        file: String,
        /// Export.
        at: LogLine,
    },
    /// A directory that was exported is not there.
    MissingDirectory {
        /// Directory.
        dir: PathBuf,
        /// Export.
        at: LogLine,
    },
    /// No line records the export of a directory, so nothing vouches for its files.
    Unexported {
        /// Directory.
        dir: PathBuf,
        /// Last event of the version.
        at: LogLine,
        /// The version that its tensors were compared with.
        version: PolicyVersion,
    },
    /// The directory is no checkpoint, or no longer.
    Unopened {
        /// Why; names the file.
        error: CheckpointError,
    },
    /// A tensor's digest, computed from its bytes, is not the recorded one.
    Tensor {
        /// Tensor.
        tensor: String,
        /// Event.
        at: LogLine,
        /// In the ledger.
        recorded: Digest,
        /// From the bytes.
        found: Digest,
    },
    /// A tensor is stored in another format than was recorded.
    Format {
        /// Tensor.
        tensor: String,
        /// Event.
        at: LogLine,
        /// In the ledger.
        recorded: String,
        /// As stored.
        found: String,
    },
    /// A tensor's bytes are none that a quantizer emits, or cannot be read.
    UnreadTensor {
        /// Tensor.
        tensor: String,
        /// Event.
        at: LogLine,
        /// Why.
        error: CheckpointError,
    },
    /// A tensor of the ledger is not in the directory.
    MissingTensor {
        /// Tensor.
        tensor: String,
        /// Event.
        at: LogLine,
    },
    /// A tensor of the directory has no event in the ledger.
    UnrecordedTensor {
        /// Tensor.
        tensor: String,
        /// First and last event of the version that it was compared with.
        within: [LogLine; 2],
    },
    /// A value of a line is not what it can be recomputed to.
    Field {
        /// Line.
        at: LogLine,
        /// Tensor of the line; `None` for an export.
        tensor: Option<String>,
        /// Key.
        field: &'static str,
        /// In the ledger.
        recorded: String,
        /// What it should be.
        expected: String,
        /// How that is known.
        because: &'static str,
    },
    /// A tensor has another format than in an earlier version.
    FormatChange {
        /// Line.
        at: LogLine,
        /// Tensor.
        tensor: String,
        /// Format of the line.
        format: String,
        /// The tensor's first line.
        first: LogLine,
        /// Its format.
        first_format: String,
    },
    /// A line names a format that no format can be called.
    BadFormat {
        /// Line.
        at: LogLine,
        /// Tensor.
        tensor: String,
        /// What is wrong with the name.
        error: FormatError,
    },
    /// A version has no event of a tensor that the model, or another version, has.
    MissingEvent {
        /// First and last event of the version.
        within: [LogLine; 2],
        /// Version.
        version: PolicyVersion,
        /// Tensor.
        tensor: String,
    },
    /// A line is about a tensor that the model does not have.
    ForeignTensor {
        /// Line.
        at: LogLine,
        /// Tensor.
        tensor: String,
    },
    /// Versions are missing between two that follow one another.
    Gap {
        /// First event of the newer one.
        at: LogLine,
        /// The newer one.
        version: PolicyVersion,
        /// The older one.
        after: PolicyVersion,
    },
}

impl Finding {
    /// The tensor that it names, if it is about one.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Finding::File { .. }
            | Finding::MissingFile { .. }
            | Finding::UnrecordedFile { .. }
            | Finding::MissingDirectory { .. }
            | Finding::Unexported { .. }
            | Finding::Unopened { .. }
            | Finding::Gap { .. } => None,
            Finding::Field { tensor, .. } => tensor.as_deref(),
            Finding::Tensor { tensor, .. }
            | Finding::Format { tensor, .. }
            | Finding::UnreadTensor { tensor, .. }
            | Finding::MissingTensor { tensor, .. }
            | Finding::UnrecordedTensor { tensor, .. }
            | Finding::FormatChange { tensor, .. }
            | Finding::BadFormat { tensor, .. }
            | Finding::MissingEvent { tensor, .. }
            | Finding::ForeignTensor { tensor, .. } => Some(tensor),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::File { file, at, recorded, found } => write!(
                f,
                "{at}: file `{file}`: recorded {} ({} bytes), found {} ({} bytes)",
                recorded.digest, recorded.bytes, found.digest, found.bytes
            ),
            Finding::MissingFile { file, at } => write!(f, "{at}: file `{file}`: recorded, but not in the directory"),
            Finding::UnrecordedFile { file, at } => {
                write!(f, "{at}: file `{file}`: in the directory, but not recorded")
            }
            Finding::MissingDirectory { dir, at } => {
                write!(f, "{at}: {}: its export is recorded, but there is no such directory", dir.display())
            }
            Finding::Unexported { dir, at, version } => write!(
                f,
                "{at}: no line records an export of version {version}, so nothing vouches for the files of {}",
                dir.display()
            ),
            Finding::Unopened { error } => write!(f, "cannot be opened: {error}"),
            Finding::Tensor { tensor, at, recorded, found } => {
                write!(f, "{at}: tensor `{tensor}`: recorded {recorded}, found {found}")
            }
            Finding::Format { tensor, at, recorded, found } => {
                write!(f, "{at}: tensor `{tensor}`: recorded as {recorded}, stored as {found}")
            }
            Finding::UnreadTensor { tensor, at, error } => write!(f, "{at}: tensor `{tensor}`: {error}"),
            Finding::MissingTensor { tensor, at } => {
                write!(f, "{at}: tensor `{tensor}`: recorded, but not in the directory")
            }
            Finding::UnrecordedTensor { tensor, within } => {
                write!(f, "{}: tensor `{tensor}`: in the directory, but not recorded", Within(within))
            }
            Finding::Field { at, tensor, field, recorded, expected, because } => {
                write!(f, "{at}: ")?;
                if let Some(tensor) = tensor {
                    write!(f, "tensor `{tensor}`: ")?;
                }
                write!(f, "`{field}` is {recorded}, not {expected}: {because}")
            }
            Finding::FormatChange { at, tensor, format, first, first_format } => {
                write!(f, "{at}: tensor `{tensor}`: the format is {format}, in {first} it is {first_format}")
            }
            Finding::BadFormat { at, tensor, error } => write!(f, "{at}: tensor `{tensor}`: {error}"),
            Finding::MissingEvent { within, version, tensor } => {
                write!(f, "{}: version {version} has no line of tensor `{tensor}`", Within(within))
            }
            Finding::ForeignTensor { at, tensor } => write!(f, "{at}: the model has no tensor `{tensor}`"),
            Finding::Gap { at, version, after } => write!(f, "{at}: version {version} follows version {after}"),
        }
    }
}

/// `file:first-last`.
struct Within<'a>(&'a [LogLine; 2]);

impl fmt::Display for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = self.0;
        match first.line == last.line {
            true => first.fmt(f),
            false => write!(f, "{first}-{}", last.line),
        }
    }
}
