//! Trainer logprobs: of the published bytes, whatever is computed beside them, and those of the engine.

use super::super::fixture::{Family, samples};
use super::super::rollout_engine::batching::DEPENDS;
use super::super::rollout_engine::bench::generate;
use super::super::{Failure, Suite, Verdict};
use super::bench::{TrainerBench, batch, same_scores, step};
use crate::Result;
use crate::plugin::{Rollout, ScoredPolicy, TrainBatch, TrainSample, TrainerOptions};
use crate::policy::PolicyStamp;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("scores/shape", || {
        bench.everywhere(|family, recipe| there_is_one_score_per_token(bench, family, recipe))
    });
    suite.case("scores/reference", || {
        bench.everywhere(|family, recipe| the_reference_stays_the_first_version(bench, family, recipe))
    });
    type Check = fn(&TrainerBench<'_>, Family, Recipe) -> Verdict;
    let cases: [(&str, Check); 2] =
        [("scores/batch", the_batch_changes_no_score), ("scores/engine", engine_and_trainer_agree)];
    for (name, check) in cases {
        if bench.subject.backend.capabilities.batch_invariant {
            suite.case(name, || bench.everywhere(|family, recipe| check(bench, family, recipe)));
        } else {
            suite.unsupported(name, || Ok(DEPENDS.to_owned()));
        }
    }
}

fn there_is_one_score_per_token(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let batch = batch(family, first.stamp())?;
    let scores = trainer.score(ScoredPolicy::Current, &batch)?;
    same_scores(&trainer.score(ScoredPolicy::Current, &batch)?, &scores, "scored again")?;
    let (count, wanted) = (scores.len(), batch.samples().len());
    Failure::unless(count == wanted, || format!("scores of {count} samples, not {wanted}"))?;
    let largest = (family.config().vocab_size as f32).ln() * (1.0 + 1e-5);
    for (index, (scores, sample)) in scores.iter().zip(batch.samples()).enumerate() {
        let tokens = sample.completion_tokens();
        let counts = (scores.logprobs.len(), scores.entropies.len());
        Failure::unless(counts == (tokens, tokens), || {
            format!("sample {index}: {counts:?} scores for {tokens} tokens")
        })?;
        let wrong = scores.logprobs.iter().find(|logprob| !(logprob.is_finite() && **logprob <= 0.0));
        Failure::unless(wrong.is_none(), || format!("sample {index}: a logprob is {wrong:?}"))?;
        let wrong = scores.entropies.iter().find(|entropy| !(0.0..=largest).contains(*entropy));
        Failure::unless(wrong.is_none(), || {
            format!("sample {index}: an entropy is {wrong:?}, not in 0 to ln(vocabulary)")
        })?;
    }
    Ok(())
}

/// Scores under the reference are those of the first version before and after a step, for batches of either version.
fn the_reference_stays_the_first_version(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let before = batch(family, first.stamp())?;
    let expected = trainer.score(ScoredPolicy::Current, &before)?;
    same_scores(&trainer.score(ScoredPolicy::Reference, &before)?, &expected, "the reference at the start")?;
    let (_, second) = step(trainer.as_mut(), &before, 1)?;
    let after = batch(family, second.stamp())?;
    same_scores(&trainer.score(ScoredPolicy::Reference, &after)?, &expected, "the reference after a step")?;
    let moved = trainer.score(ScoredPolicy::Current, &after)?;
    Failure::unless(moved != expected, || "a step changes no score".to_owned())
}

/// O15: samples alone, in the opposite order, in other micro-batches and on other threads.
fn the_batch_changes_no_score(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let all = samples(8, family.config().vocab_size);
    let of = |samples: Vec<TrainSample>| TrainBatch::new(samples, first.stamp(), 1.0);
    let expected = trainer.score(ScoredPolicy::Current, &of(all.clone())?)?;
    for (sample, expected) in all.iter().zip(&expected) {
        let alone = trainer.score(ScoredPolicy::Current, &of(vec![sample.clone()])?)?;
        same_scores(&alone, std::slice::from_ref(expected), "a sample alone")?;
    }
    let mut backwards = trainer.score(ScoredPolicy::Current, &of(all.iter().rev().cloned().collect())?)?;
    backwards.reverse();
    same_scores(&backwards, &expected, "in the opposite order")?;
    for (micro_batch_tokens, threads) in [(1, None), (37, Some(1)), (4096, Some(3))] {
        let options = TrainerOptions { micro_batch_tokens, threads, ..bench.options() };
        let (mut other, _) = bench.trainer_with(family, recipe, options)?;
        let how = format!("micro-batches of {micro_batch_tokens} tokens, threads {threads:?}");
        same_scores(&other.score(ScoredPolicy::Current, &of(all.clone())?)?, &expected, &how)?;
    }
    Ok(())
}

/// O14: the train-rollout mismatch is exactly 0 at every temperature.
fn engine_and_trainer_agree(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let engine = bench.engines.loaded_with(bench.engines.options(family), &first)?;
    for temperature in [0.6, 1.0, 1.7] {
        let mut request = super::super::fixture::request(family.config().vocab_size, 9);
        request.sampling.temperature = temperature;
        let batch = sampled(&generate(engine.as_ref(), &request)?, first.stamp())?;
        let scores = trainer.score(ScoredPolicy::Current, &batch)?;
        for (index, (scores, sample)) in scores.iter().zip(batch.samples()).enumerate() {
            for (token, (trainer, rollout)) in scores.logprobs.iter().zip(&sample.rollout_logprobs).enumerate() {
                let same = trainer.to_bits() == rollout.to_bits();
                Failure::unless(same, || {
                    format!(
                        "temperature {temperature}, sample {index}, token {token}: \
                         trainer logprob {trainer:e}, rollout logprob {rollout:e}"
                    )
                })?;
            }
        }
    }
    Ok(())
}

/// Every completion of a rollout as a training sample.
fn sampled(rollout: &Rollout, stamp: PolicyStamp) -> Result<TrainBatch> {
    let samples = rollout.groups.iter().flat_map(|group| {
        group.completions.iter().map(|completion| TrainSample {
            tokens: [group.prompt_tokens.as_slice(), &completion.tokens].concat(),
            prompt_tokens: group.prompt_tokens.len(),
            rollout_logprobs: completion.logprobs.clone(),
            reference_logprobs: None,
            advantage: 1.0,
        })
    });
    Ok(TrainBatch::new(samples.collect(), stamp, rollout.logprob_temperature)?)
}
