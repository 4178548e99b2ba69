//! From the stages' values to one record.

use std::collections::BTreeMap;

use miles_core::format::QuantizeCounts;
use miles_core::plugin::StepRecord;
use miles_core::policy::PolicyStamp;
use serde_json::{Map, Number, Value};

use super::values::{self, mean};
use crate::stages::{Credited, Packed, Stage, StageError, StageSeconds, Updated};

/// What the stages of a step made.
#[derive(Clone, Copy, Debug)]
pub struct StepFacts<'a> {
    /// Step, from 0.
    pub step: u64,
    /// Completions, rewards, advantages.
    pub credited: &'a Credited,
    /// Batch with reference logprobs.
    pub packed: &'a Packed,
    /// Scores and optimizer reports.
    pub updated: &'a Updated,
    /// Learning rate.
    pub learning_rate: f64,
    /// The version that the step published.
    pub published: PolicyStamp,
    /// Time per stage.
    pub seconds: StageSeconds,
    /// Peak memory, where it is known.
    pub peak_rss_bytes: Option<u64>,
}

/// The record of a step.
///
/// # Errors
/// [`StageError::NonFiniteMetric`] for the first metric that is NaN or infinite: a run must not go on quietly with one.
pub fn record(facts: StepFacts<'_>) -> Result<StepRecord, StageError> {
    let mut record = Recorder { step: facts.step, values: Map::new() };
    rollout(&mut record, facts)?;
    train(&mut record, facts)?;
    quantize(&mut record, facts.updated);
    record.text("policy_digest", facts.published.digest.to_string());
    record.count("policy_version", facts.published.version.0);
    performance(&mut record, facts)?;
    Ok(StepRecord { step: facts.step, values: record.values })
}

/// The record without what differs between equal runs (`perf/...`).
#[must_use]
pub fn deterministic(record: &StepRecord) -> StepRecord {
    let keep = |(key, _): &(&String, &Value)| !key.starts_with("perf/");
    let values = record.values.iter().filter(keep).map(|(key, value)| (key.clone(), value.clone())).collect();
    StepRecord { step: record.step, values }
}

fn rollout(record: &mut Recorder, facts: StepFacts<'_>) -> Result<(), StageError> {
    let rewarded = facts.credited.rewarded();
    let sampled = rewarded.sampled();
    let rewards = values::spread(&rewarded.rewards().collect::<Vec<f32>>());
    let completions = sampled.groups().iter().flat_map(|group| &group.completions);
    let response_tokens = mean(completions.map(|completion| completion.tokens.len() as f64));
    record.number("rollout/reward_mean", rewards.mean)?;
    record.number("rollout/reward_std", rewards.deviation)?;
    record.number("rollout/response_tokens_mean", response_tokens)?;
    record.number("rollout/truncated_fraction", values::truncated_fraction(sampled))?;
    let stats = sampled.stats();
    record.count("rollout/recomputed_tokens", stats.recomputed_tokens as u64);
    record.count("rollout/aborted_completions", stats.aborted_completions as u64);
    record.count("rollout/aborted_tokens", stats.aborted_tokens as u64);
    record.count("reward/errors", rewarded.errors() as u64);
    record.count("train/zero_std_groups", values::zero_std_groups(rewarded) as u64);
    Ok(())
}

fn train(record: &mut Recorder, facts: StepFacts<'_>) -> Result<(), StageError> {
    let (batch, updated) = (facts.packed.batch(), facts.updated);
    let mismatch = values::mismatch(batch, &updated.scores);
    let clipped: usize = updated.reports.iter().map(|report| report.clipped_tokens).sum();
    record.number("train/loss", mean(updated.reports.iter().map(|report| report.loss)))?;
    if let Some(kl) = values::kl_to_reference(batch, &updated.scores) {
        record.number("train/kl_ref", kl)?;
    }
    record.number("train/mismatch_max_abs", mismatch.max_abs)?;
    record.number("train/mismatch_k3", mismatch.k3)?;
    record.number("train/clip_fraction", clipped as f64 / batch.completion_tokens() as f64)?;
    record.number("train/entropy", values::entropy(&updated.scores))?;
    record.number("train/learning_rate", facts.learning_rate)?;
    record.number("train/grad_norm", mean(updated.reports.iter().map(|report| report.grad_norm)))?;
    let parts = updated.reports.first().map_or(&[][..], |report| &report.part_grad_norms);
    for (index, (part, _)) in parts.iter().enumerate() {
        let norms = updated.reports.iter().filter_map(|report| report.part_grad_norms.get(index));
        record.number(&format!("train/grad_norm/{part}"), mean(norms.map(|(_, norm)| *norm)))?;
    }
    Ok(())
}

/// Counts of the step's training forwards. A run without quantized activations has none of these keys.
fn quantize(record: &mut Recorder, updated: &Updated) {
    let mut layers: BTreeMap<(bool, Option<usize>), QuantizeCounts> = BTreeMap::new();
    let mut total = QuantizeCounts::default();
    for (layer, counts) in updated.reports.iter().flat_map(|report| &report.activation_counts) {
        // The head comes after the layers.
        layers.entry((layer.is_none(), *layer)).or_default().merge(counts);
        total.merge(counts);
    }
    for ((_, layer), counts) in &layers {
        let part = layer.map_or_else(|| "head".to_owned(), |layer| format!("layer_{layer:02}"));
        record.count(&format!("quantize/{part}/saturated"), counts.saturated);
        record.count(&format!("quantize/{part}/underflowed_blocks"), counts.underflowed_blocks);
        record.count(&format!("quantize/{part}/non_finite"), counts.non_finite);
    }
    if !layers.is_empty() {
        record.count("quantize/elements", total.elements);
        record.count("quantize/blocks", total.blocks);
        record.count("quantize/saturated", total.saturated);
        record.count("quantize/underflowed_blocks", total.underflowed_blocks);
        record.count("quantize/non_finite", total.non_finite);
    }
}

fn performance(record: &mut Recorder, facts: StepFacts<'_>) -> Result<(), StageError> {
    for (stage, name) in Stage::ALL {
        record.number(&format!("perf/seconds_{name}"), facts.seconds.of(stage))?;
    }
    let seconds = facts.seconds.of(Stage::Rollout);
    if seconds > 0.0 {
        let generated = facts.credited.rewarded().sampled().stats().generated_tokens;
        record.number("perf/rollout_tokens_per_s", generated as f64 / seconds)?;
    }
    if let Some(bytes) = facts.peak_rss_bytes {
        record.count("perf/peak_rss_bytes", bytes);
    }
    Ok(())
}

struct Recorder {
    step: u64,
    values: Map<String, Value>,
}

impl Recorder {
    fn number(&mut self, key: &str, value: f64) -> Result<(), StageError> {
        let number = Number::from_f64(value).ok_or_else(|| StageError::NonFiniteMetric {
            step: self.step,
            key: key.to_owned(),
            value,
        })?;
        self.values.insert(key.to_owned(), number.into());
        Ok(())
    }

    fn count(&mut self, key: &str, value: u64) {
        self.values.insert(key.to_owned(), value.into());
    }

    fn text(&mut self, key: &str, value: String) {
        self.values.insert(key.to_owned(), value.into());
    }
}
