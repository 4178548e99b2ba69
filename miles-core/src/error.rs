//! The library's error: one variant per kind of thing that went wrong, each with its own data.

use crate::checkpoint::CheckpointError;
use crate::convert::ConvertError;
use crate::format::{FormatError, ShardError};
use crate::model::ModelError;
use crate::plugin::{RolloutError, TrainError};
use crate::policy::PolicyError;
use crate::precision::PrecisionError;
use crate::registry::RegistryError;
use crate::tensor::TensorError;

/// Result of the library's fallible operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A backend cannot do what was asked. Declared ahead in its capabilities; never a silent fallback.
    #[error("{backend} does not support {operation}: {why}")]
    Unsupported {
        /// Operation.
        operation: String,
        /// Backend.
        backend: String,
        /// Reason.
        why: String,
    },
    /// Quantization.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Shards of quantized tensors.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// Shapes of dense tensors.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Reading a model's configuration.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Reading or writing checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Precision rules and recipes.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// Policy versions.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Conversion.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// Rollout.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// Training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Names of plug-ins.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// An error of a plug-in from outside this crate.
    #[error("{plugin}: {source}")]
    Plugin {
        /// Which plug-in.
        plugin: String,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
