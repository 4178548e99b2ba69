//! What can go wrong with stored versions.

use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::CheckpointError;
use crate::digest::Digest;
use crate::format::FormatError;
use crate::policy::{PolicyStamp, PolicyVersion};

/// What can go wrong with stored versions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed (a full disk is among the causes).
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A description that is none.
    #[error("{}: not the description of a policy version: {why}", path.display())]
    BadDescription {
        /// File.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file that is larger than any description.
    #[error("{}: {actual_bytes} bytes, more than the limit of {limit_bytes}", path.display())]
    OverLimit {
        /// File.
        path: PathBuf,
        /// Its size.
        actual_bytes: u64,
        /// Most that is read.
        limit_bytes: u64,
    },
    /// A version of another model.
    #[error("{at}: the policy is of the network {found}, the store of {expected}")]
    OtherNetwork {
        /// File, or the version offered.
        at: String,
        /// Digest of the store's network.
        expected: Digest,
        /// Digest of the version's network.
        found: Digest,
    },
    /// A version made by another precision map.
    #[error("{at}: the policy is of the precision map {found}, the store of {expected}")]
    OtherMap {
        /// File, or the version offered.
        at: String,
        /// Digest of the store's map.
        expected: Digest,
        /// Digest of the version's map.
        found: Digest,
    },
    /// A part of a tensor is missing, or is not what the description says.
    #[error("{}: `{tensor}`, {part}: {why}", path.display())]
    BadPart {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Which of its parts.
        part: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Bytes that are not those published.
    #[error("{}: `{tensor}` has the digest {found}, published was {expected}", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// Tensor, with the part where only that is covered.
        tensor: String,
        /// Digest in the description.
        expected: Digest,
        /// Digest of the bytes.
        found: Digest,
    },
    /// Tensors that are whole, but do not make the policy described.
    #[error("{}: the tensors make the policy {found}, described is {expected}", path.display())]
    OtherPolicy {
        /// Description.
        path: PathBuf,
        /// Digest in the description.
        expected: Digest,
        /// Digest of the tensors together.
        found: Digest,
    },
    /// The container of a version's tensors is damaged.
    #[error(transparent)]
    Container(Box<CheckpointError>),
    /// Parts that make no tensor of their format.
    #[error("{}: {source}", path.display())]
    Format {
        /// File.
        path: PathBuf,
        /// Cause; names the tensor.
        source: Box<FormatError>,
    },
    /// A tensor in memory that is not what its snapshot says.
    #[error("version {version}: `{tensor}` has the digest {found}, sealed was {expected}")]
    Unsealed {
        /// The version.
        version: PolicyVersion,
        /// Tensor.
        tensor: String,
        /// Digest in the snapshot.
        expected: Digest,
        /// Digest of the bytes.
        found: Digest,
    },
    /// A version that comes out of a store otherwise than it went in.
    #[error("the store gives {found} for {expected}")]
    Exchanged {
        /// What was published, or asked for.
        expected: PolicyStamp,
        /// What came out.
        found: PolicyStamp,
    },
    /// A version is unpinned more often than it was pinned.
    #[error("policy version {version} is not pinned")]
    NotPinned {
        /// Version.
        version: PolicyVersion,
    },
}

/// For `map_err`: an I/O error of one file.
pub(super) fn io_error(path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path: path.clone(), source }
}
