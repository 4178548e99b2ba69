//! New weights that do not arrive stop the run at the next step; they never go unnoticed.

use std::sync::Arc;

use async_trait::async_trait;
use miles_core::plugin::{RolloutEngine, Trainer};
use miles_core::policy::{MemoryStore, PolicyError, PolicyStore, PolicyVersion, Snapshot};
use miles_core::precision::Recipe;
use miles_core::{Error as CoreError, Result};
use miles_grpo::Error;
use miles_grpo::loss::Clipped;

use crate::support::parts::{batch, current, engine, generate, options, publish, request, trainer};
use crate::support::spy::delivering;
use crate::support::workspace::{Workspace, finish};
use crate::support::{backend, checkpoint, cpu};

/// The two versions in the error of a stale rollout.
fn stale(error: &Error) -> (PolicyVersion, PolicyVersion) {
    match error {
        Error::Core(CoreError::Policy(PolicyError::StaleVersion { expected, actual, .. })) => {
            assert_ne!(expected.digest, actual.digest);
            (expected.version, actual.version)
        }
        other => panic!("{other}"),
    }
}

/// O10: an engine that takes the first version and no other.
#[test]
fn o10_an_engine_whose_load_does_nothing_is_noticed_at_the_next_step() {
    for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized] {
        let workspace = Workspace::new("qwen3-moe");
        let first_only = |snapshot: Arc<Snapshot>| (snapshot.stamp().version == PolicyVersion(0)).then_some(snapshot);
        let deaf = delivering(&backend(2), Arc::new(first_only), false);
        let overrides = [format!("precision.recipe={recipe}")];
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let error = finish(workspace.builder_on(deaf, "out", &overrides)).unwrap_err();
        assert_eq!(stale(&error), (PolicyVersion(1), PolicyVersion(0)), "{recipe}");
        let text = error.to_string();
        assert!(text.contains("version 1") && text.contains("version 0"), "{text}");
        assert_eq!(workspace.metrics("out").len(), 1, "{recipe}: the first step was good");
        assert!(!workspace.path("out/policy").exists(), "{recipe}: nothing is exported");
    }
}

/// A store that keeps the first version for ever.
struct FirstOnly(MemoryStore);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl PolicyStore for FirstOnly {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        match snapshot.stamp().version {
            PolicyVersion(0) => self.0.publish(snapshot).await,
            _ => Ok(()),
        }
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        self.0.latest().await
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        self.0.version(version).await
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        self.0.newer_than(version).await
    }
}

/// O10, one place earlier: the store forgets, the engine loads what the store says.
#[test]
fn o10_a_store_that_forgets_is_noticed_at_the_next_step() {
    let workspace = Workspace::new("llama-tied");
    let store = Arc::new(FirstOnly(MemoryStore::new(2)));
    let error = finish(workspace.builder("out", &["precision.recipe=fp8-block"]).store(store)).unwrap_err();
    assert_eq!(stale(&error), (PolicyVersion(1), PolicyVersion(0)));
    assert_eq!(workspace.metrics("out").len(), 1);
}

/// O10, one place later: an engine that lags one version behind and claims the newest cannot feed the trainer either,
/// because the versions of its tokens say otherwise.
#[test]
fn o10_a_lagging_engine_that_claims_the_newest_version_is_noticed_by_its_tokens() {
    let workspace = Workspace::new("qwen3");
    let first_only = |snapshot: Arc<Snapshot>| (snapshot.stamp().version == PolicyVersion(0)).then_some(snapshot);
    let lying = delivering(&backend(2), Arc::new(first_only), true);
    let error = finish(workspace.builder_on(lying, "out", &[])).unwrap_err();
    assert!(matches!(&error, Error::Stage(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("version 0") && text.contains("not 1"), "{text}");
    assert_eq!(workspace.metrics("out").len(), 1);
}

/// The trainer itself refuses a batch of another version.
#[test]
fn o10_the_trainer_refuses_a_batch_of_an_older_version() {
    let checkpoint = checkpoint("qwen3-moe");
    let mut trainer = trainer(&cpu(2), &checkpoint, Recipe::Mxfp8, options(4096));
    let first = current(&trainer);
    let engine = engine(&cpu(2), &first, 4);
    let old = batch(&generate(&engine, &request(160, 1.0, 4, &[])), first.stamp());
    trainer.update(&old, &Clipped::default(), 1e-3).unwrap();
    publish(&mut trainer, 1);
    assert_eq!(engine.loaded(), Some(first.stamp()));
    let error = trainer.update(&old, &Clipped::default(), 1e-3).unwrap_err();
    assert!(matches!(&error, CoreError::Policy(PolicyError::StaleVersion { .. })), "{error}");
}
