//! Where policy versions live.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{PolicyError, PolicyVersion, Snapshot};
use crate::Result;

/// Holds published policy versions.
///
/// Publication is all-or-nothing, versions only grow, and a reader keeps the snapshot it holds while newer ones land.
#[async_trait]
pub trait PolicyStore: Send + Sync {
    /// Makes a snapshot the newest version.
    ///
    /// # Errors
    /// If the version is not newer than the newest held, or storage fails; the store is then unchanged.
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()>;

    /// The newest version, if any.
    ///
    /// # Errors
    /// If storage fails.
    async fn latest(&self) -> Result<Option<Arc<Snapshot>>>;

    /// A given version.
    ///
    /// # Errors
    /// If it is not held or storage fails.
    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>>;
}

/// Keeps the newest versions in memory.
#[derive(Debug)]
pub struct MemoryStore {
    kept_versions: usize,
    versions: Mutex<BTreeMap<PolicyVersion, Arc<Snapshot>>>,
}

impl MemoryStore {
    /// A store that keeps the newest `kept_versions` (at least one).
    #[must_use]
    pub fn new(kept_versions: usize) -> Self {
        MemoryStore { kept_versions: kept_versions.max(1), versions: Mutex::new(BTreeMap::new()) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PolicyVersion, Arc<Snapshot>>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl PolicyStore for MemoryStore {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let published = snapshot.stamp().version;
        let mut versions = self.lock();
        if let Some((&newest, _)) = versions.last_key_value()
            && published <= newest
        {
            return Err(PolicyError::NotMonotonic { published, newest }.into());
        }
        versions.insert(published, snapshot);
        while versions.len() > self.kept_versions {
            versions.pop_first();
        }
        Ok(())
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        Ok(self.lock().last_key_value().map(|(_, snapshot)| Arc::clone(snapshot)))
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        let versions = self.lock();
        versions.get(&version).cloned().ok_or_else(|| {
            let held = versions.keys().map(|version| version.0).collect();
            PolicyError::UnknownVersion { version, held }.into()
        })
    }
}
