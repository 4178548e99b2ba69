//! How a contract sidecar can be wrong, or at odds with the directory that it lies in.

use crate::digest::Digest;

/// Why a contract sidecar is refused. Every variant names the tensor, the file or the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Not a sidecar of any version.
    #[error("not a contract sidecar: {source}")]
    Json {
        /// Cause, with line and column.
        source: serde_json::Error,
    },
    /// Made under another contract than this library's.
    #[error("contract version {found}; this library knows {known}")]
    Version {
        /// As written.
        found: u64,
        /// This library's.
        known: u64,
    },
    /// A digest of the sidecar that does not follow from the rest of it.
    #[error("`{key}` is {recorded}, but what it is made from gives {found}")]
    Inconsistent {
        /// Key.
        key: &'static str,
        /// As written.
        recorded: Digest,
        /// Computed from the other entries.
        found: Digest,
    },
    /// A tensor that only the sidecar or only the directory has.
    #[error("`{tensor}` is {place}")]
    TensorSet {
        /// Tensor.
        tensor: String,
        /// Where it is, and where it is not.
        place: &'static str,
    },
    /// A tensor that is stored otherwise than the sidecar says.
    #[error("`{tensor}` is {recorded} here, but {found} in the directory")]
    Stored {
        /// Tensor.
        tensor: String,
        /// Shape and format of the sidecar.
        recorded: String,
        /// Shape and format as stored.
        found: String,
    },
    /// The bytes of a tensor are not those that the sidecar was made of.
    #[error("`{tensor}` has digest {recorded} here, but its bytes give {found}")]
    TensorDigest {
        /// Tensor.
        tensor: String,
        /// Digest of the sidecar.
        recorded: Digest,
        /// Digest of the stored bytes.
        found: Digest,
    },
    /// A file that the sidecar lists and that is not there.
    #[error("`{file}` is listed here, but is not in the directory")]
    MissingFile {
        /// File.
        file: String,
    },
    /// The bytes of a file are not those that the sidecar was made of.
    #[error(
        "`{file}` has {recorded_bytes} bytes and digest {recorded} here, but {found_bytes} bytes and digest {found}"
    )]
    FileDigest {
        /// File.
        file: String,
        /// Length of the sidecar.
        recorded_bytes: u64,
        /// Digest of the sidecar.
        recorded: Digest,
        /// Length found.
        found_bytes: u64,
        /// Digest found.
        found: Digest,
    },
}
