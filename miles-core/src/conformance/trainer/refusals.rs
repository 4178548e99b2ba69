//! What cannot be trained on is a typed error, and leaves the masters as they were.

use super::super::fixture::{Family, PolicyGradient};
use super::super::rollout_engine::bench::refused;
use super::super::{Suite, Verdict};
use super::bench::{LEARNING_RATE, TrainerBench, batch, is_unpublished, publish, same_policy, same_scores, step};
use crate::Error;
use crate::digest::Digest;
use crate::plugin::{BatchTotals, Loss, LossInput, LossTerms, ScoredPolicy, TrainBatch, TrainError, Trainer};
use crate::policy::{PolicyError, PolicyStamp, PolicyVersion};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("refusals/stale", || bench.everywhere(|family, recipe| a_stale_batch_is_refused(bench, family, recipe)));
    suite.case("refusals/unpublished", || nothing_runs_without_a_published_version(bench));
    suite.case("refusals/non_finite", || {
        bench.everywhere(|family, recipe| a_gradient_that_is_not_finite_changes_nothing(bench, family, recipe))
    });
    suite.case("refusals/vocabulary", || ids_outside_the_vocabulary_are_refused(bench));
    suite.case("refusals/context", || a_sample_longer_than_the_context_is_refused(bench));
}

/// O10: an older version, a newer one, and the right version with other bytes.
fn a_stale_batch_is_refused(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let (_, second) = step(trainer.as_mut(), &batch(family, first.stamp())?, 1)?;
    let live = second.stamp();
    let stamps = [
        ("the version before", first.stamp()),
        ("a version to come", PolicyStamp { version: PolicyVersion(2), ..live }),
        ("the live version with another digest", PolicyStamp { digest: Digest::of(b"other bytes"), ..live }),
    ];
    for (what, stamp) in stamps {
        let stale = batch(family, stamp)?;
        let is_right = |error: &Error| {
            matches!(error, Error::Policy(PolicyError::StaleVersion { expected, actual, .. })
                if *expected == live && *actual == stamp)
        };
        let update = trainer.update(&stale, &PolicyGradient, LEARNING_RATE);
        refused(update, &format!("an update on a batch of {what}"), is_right)?;
        let score = trainer.score(ScoredPolicy::Current, &stale);
        refused(score, &format!("scores of a batch of {what}"), is_right)?;
    }
    same_policy(&publish(trainer.as_mut(), 2)?, &second, "after stale batches")
}

/// Before the first version, and between an update and its version.
fn nothing_runs_without_a_published_version(bench: &TrainerBench<'_>) -> Verdict {
    let (family, recipe) = (Family::Dense, Recipe::Bf16);
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let batch = batch(family, first.stamp())?;
    let both = |trainer: &mut dyn Trainer, when: &str| {
        refused(trainer.score(ScoredPolicy::Current, &batch), &format!("a score {when}"), is_unpublished)?;
        let update = trainer.update(&batch, &PolicyGradient, LEARNING_RATE);
        refused(update, &format!("an update {when}"), is_unpublished)
    };
    both(bench.new_trainer(family, recipe)?.as_mut(), "before any version")?;
    trainer.update(&batch, &PolicyGradient, LEARNING_RATE)?;
    both(trainer.as_mut(), "between an update and its version")
}

/// The gradient of one token is not a number.
struct NotANumber;

impl Loss for NotANumber {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        let terms = PolicyGradient.evaluate(input, totals, gradient);
        if let Some(last) = gradient.last_mut() {
            *last = f32::NAN;
        }
        terms
    }
}

fn a_gradient_that_is_not_finite_changes_nothing(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let batch = batch(family, first.stamp())?;
    let expected = trainer.score(ScoredPolicy::Current, &batch)?;
    refused(trainer.update(&batch, &NotANumber, LEARNING_RATE), "a gradient that is not a number", |error| {
        matches!(error, Error::Train(TrainError::NonFiniteGradient { .. }))
    })?;
    let again = publish(trainer.as_mut(), 1)?;
    same_policy(&again, &first, "after a gradient that is not a number")?;
    let batch = super::bench::batch(family, again.stamp())?;
    same_scores(&trainer.score(ScoredPolicy::Current, &batch)?, &expected, "after a gradient that is not a number")?;
    // The optimizer's state is as it was, too: the next step is the first one.
    let (mut fresh, _) = bench.trainer(family, recipe)?;
    publish(fresh.as_mut(), 1)?;
    let (_, expected) = step(fresh.as_mut(), &batch, 2)?;
    let (_, found) = step(trainer.as_mut(), &batch, 2)?;
    same_policy(&found, &expected, "the step after a gradient that is not a number")
}

fn changed(bench: &TrainerBench<'_>, change: impl Fn(&mut Vec<u32>)) -> Result<Refusals, super::super::Failure> {
    let (mut trainer, first) = bench.trainer(Family::Dense, Recipe::Bf16)?;
    let mut samples = batch(Family::Dense, first.stamp())?.samples().to_vec();
    change(&mut samples[1].tokens);
    samples[1].rollout_logprobs = vec![-1.0; samples[1].completion_tokens()];
    let batch = TrainBatch::new(samples, first.stamp(), 1.0)?;
    let score = trainer.score(ScoredPolicy::Current, &batch).map(drop);
    let update = trainer.update(&batch, &PolicyGradient, LEARNING_RATE).map(drop);
    Ok([("a score", score), ("an update", update)])
}

type Refusals = [(&'static str, crate::Result<()>); 2];

fn ids_outside_the_vocabulary_are_refused(bench: &TrainerBench<'_>) -> Verdict {
    for (what, attempt) in changed(bench, |tokens| tokens[2] = 61)? {
        refused(attempt, &format!("{what} of token id 61 of 61"), |error| {
            matches!(error, Error::Train(TrainError::TokenOutOfRange { index: 1, id: 61, vocab_size: 61 }))
        })?;
    }
    Ok(())
}

fn a_sample_longer_than_the_context_is_refused(bench: &TrainerBench<'_>) -> Verdict {
    let context_tokens = Family::Dense.config().context_tokens;
    for (what, attempt) in changed(bench, |tokens| tokens.resize(context_tokens + 1, 7))? {
        refused(attempt, &format!("{what} of a sample one token longer than the context"), |error| {
            matches!(error, Error::Train(TrainError::ContextExceeded { index: 1, .. }))
        })?;
    }
    Ok(())
}
