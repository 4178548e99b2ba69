//! Thread pools of a size that a machine can have.

use std::sync::Arc;

use miles_core::plugin::limits::MAX_THREADS;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{BACKEND, OperationError};

/// A pool of `threads` worker threads (at least one).
///
/// # Errors
/// [`OperationError::TooManyThreads`] before one is started; [`OperationError::Threads`] if the operating system
/// refuses them.
pub(crate) fn pool(threads: usize) -> Result<Arc<ThreadPool>, OperationError> {
    if threads > MAX_THREADS {
        return Err(OperationError::TooManyThreads { threads, limit: MAX_THREADS });
    }
    let builder = ThreadPoolBuilder::new().num_threads(threads.max(1));
    match builder.thread_name(|index| format!("{BACKEND}-{index}")).build() {
        Ok(pool) => Ok(Arc::new(pool)),
        Err(error) => Err(OperationError::Threads { threads, why: error.to_string() }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_the_limit_are_refused_before_one_starts() {
        for threads in [MAX_THREADS + 1, usize::MAX] {
            let error = pool(threads).unwrap_err();
            assert_eq!(error, OperationError::TooManyThreads { threads, limit: MAX_THREADS });
        }
        assert_eq!(pool(0).unwrap().current_num_threads(), 1);
        assert_eq!(pool(3).unwrap().current_num_threads(), 3);
    }
}
