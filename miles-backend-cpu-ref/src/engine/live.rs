//! The live policy version: the one place that a load writes and that requests look at between two forwards.

use std::sync::{Arc, PoisonError, RwLock};

use miles_core::plugin::RolloutError;
use miles_core::policy::PolicyVersion;

use super::model::LoadedPolicy;

/// The version that a request which begins now computes with.
#[derive(Default)]
pub(super) struct Live(RwLock<Option<Arc<LoadedPolicy>>>);

impl Live {
    /// The live version.
    ///
    /// # Errors
    /// [`RolloutError::NothingLoaded`].
    pub(super) fn policy(&self) -> Result<Arc<LoadedPolicy>, RolloutError> {
        let live = self.0.read().unwrap_or_else(PoisonError::into_inner);
        live.clone().ok_or(RolloutError::NothingLoaded)
    }

    /// The live version if it is newer than `version`. Asked before every forward: one uncontended read lock.
    pub(super) fn newer_than(&self, version: PolicyVersion) -> Option<Arc<LoadedPolicy>> {
        let live = self.0.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| live.stamp().version > version).cloned()
    }

    /// Makes a version live that is ready to compute.
    pub(super) fn replace(&self, policy: LoadedPolicy) {
        let policy = Arc::new(policy);
        let mut live = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = live.replace(policy);
        drop(live);
        // The old weights go here, or with the last request that still computes with them.
        drop(replaced);
    }
}
