//! [`ThrottledStore`]: a store that takes no more than so many changed bytes a second.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{PolicyStore, ThreadTimer, Timer};
use crate::Result;
use crate::policy::delta::changed_bytes;
use crate::policy::{PolicyVersion, Snapshot};

/// Delays each publication by the time that its changed bytes take, so that a run behaves as over a link of that width.
///
/// What counts is the bytes of blocks that differ from the inner store's newest version, all of them for the first. The
/// publication itself comes after the wait, so a wait that is dropped, and an inner store that refuses, leave nothing
/// published. Publications queue for the link in the order of their calls.
pub struct ThrottledStore<S> {
    inner: S,
    bytes_per_second: NonZeroU64,
    timer: Arc<dyn Timer>,
    /// When the link is free again.
    free_at: Mutex<Duration>,
}

impl<S: PolicyStore> ThrottledStore<S> {
    /// A link of `bytes_per_second` in front of a store, by the system's clock.
    #[must_use]
    pub fn new(inner: S, bytes_per_second: NonZeroU64) -> Self {
        Self::with_timer(inner, bytes_per_second, Arc::new(ThreadTimer::new()))
    }

    /// The same by another clock.
    #[must_use]
    pub fn with_timer(inner: S, bytes_per_second: NonZeroU64, timer: Arc<dyn Timer>) -> Self {
        ThrottledStore { inner, bytes_per_second, timer, free_at: Mutex::default() }
    }

    /// The store behind the link.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Takes the link for so many bytes; the time at which they are through.
    fn reserve(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        let taken = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = (*free_at).max(self.timer.now()).saturating_add(taken);
        *free_at
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: PolicyStore> PolicyStore for ThrottledStore<S> {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let base = self.inner.latest().await?;
        // One that the inner store will refuse has no business on the link.
        let stale = base.as_ref().is_some_and(|base| base.stamp().version >= snapshot.stamp().version);
        if !stale {
            let through = self.reserve(changed_bytes(base.as_deref(), &snapshot, BLOCK_BYTES));
            drop(base);
            self.timer.until(through).await;
        }
        self.inner.publish(snapshot).await
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        self.inner.latest().await
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        self.inner.version(version).await
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        self.inner.newer_than(version).await
    }
}

const BLOCK_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::conformance::fixture::{Family, policy};
    use crate::conformance::wait;
    use crate::policy::{MemoryStore, PolicyError};
    use crate::precision::Recipe;

    /// A clock that stands still until it is set; whoever waits has to be polled again.
    #[derive(Default)]
    struct HandTimer(Mutex<Duration>);

    impl Timer for HandTimer {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
            Box::pin(std::future::poll_fn(move |_| if self.now() >= time { Poll::Ready(()) } else { Poll::Pending }))
        }
    }

    fn store(bytes_per_second: u64) -> (ThrottledStore<MemoryStore>, Arc<HandTimer>) {
        let timer = Arc::new(HandTimer::default());
        let rate = NonZeroU64::new(bytes_per_second).unwrap();
        (ThrottledStore::with_timer(MemoryStore::new(4), rate, Arc::clone(&timer) as _), timer)
    }

    #[test]
    fn a_publication_lands_when_its_changed_bytes_are_through_and_not_before() {
        let (store, timer) = store(1000);
        let snapshots = [0, 1].map(|version| policy(Family::Dense, Recipe::Mxfp8, version).unwrap());
        let mut start = Duration::ZERO;
        for snapshot in &snapshots {
            let base = wait(store.latest()).unwrap();
            let bytes = changed_bytes(base.as_deref(), snapshot, BLOCK_BYTES);
            assert!(bytes > 1000, "{bytes}");
            let through = start + Duration::from_millis(bytes);
            let mut publication = pin!(store.publish(Arc::clone(snapshot)));
            let mut context = Context::from_waker(Waker::noop());
            for early in [start, through - Duration::from_millis(1)] {
                *timer.0.lock().unwrap() = early;
                assert!(publication.as_mut().poll(&mut context).is_pending());
                assert_eq!(wait(store.latest()).unwrap().map(|held| held.stamp()), base.as_ref().map(|b| b.stamp()));
            }
            *timer.0.lock().unwrap() = through;
            assert!(matches!(publication.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
            assert_eq!(wait(store.latest()).unwrap().unwrap().stamp(), snapshot.stamp());
            start = through;
        }
    }

    #[test]
    fn equal_bytes_take_no_time_and_a_stale_version_is_refused_at_once() {
        let (store, timer) = store(1);
        *timer.0.lock().unwrap() = Duration::MAX;
        let first = policy(Family::Dense, Recipe::Bf16, 1).unwrap();
        wait(store.publish(Arc::clone(&first))).unwrap();
        *timer.0.lock().unwrap() = Duration::ZERO;
        *store.free_at.lock().unwrap() = Duration::ZERO;
        let tensors = first.network().ids().map(|id| Arc::clone(first.tensor(id))).collect();
        let (network, map) = (Arc::clone(first.network()), Arc::clone(first.map()));
        let again = Snapshot::new(PolicyVersion(2), network, map, tensors).unwrap();
        wait(store.publish(Arc::new(again))).unwrap();
        let error = wait(store.publish(first)).unwrap_err();
        assert!(matches!(error, crate::Error::Policy(PolicyError::NotMonotonic { .. })), "{error}");
    }

    #[test]
    fn a_dropped_publication_leaves_nothing_published() {
        let (store, timer) = store(1);
        let snapshot = policy(Family::Dense, Recipe::Bf16, 0).unwrap();
        {
            let mut publication = pin!(store.publish(Arc::clone(&snapshot)));
            assert!(publication.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        *timer.0.lock().unwrap() = Duration::MAX;
        assert!(wait(store.latest()).unwrap().is_none());
        wait(store.publish(snapshot)).unwrap();
    }
}
