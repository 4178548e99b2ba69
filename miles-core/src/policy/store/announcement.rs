//! [`Announcement`]: tells everyone who waits that a newer version is there.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::policy::PolicyVersion;

/// The newest version announced, and the wakers of those who wait for a newer one.
///
/// A waiter is registered under the same lock as the comparison with the newest version, so no announcement can fall
/// between the two. A store announces a version after it can be read.
#[derive(Debug, Default)]
pub struct Announcement {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    newest: Option<PolicyVersion>,
    waiting: BTreeMap<u64, Waker>,
    next_key: u64,
}

impl Announcement {
    /// Nothing announced yet.
    #[must_use]
    pub fn new() -> Self {
        Announcement::default()
    }

    /// Wakes everyone who waits for a version older than this one. A version older than the newest changes nothing.
    pub fn announce(&self, version: PolicyVersion) {
        let woken = {
            let mut state = self.lock();
            if state.newest >= Some(version) {
                return;
            }
            state.newest = Some(version);
            std::mem::take(&mut state.waiting)
        };
        // Outside the lock: a waker may run anything, a poll of the waiter included.
        woken.into_values().for_each(Waker::wake);
    }

    /// Resolves to the newest version announced, once it is newer than `version`.
    #[must_use]
    pub fn newer_than(&self, version: Option<PolicyVersion>) -> Announced<'_> {
        Announced { announcement: self, after: version, key: None }
    }

    /// Number of futures that are registered now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future of [`Announcement::newer_than`]. Dropping it takes it off the list.
#[derive(Debug)]
pub struct Announced<'a> {
    announcement: &'a Announcement,
    after: Option<PolicyVersion>,
    key: Option<u64>,
}

impl Future for Announced<'_> {
    type Output = PolicyVersion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PolicyVersion> {
        // A waker that is replaced is dropped after the lock: its drop may run anything too.
        let replaced;
        let mut state = self.announcement.lock();
        if let Some(newest) = state.newest.filter(|newest| self.after.is_none_or(|after| *newest > after)) {
            replaced = self.key.take().and_then(|key| state.waiting.remove(&key));
            drop(state);
            drop(replaced);
            return Poll::Ready(newest);
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                state.next_key += 1;
                state.next_key
            }
        };
        replaced = state.waiting.insert(key, context.waker().clone());
        drop(state);
        drop(replaced);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let removed = self.announcement.lock().waiting.remove(&key);
            drop(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(future: &mut Announced<'_>, count: &Arc<Count>) -> Poll<PolicyVersion> {
        Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
    }

    #[test]
    fn every_waiter_of_an_older_version_is_woken_once() {
        let (announcement, count) = (Announcement::new(), Arc::new(Count::default()));
        let mut waiters: Vec<_> = (0..5).map(|_| announcement.newer_than(None)).collect();
        waiters.iter_mut().for_each(|waiter| assert!(poll(waiter, &count).is_pending()));
        assert_eq!(announcement.waiting(), 5);
        announcement.announce(PolicyVersion(3));
        assert_eq!((announcement.waiting(), count.0.load(Ordering::Relaxed)), (0, 5));
        for waiter in &mut waiters {
            assert_eq!(poll(waiter, &count), Poll::Ready(PolicyVersion(3)));
        }
    }

    #[test]
    fn equal_and_older_versions_are_no_news() {
        let (announcement, count) = (Announcement::new(), Arc::new(Count::default()));
        announcement.announce(PolicyVersion(4));
        let mut waiter = announcement.newer_than(Some(PolicyVersion(4)));
        assert!(poll(&mut waiter, &count).is_pending());
        announcement.announce(PolicyVersion(2));
        announcement.announce(PolicyVersion(4));
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        announcement.announce(PolicyVersion(5));
        assert_eq!(poll(&mut waiter, &count), Poll::Ready(PolicyVersion(5)));
        assert_eq!(poll(&mut announcement.newer_than(Some(PolicyVersion(0))), &count), Poll::Ready(PolicyVersion(5)));
    }

    #[test]
    fn a_dropped_waiter_leaves_nothing_and_takes_no_wake_up() {
        let (announcement, [first, second]) = (Announcement::new(), [(), ()].map(|()| Arc::new(Count::default())));
        let (mut dropped, mut kept) = (announcement.newer_than(None), announcement.newer_than(None));
        assert!(poll(&mut dropped, &first).is_pending() && poll(&mut kept, &second).is_pending());
        drop(dropped);
        assert_eq!(announcement.waiting(), 1);
        assert_eq!(Arc::strong_count(&first), 1);
        announcement.announce(PolicyVersion(0));
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn a_waiter_that_moves_between_tasks_wakes_the_last_one() {
        let (announcement, [first, second]) = (Announcement::new(), [(), ()].map(|()| Arc::new(Count::default())));
        let mut waiter = announcement.newer_than(None);
        assert!(poll(&mut waiter, &first).is_pending() && poll(&mut waiter, &second).is_pending());
        assert_eq!(announcement.waiting(), 1);
        announcement.announce(PolicyVersion(0));
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    }
}
