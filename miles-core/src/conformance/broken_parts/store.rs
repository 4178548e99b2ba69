//! A policy store with one defect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::defects;
use crate::policy::{MemoryStore, PolicyError, PolicyStore, PolicyVersion, Snapshot};
use crate::{Error, Result};

defects! {
    /// What is wrong with a store.
    StoreDefect {
        /// Takes a version that is not newer than the newest without a word.
        TakesOlder => "publishing/growing",
        /// Keeps the first version and no other, and says that all went well.
        KeepsTheFirst => "reading/latest",
        /// Stores every tensor of a new version but the first, which stays that of the version before.
        MixesVersions => "reading/latest",
        /// Answers with the newest version where the one asked for is not held.
        AnswersWithTheNewest => "reading/unknown",
        /// Says of an unknown version that nothing at all is held.
        NamesNothingHeld => "reading/unknown",
        /// Loses the newest version when it refuses another.
        LosesOnRefusal => "publishing/refused",
        /// Is empty for a moment while a version is published.
        ShowsHalf => "concurrency/readers",
        /// Looks at the newest version, and publishes some time later.
        LooksThenLeaps => "concurrency/publishers",
        /// Knows of a subscriber, and wakes nobody.
        WakesNobody => "subscription/woken",
        /// Gives each version to one subscriber, and leaves the others waiting.
        TellsOneOnly => "subscription/everyone",
        /// Takes a publication for news whatever its version.
        DeliversOlder => "subscription/only_newer",
        /// Gives a subscriber the version that it has already.
        DeliversTwice => "subscription/only_newer",
        /// Waits for the next publication where a newer version is there already.
        MissesWhatIsThere => "subscription/at_once",
        /// Loses the wake-up of those who still wait when one of them gives up.
        LosesWithTheDropped => "subscription/dropped",
    }
}

/// A store with one defect.
#[derive(Debug)]
pub struct BrokenStore {
    defect: StoreDefect,
    inner: MemoryStore,
    first: Mutex<Option<Arc<Snapshot>>>,
    looked_at: Mutex<Option<PolicyVersion>>,
    hidden: AtomicBool,
    told: Mutex<Option<PolicyVersion>>,
    lost: AtomicBool,
}

impl BrokenStore {
    /// An empty store with a defect.
    #[must_use]
    pub fn new(defect: StoreDefect) -> Self {
        BrokenStore {
            defect,
            inner: MemoryStore::new(4),
            first: Mutex::default(),
            looked_at: Mutex::default(),
            hidden: AtomicBool::new(false),
            told: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }

    /// The snapshot with its first tensor taken from the version before.
    fn mixed(&self, snapshot: Arc<Snapshot>) -> Result<Arc<Snapshot>> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = first.replace(Arc::clone(&snapshot)) else { return Ok(snapshot) };
        let from = |index: usize| if index == 0 { &before } else { &snapshot };
        let tensors = snapshot.network().ids().map(|id| Arc::clone(from(id.index()).tensor(id))).collect();
        let (version, network) = (snapshot.stamp().version, Arc::clone(snapshot.network()));
        Ok(Arc::new(Snapshot::new(version, network, Arc::clone(snapshot.map()), tensors)?))
    }

    fn look(&self, version: PolicyVersion) {
        let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        *looked_at = (*looked_at).max(Some(version));
    }

    async fn leap(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let version = snapshot.stamp().version;
        let newest = *self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = newest.filter(|newest| version <= *newest) {
            return Err(PolicyError::NotMonotonic { published: version, newest }.into());
        }
        std::thread::sleep(Duration::from_millis(10));
        self.look(version);
        match self.inner.publish(snapshot).await {
            Err(Error::Policy(PolicyError::NotMonotonic { .. })) => Ok(()),
            other => other,
        }
    }
}

