//! [`Budget`]: how many bytes may be held at once.

use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes that are free to be held. Who asks first is admitted first, so that a large unit is not overtaken for ever.
#[derive(Debug)]
pub(super) struct Budget {
    free_bytes: Mutex<u64>,
    freed: Condvar,
    /// Held while waiting: the queue.
    turn: Mutex<()>,
}

/// Bytes held; given back when dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Budget { free_bytes: Mutex::new(bytes), freed: Condvar::new(), turn: Mutex::new(()) }
    }

    /// Waits until `bytes` are free and takes them. More than the whole budget would wait for ever; a plan is checked
    /// for that before.
    pub(super) fn take(&self, bytes: u64) -> Held<'_> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free < bytes).unwrap_or_else(PoisonError::into_inner);
        *free -= bytes;
        Held { budget: self, bytes }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.budget.free_bytes.lock().unwrap_or_else(PoisonError::into_inner) += self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn no_more_than_the_budget_is_ever_held() {
        let budget = Budget::new(10);
        let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for worker in 0..4_u64 {
                let (budget, held, most) = (&budget, &held, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = 1 + (worker * 3 + round) % 10;
                        let taken = budget.take(bytes);
                        most.fetch_max(held.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        drop(taken);
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!((6..=10).contains(&most), "{most}");
        assert_eq!(*budget.free_bytes.lock().unwrap(), 10);
    }
}
