//! O19: saved, restored in another trainer and gone on with, as if nothing had happened.

use super::super::fixture::Family;
use super::super::rollout_engine::bench::refused;
use super::super::{Failure, Suite, Verdict};
use super::bench::{TrainerBench, batch, is_unpublished, publish, same_policy, step};
use crate::plugin::ScoredPolicy;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("resume/next_step", || {
        bench.everywhere(|family, recipe| a_restored_trainer_goes_on(bench, family, recipe))
    });
    suite.case("resume/unpublished", || a_restored_trainer_has_to_publish_first(bench));
    suite.case("resume/missing", || a_directory_without_a_state_is_refused(bench));
}

/// Masters, moments and step count: the version of the saved masters, the next one, and the one after that.
fn a_restored_trainer_goes_on(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let (_, second) = step(trainer.as_mut(), &batch(family, first.stamp())?, 1)?;
    let saved = bench.directory()?;
    trainer.save(saved.path())?;
    let mut resumed = bench.new_trainer(family, recipe)?;
    resumed.restore(saved.path())?;
    let mut live = publish(resumed.as_mut(), 1)?;
    same_policy(&live, &second, "the saved version, published again")?;
    for version in [2, 3] {
        let batch = batch(family, live.stamp())?;
        let (report, expected) = step(trainer.as_mut(), &batch, version)?;
        let (found_report, found) = step(resumed.as_mut(), &batch, version)?;
        same_policy(&found, &expected, &format!("version {version} after resuming at 1"))?;
        let equal = found_report == report;
        Failure::unless(equal, || format!("version {version}: {found_report:?}, not {report:?}"))?;
        live = expected;
    }
    Ok(())
}

fn a_restored_trainer_has_to_publish_first(bench: &TrainerBench<'_>) -> Verdict {
    let (trainer, first) = bench.trainer(Family::Dense, Recipe::Bf16)?;
    let saved = bench.directory()?;
    trainer.save(saved.path())?;
    let (mut other, _) = bench.trainer(Family::Dense, Recipe::Bf16)?;
    other.restore(saved.path())?;
    let batch = batch(Family::Dense, first.stamp())?;
    refused(other.score(ScoredPolicy::Current, &batch), "a score between restoring and publishing", is_unpublished)
}

fn a_directory_without_a_state_is_refused(bench: &TrainerBench<'_>) -> Verdict {
    let (mut trainer, first) = bench.trainer(Family::Dense, Recipe::Bf16)?;
    let empty = bench.directory()?;
    refused(trainer.restore(empty.path()), "an empty directory", |_| true)?;
    same_policy(&publish(trainer.as_mut(), 1)?, &first, "after a refused restore")
}