#[async_trait]
impl PolicyStore for BrokenStore {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        match self.defect {
            StoreDefect::TakesOlder => match self.inner.publish(snapshot).await {
                Err(Error::Policy(PolicyError::NotMonotonic { .. })) => Ok(()),
                other => other,
            },
            StoreDefect::KeepsTheFirst => match self.inner.latest().await? {
                None => self.inner.publish(snapshot).await,
                Some(_) => Ok(()),
            },
            StoreDefect::MixesVersions => self.inner.publish(self.mixed(snapshot)?).await,
            StoreDefect::LosesOnRefusal => {
                let result = self.inner.publish(snapshot).await;
                self.hidden.store(result.is_err(), Ordering::Release);
                result
            }
            StoreDefect::ShowsHalf => {
                self.hidden.store(true, Ordering::Release);
                std::thread::sleep(Duration::from_millis(20));
                let result = self.inner.publish(snapshot).await;
                self.hidden.store(false, Ordering::Release);
                result
            }
            StoreDefect::LooksThenLeaps => self.leap(snapshot).await,
            _ => self.inner.publish(snapshot).await,
        }
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        if self.hidden.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.inner.latest().await
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        match (self.inner.version(version).await, self.defect) {
            (Err(error), StoreDefect::AnswersWithTheNewest) => self.inner.latest().await?.ok_or(error),
            (Err(_), StoreDefect::NamesNothingHeld) => {
                Err(PolicyError::UnknownVersion { version, held: Vec::new() }.into())
            }
            (result, _) => result,
        }
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        let newest = self.inner.latest().await?;
        let newest_version = newest.as_ref().map(|snapshot| snapshot.stamp().version);
        let there = newest.filter(|_| newest_version > version);
        match (self.defect, there) {
            (StoreDefect::MissesWhatIsThere, _) => self.inner.newer_than(newest_version).await,
            (_, Some(there)) => Ok(there),
            (StoreDefect::WakesNobody, None) => std::future::pending().await,
            (StoreDefect::DeliversOlder, None) => self.inner.newer_than(newest_version).await,
            (StoreDefect::DeliversTwice, None) => {
                let before = version.and_then(|version| version.0.checked_sub(1)).map(PolicyVersion);
                self.inner.newer_than(before).await
            }
            (StoreDefect::TellsOneOnly, None) => {
                let found = self.inner.newer_than(version).await?;
                if self.told.lock().unwrap_or_else(PoisonError::into_inner).replace(found.stamp().version)
                    == Some(found.stamp().version)
                {
                    std::future::pending::<()>().await;
                }
                Ok(found)
            }
            (StoreDefect::LosesWithTheDropped, None) => {
                let mut waiting = Waiting { lost: &self.lost, ended: false };
                let found = self.inner.newer_than(version).await;
                waiting.ended = true;
                if self.lost.load(Ordering::Acquire) {
                    std::future::pending::<()>().await;
                }
                found
            }
            (_, None) => self.inner.newer_than(version).await,
        }
    }
}

/// Notes a wait that was given up.
struct Waiting<'a> {
    lost: &'a AtomicBool,
    ended: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.lost.fetch_or(!self.ended, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::conformance::{Outcome, POLICY_STORE_GROUPS, policy_store_group, policy_stores};

    #[test]
    fn the_memory_store_holds_the_contract() {
        for kept_versions in [2, 3, 100] {
            policy_stores(&|| Arc::new(MemoryStore::new(kept_versions))).require().unwrap();
        }
    }

    #[test]
    fn every_broken_store_is_caught_by_the_case_of_its_defect() {
        // Side by side: a defect of waiting takes as long as the suite is patient.
        let check = |defect: StoreDefect| {
            let report = policy_stores(&|| Arc::new(BrokenStore::new(defect)));
            let outcome = report.outcome(defect.caught_by());
            assert!(matches!(outcome, Some(Outcome::Failed { .. })), "{defect:?}\n{report}");
        };
        std::thread::scope(|scope| {
            StoreDefect::ALL.iter().for_each(|&defect| drop(scope.spawn(move || check(defect))));
        });
    }

    #[test]
    fn the_groups_are_those_of_the_cases() {
        let report = policy_stores(&|| Arc::new(MemoryStore::new(2)));
        let mut groups: Vec<&str> = report.cases.iter().map(|case| case.group()).collect();
        groups.dedup();
        assert_eq!(groups, POLICY_STORE_GROUPS);
        let alone = policy_store_group(&|| Arc::new(MemoryStore::new(2)), "publishing");
        assert!(alone.cases.iter().all(|case| case.group() == "publishing") && alone.passed() == 4);
    }
}
