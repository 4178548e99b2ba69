//! [`MemoryStore`]: versions in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Announcement, PolicyStore, Retention, StoreError};
use crate::Result;
use crate::policy::{PolicyError, PolicyVersion, Snapshot};

/// Keeps the newest versions, and those that are pinned, in memory.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    announcement: Announcement,
}

#[derive(Debug)]
struct State {
    versions: BTreeMap<PolicyVersion, Arc<Snapshot>>,
    retention: Retention,
}

impl MemoryStore {
    /// A store that keeps the newest `kept_versions` (at least one).
    #[must_use]
    pub fn new(kept_versions: usize) -> Self {
        let state = State { versions: BTreeMap::new(), retention: Retention::new(kept_versions) };
        MemoryStore { state: Mutex::new(state), announcement: Announcement::new() }
    }

    /// Keeps a version that is held until [`unpin`](Self::unpin), whatever is published meanwhile. Pins are counted.
    ///
    /// # Errors
    /// [`PolicyError::UnknownVersion`].
    pub fn pin(&self, version: PolicyVersion) -> Result<(), PolicyError> {
        let mut state = self.lock();
        state.find(version)?;
        state.retention.pin(version);
        Ok(())
    }

    /// Takes one pin off; a version beyond the newest ones goes with its last pin.
    ///
    /// # Errors
    /// [`StoreError::NotPinned`].
    pub fn unpin(&self, version: PolicyVersion) -> Result<(), StoreError> {
        let dropped = {
            let mut state = self.lock();
            state.retention.unpin(version)?;
            state.trim()
        };
        drop(dropped);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&self, version: PolicyVersion) -> Result<&Arc<Snapshot>, PolicyError> {
        self.versions.get(&version).ok_or_else(|| {
            let held = self.versions.keys().map(|version| version.0).collect();
            PolicyError::UnknownVersion { version, held }
        })
    }

    /// Takes out what may go; the caller drops it after the lock, since a policy takes a while to free.
    fn trim(&mut self) -> Vec<Arc<Snapshot>> {
        let held: Vec<PolicyVersion> = self.versions.keys().copied().collect();
        self.retention.overdue(&held).iter().filter_map(|version| self.versions.remove(version)).collect()
    }
}

#[async_trait]
impl PolicyStore for MemoryStore {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let published = snapshot.stamp().version;
        let dropped = {
            let mut state = self.lock();
            if let Some((&newest, _)) = state.versions.last_key_value()
                && published <= newest
            {
                return Err(PolicyError::NotMonotonic { published, newest }.into());
            }
            state.versions.insert(published, snapshot);
            state.trim()
        };
        self.announcement.announce(published);
        drop(dropped);
        Ok(())
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        Ok(self.lock().versions.last_key_value().map(|(_, snapshot)| Arc::clone(snapshot)))
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        Ok(self.lock().find(version).map(Arc::clone)?)
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        let announced = self.announcement.newer_than(version).await;
        // The newest version is never dropped, so there is one, and it is the announced one or newer.
        Ok(self.latest().await?.ok_or(PolicyError::UnknownVersion { version: announced, held: Vec::new() })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::fixture::{Family, policy};
    use crate::conformance::wait;
    use crate::precision::Recipe;

    fn publish(store: &MemoryStore, versions: std::ops::Range<u64>) {
        for version in versions {
            wait(store.publish(policy(Family::Dense, Recipe::Nvfp4Dequantized, version).unwrap())).unwrap();
        }
    }

    fn held(store: &MemoryStore) -> Vec<u64> {
        match wait(store.version(PolicyVersion(u64::MAX))) {
            Err(crate::Error::Policy(PolicyError::UnknownVersion { held, .. })) => held,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pinned_version_outlives_newer_ones_and_goes_with_its_last_pin() {
        let store = MemoryStore::new(2);
        publish(&store, 0..2);
        store.pin(PolicyVersion(0)).unwrap();
        store.pin(PolicyVersion(0)).unwrap();
        publish(&store, 2..5);
        assert_eq!(held(&store), [0, 3, 4]);
        store.unpin(PolicyVersion(0)).unwrap();
        assert_eq!(held(&store), [0, 3, 4]);
        store.unpin(PolicyVersion(0)).unwrap();
        assert_eq!(held(&store), [3, 4]);
        assert!(matches!(store.unpin(PolicyVersion(0)), Err(StoreError::NotPinned { .. })));
        let error = store.pin(PolicyVersion(0)).unwrap_err();
        assert!(error.to_string().contains("[3, 4]"), "{error}");
    }
}
