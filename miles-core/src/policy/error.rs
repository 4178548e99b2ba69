//! What can go wrong with policy versions.

use super::{DeltaError, LedgerError, PolicyStamp, PolicyVersion, StoreError};
use crate::precision::PartitionPlan;

/// What can go wrong with policy versions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A version was published that is not newer than the newest one.
    #[error("policy version {published} was published after version {newest}; versions must grow")]
    NotMonotonic {
        /// Version offered.
        published: PolicyVersion,
        /// Newest version held.
        newest: PolicyVersion,
    },
    /// A version that is not (or no longer) held.
    #[error("policy version {version} is not held (held: {held:?})")]
    UnknownVersion {
        /// Version asked for.
        version: PolicyVersion,
        /// Versions held.
        held: Vec<u64>,
    },
    /// Rollouts came from another policy than the one that should have been live.
    #[error("{operation}: expected the policy {expected}, found {actual}")]
    StaleVersion {
        /// Where it was noticed.
        operation: &'static str,
        /// Policy that should be live.
        expected: PolicyStamp,
        /// Policy found.
        actual: PolicyStamp,
    },
    /// One tensor of one version came from two different sources.
    #[error("tensor `{tensor}` of version {version} was quantized from source {first} and again from {second}")]
    TwoSources {
        /// Tensor.
        tensor: String,
        /// Version.
        version: PolicyVersion,
        /// Digest of the first source.
        first: String,
        /// Digest of the second source.
        second: String,
    },
    /// The snapshot's tensors do not fit the network.
    #[error("tensor `{tensor}`: {why}")]
    TensorMismatch {
        /// Tensor.
        tensor: String,
        /// What does not fit.
        why: String,
    },
    /// A ledger file that cannot be trusted.
    #[error(transparent)]
    Ledger(Box<LedgerError>),
    /// A store cannot take or give a version.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// A difference between two versions cannot be made, read or applied.
    #[error(transparent)]
    Delta(Box<DeltaError>),
    /// Trainer and engine cut routed experts differently, so their shards would not have the same bytes.
    #[error("the trainer's policy has {trainer}, the engine {engine}; the engine keeps the version that it has")]
    PartitionMismatch {
        /// Plan of the snapshot's map.
        trainer: PartitionPlan,
        /// Plan that the engine was made with.
        engine: PartitionPlan,
    },
    /// Reading or writing failed.
    #[error("{path}: {source}")]
    Io {
        /// File.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
}

impl From<LedgerError> for PolicyError {
    fn from(error: LedgerError) -> Self {
        PolicyError::Ledger(Box::new(error))
    }
}

impl From<StoreError> for PolicyError {
    fn from(error: StoreError) -> Self {
        PolicyError::Store(Box::new(error))
    }
}

impl From<DeltaError> for PolicyError {
    fn from(error: DeltaError) -> Self {
        PolicyError::Delta(Box::new(error))
    }
}
