//! What each number of a config may be: one table, looked at before anything of that size is made.
//!
//! The limits are far above every published run; what lies beyond one of them is a slip of the keyboard that would
//! otherwise end a run half-way, with an error of the operating system or none at all.

use std::fmt;

use miles_core::checkpoint::limits::MAX_EXTENT;
use miles_core::plugin::SamplingRange;
use miles_core::plugin::limits::{MAX_COMPLETIONS, MAX_THREADS};
use serde_json::Value;

/// What a number may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// A whole number of this range, both ends included.
    Whole(u64, u64),
    /// A number of this range, both ends included.
    Number(f64, f64),
    /// At least 0 and below 1.
    BelowOne,
    /// A parameter of the draw: what engines accept.
    Sampling(SamplingRange),
}

impl Limit {
    /// Whether a value of the config, as JSON, is within the limit. JSON has no word for a number that is not finite, so
    /// such a one arrives as null.
    pub(super) fn holds(self, value: &Value) -> bool {
        match self {
            Limit::Whole(low, high) => value.as_u64().is_some_and(|number| (low..=high).contains(&number)),
            Limit::Number(low, high) => value.as_f64().is_some_and(|number| (low..=high).contains(&number)),
            Limit::BelowOne => value.as_f64().is_some_and(|number| (0.0..1.0).contains(&number)),
            Limit::Sampling(range) => value.as_f64().is_some_and(|number| range.contains(number)),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Whole(low, high) => write!(f, "a whole number from {low} to {high}"),
            Limit::Number(low, high) => write!(f, "a number from {low:?} to {high:?}"),
            Limit::BelowOne => f.write_str("a number of at least 0 and below 1"),
            Limit::Sampling(range) => f.write_str(range.words()),
        }
    }
}

/// Keys that may be left out; their value is then null.
pub(super) const OPTIONAL: [&str; 3] = ["run.threads", "model.context_tokens", "store.bytes_per_second"];

/// Every key that is a number, in the order of the file.
pub(super) const LIMITS: [(&str, Limit); 29] = [
    ("run.seed", Limit::Whole(0, MAX_WRITTEN)),
    ("run.steps", Limit::Whole(1, MAX_STEPS)),
    ("run.threads", Limit::Whole(1, MAX_THREADS as u64)),
    ("model.context_tokens", Limit::Whole(2, MAX_EXTENT as u64)),
    ("precision.expert_tensor_parallel", Limit::Whole(1, u16::MAX as u64)),
    ("rollout.prompts_per_step", Limit::Whole(1, MAX_COMPLETIONS as u64)),
    ("rollout.group_size", Limit::Whole(2, MAX_COMPLETIONS as u64)),
    ("rollout.temperature", Limit::Sampling(SamplingRange::TEMPERATURE)),
    ("rollout.top_p", Limit::Sampling(SamplingRange::TOP_P)),
    ("rollout.top_k", Limit::Whole(0, MAX_EXTENT as u64)),
    ("rollout.min_p", Limit::Sampling(SamplingRange::MIN_P)),
    ("rollout.max_new_tokens", Limit::Whole(1, MAX_EXTENT as u64)),
    ("rollout.max_running", Limit::Whole(1, MAX_COMPLETIONS as u64)),
    ("train.learning_rate", Limit::Number(0.0, 1e3)),
    ("train.warmup_steps", Limit::Whole(0, MAX_STEPS)),
    ("train.beta1", Limit::BelowOne),
    ("train.beta2", Limit::BelowOne),
    ("train.eps", Limit::Number(1e-30, 1.0)),
    ("train.weight_decay", Limit::Number(0.0, 1e3)),
    ("train.clip_grad_norm", Limit::Number(0.0, 1e6)),
    ("train.micro_batch_tokens", Limit::Whole(1, MAX_TOKENS)),
    ("train.mini_batches", Limit::Whole(1, MAX_COMPLETIONS as u64)),
    ("eval.every", Limit::Whole(0, MAX_STEPS)),
    ("eval.samples", Limit::Whole(1, MAX_COMPLETIONS as u64)),
    ("eval.temperature", Limit::Sampling(SamplingRange::TEMPERATURE)),
    ("store.keep_last", Limit::Whole(1, MAX_STEPS)),
    ("store.bytes_per_second", Limit::Whole(1, MAX_WRITTEN)),
    ("checkpoint.every", Limit::Whole(0, MAX_STEPS)),
    ("checkpoint.keep_last", Limit::Whole(1, MAX_STEPS)),
];

/// Most steps: one a second for thirty years.
const MAX_STEPS: u64 = 1_000_000_000;

/// Most tokens of all completions of a step, or of an evaluation, together.
pub(super) const MAX_TOKENS: u64 = 1 << 32;

/// Largest whole number that every reader of TOML takes, and so the largest that `run.toml` may hold.
const MAX_WRITTEN: u64 = i64::MAX as u64;
