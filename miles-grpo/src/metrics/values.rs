//! Single figures. Sums are taken in f64 in batch order, so equal inputs give equal bits.

use miles_core::plugin::{FinishReason, SampleScores, TrainBatch};

use crate::kl::KlEstimator;
use crate::stages::{Rewarded, Sampled};

/// Mean and population deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Population deviation.
    pub deviation: f64,
}

/// Mean and deviation of some values; zeros for none.
#[must_use]
pub fn spread(values: &[f32]) -> Spread {
    let mean = mean(values.iter().map(|&value| f64::from(value)));
    let variance = self::mean(values.iter().map(|&value| (f64::from(value) - mean).powi(2)));
    Spread { mean, deviation: variance.sqrt() }
}

/// How far the trainer's logprobs are from those of the rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mismatch {
    /// Largest absolute difference; NaN if one is NaN.
    pub max_abs: f64,
    /// Mean of k3 over tokens.
    pub k3: f64,
}

/// Compares trainer and rollout logprobs, token by token.
#[must_use]
pub fn mismatch(batch: &TrainBatch, scores: &[SampleScores]) -> Mismatch {
    let pairs = || tokens(batch, scores).map(|token| (token.trainer, token.rollout));
    // Not `f64::max`, which would skip a NaN.
    let larger = |most: f64, next: f64| if next > most || next.is_nan() { next } else { most };
    let max_abs = pairs().map(|(trainer, rollout)| (f64::from(trainer) - f64::from(rollout)).abs()).fold(0.0, larger);
    let k3 = mean(pairs().map(|(trainer, rollout)| KlEstimator::K3.value(rollout, trainer)));
    Mismatch { max_abs, k3 }
}

/// k3 estimate of the divergence of the policy from the reference; `None` without reference logprobs.
#[must_use]
pub fn kl_to_reference(batch: &TrainBatch, scores: &[SampleScores]) -> Option<f64> {
    let pairs: Option<Vec<(f32, f32)>> =
        tokens(batch, scores).map(|token| Some((token.trainer, token.reference?))).collect();
    Some(mean(pairs?.into_iter().map(|(trainer, reference)| KlEstimator::K3.value(trainer, reference))))
}

/// Mean entropy per token, in nats.
#[must_use]
pub fn entropy(scores: &[SampleScores]) -> f64 {
    mean(scores.iter().flat_map(|sample| &sample.entropies).map(|&entropy| f64::from(entropy)))
}

/// Share of completions that the engine ended by length.
#[must_use]
pub fn truncated_fraction(sampled: &Sampled) -> f64 {
    let completions = sampled.groups().iter().flat_map(|group| &group.completions);
    mean(completions.map(|completion| f64::from(u8::from(completion.finish == FinishReason::Length))))
}

/// Groups with at least one reward whose rewards are all equal.
#[must_use]
pub fn zero_std_groups(rewarded: &Rewarded) -> usize {
    let is_flat = |outcomes: &&Vec<crate::stages::Outcome>| {
        let mut rewards = outcomes.iter().filter_map(|outcome| outcome.reward());
        rewards.next().is_some_and(|first| rewards.all(|reward| reward == first))
    };
    rewarded.outcomes().iter().filter(is_flat).count()
}

/// Mean of some numbers; 0 for none.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / count as f64 }
}

struct Token {
    trainer: f32,
    rollout: f32,
    reference: Option<f32>,
}

fn tokens<'a>(batch: &'a TrainBatch, scores: &'a [SampleScores]) -> impl Iterator<Item = Token> + 'a {
    batch.samples().iter().zip(scores).flat_map(|(sample, scores)| {
        let reference = sample.reference_logprobs.as_ref();
        scores.logprobs.iter().zip(&sample.rollout_logprobs).enumerate().map(move |(token, (&trainer, &rollout))| {
            Token { trainer, rollout, reference: reference.map(|logprobs| logprobs[token]) }
        })
    })
}
