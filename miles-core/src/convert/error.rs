//! What can be wrong with a conversion beside its source.

use std::path::PathBuf;

/// Why a conversion does not start. Every variant names the tensor or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A tensor (or a gate/up pair) that cannot be converted within the budget.
    #[error("`{tensor}` needs {needed_bytes} bytes of memory to be converted, more than the budget of {budget_bytes}")]
    BudgetTooSmall {
        /// Tensor, the first one of a pair.
        tensor: String,
        /// Bytes of source and result that are held at once.
        needed_bytes: u64,
        /// The budget.
        budget_bytes: u64,
    },
    /// A band of a tensor that cannot be quantized.
    #[error("in the band of rows from {first_row} on: {source}")]
    Band {
        /// First row of the band; the cause counts rows from there.
        first_row: usize,
        /// Cause; names the tensor.
        source: Box<crate::Error>,
    },
    /// Another process is converting into the same output.
    #[error("{}: another process is converting into this output", path.display())]
    Busy {
        /// Journal that it holds.
        path: PathBuf,
    },
    /// An output path that names no directory.
    #[error("{}: not the path of a new directory", path.display())]
    NoName {
        /// Output as given.
        path: PathBuf,
    },
    /// A directory without a contract cannot be verified.
    #[error("{}: no contract sidecar, so there is nothing to verify against", dir.display())]
    NoContract {
        /// Directory.
        dir: PathBuf,
    },
}
