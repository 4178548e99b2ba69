//! One optimizer step: a function of its batch, and in the right direction.

use std::sync::{Mutex, PoisonError};

use super::super::fixture::{Family, PolicyGradient, samples};
use super::super::{Failure, Suite, Verdict};
use super::bench::{LEARNING_RATE, TrainerBench, batch, publish, same_policy, same_scores, step};
use crate::plugin::{BatchTotals, Loss, LossInput, LossTerms, ScoredPolicy, TrainBatch, TrainerOptions};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("update/repeatable", || bench.everywhere(|family, recipe| a_step_is_repeatable(bench, family, recipe)));
    suite.case("update/cut", || {
        bench.where_cuts_change_nothing(|family, recipe| the_cut_changes_nothing(bench, family, recipe))
    });
    suite.case("update/loss_input", || {
        bench.everywhere(|family, recipe| the_loss_sees_the_whole_batch(bench, family, recipe))
    });
    suite.case("update/direction", || {
        bench.everywhere(|family, recipe| steps_raise_what_is_praised(bench, family, recipe))
    });
}

/// The same bytes again, and on other threads.
fn a_step_is_repeatable(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let after = |threads| -> Result<_, Failure> {
        let options = TrainerOptions { threads, ..bench.options() };
        let (mut trainer, first) = bench.trainer_with(family, recipe, options)?;
        Ok(step(trainer.as_mut(), &batch(family, first.stamp())?, 1)?)
    };
    let (report, policy) = after(None)?;
    for threads in [None, Some(1), Some(3)] {
        let (found, snapshot) = after(threads)?;
        let how = format!("threads {threads:?}");
        same_policy(&snapshot, &policy, &how)?;
        Failure::unless(found == report, || format!("{how}: another report: {found:?}, not {report:?}"))?;
    }
    Ok(())
}

/// O16: one micro-batch, one per sample, and ragged ones make the same step.
fn the_cut_changes_nothing(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let after = |micro_batch_tokens| -> Result<_, Failure> {
        let options = TrainerOptions { micro_batch_tokens, ..bench.options() };
        let (mut trainer, first) = bench.trainer_with(family, recipe, options)?;
        Ok(step(trainer.as_mut(), &batch(family, first.stamp())?, 1)?)
    };
    let (report, policy) = after(4096)?;
    for micro_batch_tokens in [1, 23, 41] {
        let (found, snapshot) = after(micro_batch_tokens)?;
        let how = format!("micro-batches of {micro_batch_tokens} tokens");
        same_policy(&snapshot, &policy, &how)?;
        same_scores(&found.scores, &report.scores, &how)?;
        let figures = (found.loss.to_bits(), found.grad_norm.to_bits());
        let expected = (report.loss.to_bits(), report.grad_norm.to_bits());
        Failure::unless(figures == expected, || {
            format!(
                "{how}: loss {} and gradient norm {}, not {} and {}",
                found.loss, found.grad_norm, report.loss, report.grad_norm
            )
        })?;
    }
    Ok(())
}

/// What a loss was called with.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    logprobs: Vec<f32>,
    rollout_logprobs: Vec<f32>,
    advantage: f32,
    totals: BatchTotals,
    gradient: Vec<f32>,
}

/// The policy gradient, with every call written down.
#[derive(Default)]
struct Spy(Mutex<Vec<Seen>>);

impl Loss for Spy {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        let seen = Seen {
            logprobs: input.logprobs.to_vec(),
            rollout_logprobs: input.rollout_logprobs.to_vec(),
            advantage: input.advantage,
            totals: *totals,
            gradient: gradient.to_vec(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        PolicyGradient.evaluate(input, totals, gradient)
    }
}

/// Each sample once, with the totals of the batch, a zeroed gradient and the logprobs that the report gives.
fn the_loss_sees_the_whole_batch(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let options = TrainerOptions { micro_batch_tokens: 41, ..bench.options() };
    let (mut trainer, first) = bench.trainer_with(family, recipe, options)?;
    let batch = batch(family, first.stamp())?;
    let spy = Spy::default();
    let scores = trainer.score(ScoredPolicy::Current, &batch)?;
    let report = trainer.update(&batch, &spy, LEARNING_RATE)?;
    same_scores(&report.scores, &scores, "the report of an update")?;
    let mut seen = spy.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (count, wanted) = (seen.len(), batch.samples().len());
    Failure::unless(count == wanted, || format!("the loss is evaluated {count} times for {wanted} samples"))?;
    let totals = BatchTotals { samples: wanted, tokens: batch.completion_tokens() };
    let mut loss = 0.0;
    for (index, (sample, scores)) in batch.samples().iter().zip(&report.scores).enumerate() {
        let expected = Seen {
            logprobs: scores.logprobs.clone(),
            rollout_logprobs: sample.rollout_logprobs.clone(),
            advantage: sample.advantage,
            totals,
            gradient: vec![0.0; sample.completion_tokens()],
        };
        let Some(place) = seen.iter().position(|call| *call == expected) else {
            return Err(Failure::new(format!("the loss of sample {index} is never evaluated with {expected:?}")));
        };
        seen.swap_remove(place);
        let input = LossInput {
            logprobs: &scores.logprobs,
            rollout_logprobs: &sample.rollout_logprobs,
            reference_logprobs: None,
            advantage: sample.advantage,
        };
        loss += PolicyGradient.evaluate(&input, &totals, &mut vec![0.0; sample.completion_tokens()]).loss;
    }
    // Sums of the same numbers in F64, in any order.
    let near = (report.loss - loss).abs() <= 1e-12 * (1.0 + loss.abs());
    Failure::unless(near, || format!("the loss is reported as {}, its parts add up to {loss}", report.loss))
}

/// With every advantage 1 a few small steps make the completions likelier, with -1 less likely.
fn steps_raise_what_is_praised(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    for advantage in [1.0, -1.0] {
        let mut options = bench.options();
        options.optimizer.weight_decay = 0.0;
        let (mut trainer, mut live) = bench.trainer_with(family, recipe, options)?;
        let mut means = Vec::new();
        for version in 1..=4 {
            let mut samples = samples(8, family.config().vocab_size);
            samples.iter_mut().for_each(|sample| sample.advantage = advantage);
            let batch = TrainBatch::new(samples, live.stamp(), 1.0)?;
            let scores = trainer.score(ScoredPolicy::Current, &batch)?;
            let logprobs = || scores.iter().flat_map(|scores| &scores.logprobs);
            means.push(logprobs().map(|&logprob| f64::from(logprob)).sum::<f64>() / logprobs().count() as f64);
            trainer.update(&batch, &PolicyGradient, 2e-3)?;
            live = publish(trainer.as_mut(), version)?;
        }
        let gained = (means[3] - means[0]) * f64::from(advantage);
        Failure::unless(gained > 0.0, || {
            format!("with advantage {advantage} the mean logprob goes {means:?} over three steps")
        })?;
    }
    Ok(())
}
