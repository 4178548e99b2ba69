//! Packing: the sampled ids, their logprobs and advantages as the trainer takes them. No text takes part.

use miles_core::plugin::{SampleScores, ScoredPolicy, TrainBatch, TrainSample, Trainer};
use miles_core::policy::PolicyStamp;

use super::{Credited, StageError};
use crate::Result;

/// A batch and the number of samples of each group in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    batch: TrainBatch,
    group_sizes: Vec<usize>,
}

impl Packed {
    /// The whole batch.
    #[must_use]
    pub fn batch(&self) -> &TrainBatch {
        &self.batch
    }

    /// Cuts the batch into at most `count` parts of whole groups, as even as the groups allow.
    #[must_use]
    pub fn cut(&self, count: usize) -> Vec<Vec<TrainSample>> {
        let groups_per_part = self.group_sizes.len().div_ceil(count.max(1)).max(1);
        let mut samples = self.batch.samples().iter().cloned();
        self.group_sizes
            .chunks(groups_per_part)
            .map(|sizes| samples.by_ref().take(sizes.iter().sum()).collect())
            .collect()
    }
}

/// Packs every completion that has an advantage.
///
/// # Errors
/// [`StageError::NothingJudged`] when there is none.
pub fn pack(credited: &Credited, step: u64) -> Result<Packed> {
    let sampled = credited.rewarded().sampled();
    let (mut samples, mut group_sizes) = (Vec::new(), Vec::new());
    for (group, advantages) in sampled.groups().iter().zip(credited.advantages()) {
        let first = samples.len();
        for (completion, advantage) in group.completions.iter().zip(advantages) {
            let Some(advantage) = *advantage else { continue };
            samples.push(TrainSample {
                tokens: [group.prompt_tokens.as_slice(), &completion.tokens].concat(),
                prompt_tokens: group.prompt_tokens.len(),
                rollout_logprobs: completion.logprobs.clone(),
                reference_logprobs: None,
                advantage,
            });
        }
        if samples.len() > first {
            group_sizes.push(samples.len() - first);
        }
    }
    if samples.is_empty() {
        return Err(StageError::NothingJudged { step, completions: sampled.completions() }.into());
    }
    let batch = batch(samples, sampled.stamp(), sampled.logprob_temperature())?;
    Ok(Packed { batch, group_sizes })
}

/// The same batch with the logprobs of the reference policy, recomputed by the trainer.
///
/// # Errors
/// Whatever the trainer reports.
pub fn with_reference(trainer: &mut dyn Trainer, packed: Packed) -> Result<Packed> {
    let scores = trainer.score(ScoredPolicy::Reference, packed.batch())?;
    check_scores(packed.batch(), &scores)?;
    let Packed { batch: old, group_sizes } = packed;
    let samples = old
        .samples()
        .iter()
        .zip(scores)
        .map(|(sample, scores)| TrainSample { reference_logprobs: Some(scores.logprobs), ..sample.clone() })
        .collect();
    Ok(Packed { batch: batch(samples, old.stamp(), old.temperature())?, group_sizes })
}

/// A batch for the trainer, as this crate's error.
pub(super) fn batch(samples: Vec<TrainSample>, stamp: PolicyStamp, temperature: f32) -> Result<TrainBatch> {
    Ok(TrainBatch::new(samples, stamp, temperature).map_err(miles_core::Error::from)?)
}

/// Refuses scores that are not one logprob and one entropy per completion token.
pub(super) fn check_scores(batch: &TrainBatch, scores: &[SampleScores]) -> Result<(), StageError> {
    for (index, sample) in batch.samples().iter().enumerate() {
        let expected = sample.completion_tokens();
        let of_sample = scores.get(index);
        let scored = of_sample.map_or(0, |scores| scores.logprobs.len().min(scores.entropies.len()));
        if scored != expected || of_sample.is_some_and(|scores| scores.logprobs.len() != expected) {
            return Err(StageError::BadScores { sample: index, scored, expected });
        }
    }
    match scores.len() > batch.samples().len() {
        true => Err(StageError::BadScores { sample: batch.samples().len(), scored: 1, expected: 0 }),
        false => Ok(()),
    }
}
