//! What can end a run.

use miles_core::checkpoint::CheckpointError;
use miles_core::policy::PolicyError;

use crate::checkpoint::ResumeError;
use crate::config::ConfigErrors;
use crate::data::DataError;
use crate::output::OutputError;
use crate::stages::StageError;

/// Result of the loop's fallible operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can end a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The config.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Prompts, tokenizer, chat template.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The output directory and the files in it.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Going on from a checkpoint.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A stage got something from a plug-in that it cannot use.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Formats, models, backends, and everything else that the core reports.
    #[error(transparent)]
    Core(#[from] miles_core::Error),
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        Error::Core(error.into())
    }
}

impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        Error::Core(error.into())
    }
}
