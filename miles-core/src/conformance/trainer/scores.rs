//! Trainer logprobs: of the published bytes, whatever is computed beside them, and those of the engine.

use super::super::fixture::{CONTEXT_TOKENS, Family, entropies, logprobs, samples, token_ids};
use super::super::rollout_engine::batching::DEPENDS;
use super::super::rollout_engine::bench::generate;
use super::super::rollout_engine::sampling::NETWORK_TOLERANCE;
use super::super::{Failure, Suite, Verdict};
use super::bench::{TrainerBench, batch, same_scores, step};
use crate::Result;
use crate::plugin::{ActivationDtype, Rollout, ScoredPolicy, TrainBatch, TrainSample, TrainerOptions};
use crate::policy::PolicyStamp;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("scores/shape", || {
        bench.everywhere(|family, recipe| there_is_one_score_per_token(bench, family, recipe))
    });
    suite.case("scores/reference", || {
        bench.everywhere(|family, recipe| the_reference_stays_the_first_version(bench, family, recipe))
    });
    suite.case("scores/entropy", || {
        bench.everywhere(|family, recipe| entropies_are_those_of_the_whole_distribution(bench, family, recipe))
    });
    if bench.engines.backend.capabilities.activations.contains(&ActivationDtype::F32) {
        suite.case("scores/network", || {
            Family::ALL.into_iter().try_for_each(|family| scores_are_those_of_the_network(bench, family))
        });
    }
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

/// The probabilities of every token that may follow add up to 1, and their entropy is the one that is given; at any
/// temperature, early and late in a sample.
fn entropies_are_those_of_the_whole_distribution(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let vocab_size = family.config().vocab_size;
    for (temperature, before) in [(1.0, 1), (0.3, 5), (1.7, 40)] {
        let sample = |next: u32| {
            let tokens = [token_ids(before as u64, before, vocab_size), vec![next]].concat();
            let (rollout_logprobs, reference_logprobs) = (vec![-1.0], None);
            TrainSample { tokens, prompt_tokens: before, rollout_logprobs, reference_logprobs, advantage: 1.0 }
        };
        let samples = (0..vocab_size as u32).map(sample).collect();
        let scores = trainer.score(ScoredPolicy::Current, &TrainBatch::new(samples, first.stamp(), temperature)?)?;
        let pairs = scores.iter().filter_map(|scores| Some((scores.logprobs.first()?, scores.entropies.first()?)));
        let (logprobs, entropies): (Vec<f64>, Vec<f64>) = pairs.map(|(&a, &b)| (f64::from(a), f64::from(b))).unzip();
        let place = format!("at temperature {temperature} after {before} tokens");
        let count = logprobs.len();
        Failure::unless(count == vocab_size, || format!("{place}: scores of {count} samples, not {vocab_size}"))?;
        let total: f64 = logprobs.iter().map(|logprob| libm::exp(*logprob)).sum();
        Failure::unless((total - 1.0).abs() <= ENTROPY_TOLERANCE, || {
            format!("{place}: the probabilities of every token add up to {total}")
        })?;
        let expected: f64 = -logprobs.iter().map(|logprob| libm::exp(*logprob) * logprob).sum::<f64>();
        let wrong = entropies.iter().find(|entropy| (*entropy - expected).abs() > ENTROPY_TOLERANCE * (1.0 + expected));
        Failure::unless(wrong.is_none(), || format!("{place}: an entropy is {wrong:?}, not {expected}"))?;
    }
    Ok(())
}

/// Sixty-one F32 logprobs, each within a few units in the last place of at most 20, weighed by probabilities.
const ENTROPY_TOLERANCE: f64 = 1e-4;

/// With F32 activations logprobs and entropies are near those of the network in F64, to the end of the context.
fn scores_are_those_of_the_network(bench: &TrainerBench<'_>, family: Family) -> Verdict {
    let options = TrainerOptions { activations: ActivationDtype::F32, ..bench.options() };
    let (mut trainer, first) = bench.trainer_with(family, Recipe::Bf16, options)?;
    let config = family.config();
    let mut samples = samples(8, config.vocab_size);
    let tokens = token_ids(17, config.context_tokens, config.vocab_size);
    let rollout_logprobs = vec![-1.0; tokens.len() - 1];
    samples.push(TrainSample { tokens, prompt_tokens: 1, rollout_logprobs, reference_logprobs: None, advantage: 1.0 });
    for temperature in [1.0, 0.3] {
        let batch = TrainBatch::new(samples.clone(), first.stamp(), temperature)?;
        let scores = trainer.score(ScoredPolicy::Current, &batch)?;
        let (count, wanted) = (scores.len(), batch.samples().len());
        Failure::unless(count == wanted, || format!("{family}: scores of {count} samples, not {wanted}"))?;
        for (index, (scores, sample)) in scores.iter().zip(batch.samples()).enumerate() {
            let logprobs = logprobs(&first, &sample.tokens, temperature.into())?;
            let entropies = entropies(&first, &sample.tokens, temperature.into())?;
            for (what, found, expected) in
                [("logprob", &scores.logprobs, logprobs), ("entropy", &scores.entropies, entropies)]
            {
                let expected = expected.iter().skip(sample.prompt_tokens - 1);
                for (token, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                    let near = (f64::from(found) - expected).abs() <= NETWORK_TOLERANCE / f64::from(temperature);
                    Failure::unless(near, || {
                        format!("{family}, sample {index}, token {token}: {what} {found}, not {expected}")
                    })?;
                }
            }
        }
    }
    Ok(())
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
    // The last one as far as the context lets the longest prompt go.
    for (temperature, max_new_tokens) in [(0.3, 5), (1.7, 5), (1.0, CONTEXT_TOKENS - 19)] {
        let mut request = super::super::fixture::request(family.config().vocab_size, max_new_tokens);
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
