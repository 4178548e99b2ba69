//! What can be wrong with the inputs of an operation.

/// Inputs of an operation that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// Two sizes that must be equal are not.
    #[error("{operation}: {what} is {actual}, expected {expected}")]
    Shape {
        /// Operation.
        operation: &'static str,
        /// Which size.
        what: &'static str,
        /// Size that the other inputs ask for.
        expected: usize,
        /// Size found.
        actual: usize,
    },
    /// A token id outside the embedding table.
    #[error("embedding: token id {id} of row {row} is outside the table of {vocab_size} rows")]
    TokenOutOfRange {
        /// Row of the batch.
        row: usize,
        /// The id.
        id: u32,
        /// Rows of the table.
        vocab_size: usize,
    },
    /// A parameter used as something that its role does not make it.
    #[error("tensor `{tensor}` is used as a {used_as}, which its role is not")]
    Role {
        /// Tensor.
        tensor: String,
        /// What it was used as.
        used_as: &'static str,
    },
    /// Rows of one 128x128 tile of a packed weight carry different scales.
    #[error("tensor `{tensor}`: rows of one packed tile have different scales")]
    TornTile {
        /// Tensor.
        tensor: String,
    },
    /// More worker threads than a backend may have.
    #[error("{threads} worker threads, more than the limit of {limit}")]
    TooManyThreads {
        /// Threads asked for.
        threads: usize,
        /// Most that are accepted.
        limit: usize,
    },
    /// The operating system refused worker threads.
    #[error("cannot start {threads} worker threads: {why}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The reason.
        why: String,
    },
}

impl From<OperationError> for miles_core::Error {
    fn from(error: OperationError) -> Self {
        miles_core::Error::Plugin { plugin: crate::ops::BACKEND.to_owned(), source: Box::new(error) }
    }
}

/// Refuses a size that differs from the one that the other inputs ask for.
pub(crate) fn same_size(
    operation: &'static str,
    what: &'static str,
    expected: usize,
    actual: usize,
) -> Result<(), OperationError> {
    if expected == actual { Ok(()) } else { Err(OperationError::Shape { operation, what, expected, actual }) }
}
