//! Which keys change results, and how two configs differ in them.

use miles_core::digest::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{LearningRateSchedule, RunConfig};

/// Keys that may differ between a run and its resumption: where results go, how fast they come and what is watched.
const FREE: [&str; 15] = [
    "run.name",
    "run.out",
    "run.existing",
    "run.threads",
    "rollout.max_running",
    "store.kind",
    "store.keep_last",
    "store.verified",
    "store.bytes_per_second",
    "checkpoint.every",
    "checkpoint.keep_last",
    "checkpoint.at_end",
    "export.form",
    "export.experts",
    "model.dir",
];

/// The values of every key that changes results, and their digest.
///
/// `model.dir` is not among them: the digest of the first policy version says whether it is the same model.
/// `run.steps` is only when the learning rate depends on it, so a run with a constant rate can be prolonged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigFingerprint {
    /// Dotted key to value.
    pub values: Map<String, Value>,
}

impl ConfigFingerprint {
    /// The fingerprint of a config.
    #[must_use]
    pub fn of(config: &RunConfig) -> Self {
        let steps_matter = config.train.schedule != LearningRateSchedule::Constant;
        let matters = |key: &str| !FREE.contains(&key) && (key != "run.steps" || steps_matter);
        let values = config.flattened().into_iter().filter(|(key, _)| matters(key)).collect();
        ConfigFingerprint { values }
    }

    /// Digest over keys and values.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(Value::Object(self.values.clone()).to_string().as_bytes())
    }

    /// Every key whose value differs, as `key: saved -> now`.
    #[must_use]
    pub fn differences(&self, now: &ConfigFingerprint) -> Vec<String> {
        let show = |value: Option<&Value>| value.map_or_else(|| "(absent)".to_owned(), Value::to_string);
        let mut keys: Vec<&String> = self.values.keys().chain(now.values.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter()
            .filter(|key| self.values.get(*key) != now.values.get(*key))
            .map(|key| format!("{key}: {} -> {}", show(self.values.get(key)), show(now.values.get(key))))
            .collect()
    }
}
