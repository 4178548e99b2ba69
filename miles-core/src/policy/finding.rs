//! One thing in which stored bytes and a ledger differ.

use std::fmt;

use super::FileDigest;
use crate::checkpoint::CheckpointError;
use crate::digest::Digest;

/// One thing in which stored bytes and a ledger differ; each names its tensor or file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// A file has other bytes than were exported.
    File {
        /// Path in the directory.
        file: String,
        /// When it was exported.
        recorded: FileDigest,
        /// Now.
        found: FileDigest,
    },
    /// A file that was exported is not there.
    MissingFile {
        /// Path in the directory.
        file: String,
    },
    /// A file that was not exported.
    UnrecordedFile {
        /// Path in the directory.
        file: String,
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
        /// In the ledger.
        recorded: Digest,
        /// From the bytes.
        found: Digest,
    },
    /// A tensor is stored in another format than was recorded.
    Format {
        /// Tensor.
        tensor: String,
        /// In the ledger.
        recorded: String,
        /// As stored.
        found: String,
    },
    /// A tensor's bytes are none that a quantizer emits, or cannot be read.
    UnreadTensor {
        /// Tensor.
        tensor: String,
        /// Why.
        error: CheckpointError,
    },
    /// A tensor of the ledger is not in the directory.
    MissingTensor {
        /// Tensor.
        tensor: String,
    },
    /// A tensor of the directory is not in the ledger.
    UnrecordedTensor {
        /// Tensor.
        tensor: String,
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
            | Finding::Unopened { .. } => None,
            Finding::Tensor { tensor, .. }
            | Finding::Format { tensor, .. }
            | Finding::UnreadTensor { tensor, .. }
            | Finding::MissingTensor { tensor }
            | Finding::UnrecordedTensor { tensor } => Some(tensor),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::File { file, recorded, found } if recorded.bytes != found.bytes => write!(
                f,
                "file `{file}`: recorded {} ({} bytes), found {} ({} bytes)",
                recorded.digest, recorded.bytes, found.digest, found.bytes
            ),
            Finding::File { file, recorded, found } => {
                write!(f, "file `{file}`: recorded {}, found {}", recorded.digest, found.digest)
            }
            Finding::MissingFile { file } => write!(f, "file `{file}`: recorded, but not in the directory"),
            Finding::UnrecordedFile { file } => write!(f, "file `{file}`: in the directory, but not recorded"),
            Finding::Unopened { error } => write!(f, "cannot be opened: {error}"),
            Finding::Tensor { tensor, recorded, found } => {
                write!(f, "tensor `{tensor}`: recorded {recorded}, found {found}")
            }
            Finding::Format { tensor, recorded, found } => {
                write!(f, "tensor `{tensor}`: recorded as {recorded}, stored as {found}")
            }
            Finding::UnreadTensor { tensor, error } => write!(f, "tensor `{tensor}`: {error}"),
            Finding::MissingTensor { tensor } => write!(f, "tensor `{tensor}`: recorded, but not in the directory"),
            Finding::UnrecordedTensor { tensor } => write!(f, "tensor `{tensor}`: in the directory, but not recorded"),
        }
    }
}
