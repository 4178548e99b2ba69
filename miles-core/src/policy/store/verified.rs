//! [`VerifiedStore`]: digests computed again on the way in and on the way out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{PolicyStore, StoreError};
use crate::Result;
use crate::policy::snapshot::policy_digest;
use crate::policy::{PolicyError, PolicyStamp, PolicyVersion, Snapshot};

/// Recomputes the digest of every tensor, and of the policy, whenever a snapshot passes.
///
/// A snapshot whose bytes are not those it was sealed with is refused before the inner store sees it, and never handed
/// out. Neither is one that carries another stamp than was published here under its version.
#[derive(Debug)]
pub struct VerifiedStore<S> {
    inner: S,
    published: Mutex<BTreeMap<PolicyVersion, PolicyStamp>>,
}

impl<S: PolicyStore> VerifiedStore<S> {
    /// Watches over a store.
    #[must_use]
    pub fn new(inner: S) -> Self {
        VerifiedStore { inner, published: Mutex::default() }
    }

    /// The store watched over.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn check_out(&self, snapshot: Arc<Snapshot>) -> Result<Arc<Snapshot>> {
        check_seal(&snapshot)?;
        let found = snapshot.stamp();
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner).get(&found.version).copied();
        match published.filter(|expected| *expected != found) {
            None => Ok(snapshot),
            Some(expected) => Err(PolicyError::from(StoreError::Exchanged { expected, found }).into()),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: PolicyStore> PolicyStore for VerifiedStore<S> {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        check_seal(&snapshot)?;
        let stamp = snapshot.stamp();
        self.inner.publish(snapshot).await?;
        self.published.lock().unwrap_or_else(PoisonError::into_inner).insert(stamp.version, stamp);
        Ok(())
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        self.inner.latest().await?.map(|snapshot| self.check_out(snapshot)).transpose()
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        let snapshot = self.check_out(self.inner.version(version).await?)?;
        let found = snapshot.stamp();
        if found.version == version {
            return Ok(snapshot);
        }
        let expected = PolicyStamp { version, ..found };
        Err(PolicyError::from(StoreError::Exchanged { expected, found }).into())
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        self.check_out(self.inner.newer_than(version).await?)
    }
}

/// Refuses a snapshot whose bytes are not those it was sealed with.
fn check_seal(snapshot: &Snapshot) -> Result<(), PolicyError> {
    let network = snapshot.network();
    let mut digests = Vec::with_capacity(network.parameters.len());
    for id in network.ids() {
        let (expected, found) = (snapshot.tensor_digest(id), snapshot.tensor(id).digest());
        if found != expected {
            let (version, tensor) = (snapshot.stamp().version, network.parameter(id).name.clone());
            return Err(StoreError::Unsealed { version, tensor, expected, found }.into());
        }
        digests.push(found);
    }
    let digest = policy_digest(&snapshot.map().digest(), network.names().zip(&digests));
    let (expected, found) = (snapshot.stamp(), PolicyStamp { digest, ..snapshot.stamp() });
    if found == expected { Ok(()) } else { Err(StoreError::Exchanged { expected, found }.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::broken_parts::{BrokenStore, StoreDefect};
    use crate::conformance::fixture::{Family, policy};
    use crate::conformance::wait;
    use crate::network::ParamId;
    use crate::policy::MemoryStore;
    use crate::precision::Recipe;

    /// Version `version` with the first tensor of another one, under its own seal.
    fn torn(version: u64) -> (Arc<Snapshot>, Arc<Snapshot>) {
        let [good, other] = [version, version + 1].map(|v| policy(Family::Moe, Recipe::Nvfp4Dequantized, v).unwrap());
        let network = good.network();
        let from = |id: ParamId| if id.index() == 0 { &other } else { &good };
        let tensors = network.ids().map(|id| Arc::clone(from(id).tensor(id))).collect();
        let digests = network.ids().map(|id| good.tensor_digest(id)).collect();
        let (version, network, map) = (good.stamp().version, Arc::clone(network), Arc::clone(good.map()));
        let torn = Snapshot::sealed(version, network, map, tensors, digests).unwrap();
        assert_eq!(torn.stamp(), good.stamp());
        (good, Arc::new(torn))
    }

    fn names_the_tensor(error: &crate::Error) -> bool {
        let crate::Error::Policy(PolicyError::Store(error)) = error else { return false };
        matches!(error.as_ref(), StoreError::Unsealed { tensor, .. } if tensor == "model.embed_tokens.weight")
    }

    #[test]
    fn bytes_that_are_not_those_sealed_do_not_get_in() {
        let store = VerifiedStore::new(MemoryStore::new(2));
        let (good, torn) = torn(3);
        let error = wait(store.publish(torn)).unwrap_err();
        assert!(names_the_tensor(&error), "{error}");
        assert!(wait(store.inner().latest()).unwrap().is_none());
        wait(store.publish(good)).unwrap();
    }

    #[test]
    fn bytes_that_are_not_those_sealed_do_not_get_out() {
        let store = VerifiedStore::new(MemoryStore::new(2));
        let (_, torn) = torn(3);
        wait(store.inner().publish(torn)).unwrap();
        let errors = [
            wait(store.latest()).unwrap_err(),
            wait(store.version(PolicyVersion(3))).unwrap_err(),
            wait(store.newer_than(None)).unwrap_err(),
        ];
        errors.iter().for_each(|error| assert!(names_the_tensor(error), "{error}"));
    }

    #[test]
    fn a_version_that_was_not_published_does_not_get_out() {
        let store = VerifiedStore::new(BrokenStore::new(StoreDefect::MixesVersions));
        for version in 0..2 {
            wait(store.publish(policy(Family::Dense, Recipe::Mxfp8, version).unwrap())).unwrap();
        }
        let error = wait(store.latest()).unwrap_err();
        assert!(error.to_string().contains("the store gives version 1 "), "{error}");
        let store = VerifiedStore::new(BrokenStore::new(StoreDefect::AnswersWithTheNewest));
        wait(store.publish(policy(Family::Dense, Recipe::Mxfp8, 1).unwrap())).unwrap();
        let error = wait(store.version(PolicyVersion(0))).unwrap_err();
        assert!(error.to_string().contains("for version 0 "), "{error}");
    }
}
