//! Waiting for many futures at once on any executor, and panics as values.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// A boxed future.
pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Results in order. A future that panics gives its panic message as an error; the others are not affected.
pub(super) async fn join_all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<Result<T, String>> {
    let mut results: Vec<Option<Result<T, String>>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_ready = true;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_some() {
                continue;
            }
            // A future that panicked is never polled again, so no broken state is seen.
            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
                Ok(Poll::Ready(value)) => *result = Some(Ok(value)),
                Ok(Poll::Pending) => is_ready = false,
                Err(panic) => *result = Some(Err(message(panic.as_ref()))),
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}
