//! Independent pieces of work on several threads, with their results in order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::Result;

/// Results of `work` for `0..count`, in order, on at most `threads` threads. Pieces are begun in order; after an error no more
/// are begun.
///
/// # Errors
/// The error of the first piece that has one, whatever the threads.
pub(super) fn in_order<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).map(work).collect();
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<Option<Result<T>>>> = Mutex::new((0..count).map(|_| None).collect());
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = work(index);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    // What was not begun comes after an error, so the collection stops before it.
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Error;

    fn failing_at(places: &[usize]) -> impl Fn(usize) -> Result<usize> + Sync {
        move |index| {
            // Earlier pieces take longer, so that later errors come first.
            thread::sleep(std::time::Duration::from_micros(400_u64.saturating_sub(index as u64 * 20)));
            if places.contains(&index) {
                let (backend, why) = (index.to_string(), String::new());
                return Err(Error::Unsupported { operation: String::new(), backend, why });
            }
            Ok(index * index)
        }
    }

    #[test]
    fn results_are_in_order_on_any_number_of_threads() {
        for (count, threads) in [(0, 4), (1, 4), (20, 0), (20, 1), (20, 2), (20, 64)] {
            let squares = in_order(count, threads, failing_at(&[])).unwrap();
            assert_eq!(squares, (0..count).map(|index| index * index).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_is_reported_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            for places in [&[3, 4, 5][..], &[0, 19], &[17, 18, 19]] {
                match in_order(20, threads, failing_at(places)) {
                    Err(Error::Unsupported { backend, .. }) => assert_eq!(backend, places[0].to_string()),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
