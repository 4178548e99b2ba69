//! Versions: what is loaded is what is sampled from, and nothing of an old version survives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::fixture::{Family, policy, undeclared_policy};
use super::super::operands::{show_all, shows_operands};
use super::super::wait::{together, wait};
use super::super::{Failure, Suite, Verdict};
use super::bench::{Bench, completions, generate, same, work};
use crate::plugin::{Rollout, RolloutEngine};
use crate::policy::Snapshot;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    suite.case("versions/stamp", || {
        bench.everywhere(|family, recipe| the_stamp_is_that_of_the_snapshot(bench, family, recipe))
    });
    suite.case("versions/cache", || {
        bench.everywhere(|family, recipe| nothing_old_survives_a_load(bench, family, recipe))
    });
    suite.optional("versions/operand", || {
        show_all(Family::ALL, &bench.recipes(), |family, recipe| {
            operands_are_those_of_the_live_version(bench, family, recipe)
        })
    });
    suite.case("versions/refused_load", || a_refused_load_changes_nothing(bench));
    suite.case("versions/during_rollout", || a_load_during_a_rollout_does_not_mix(bench));
    suite.case("versions/older", || an_older_version_can_be_loaded_again(bench));
}

fn the_stamp_is_that_of_the_snapshot(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.engine(bench.options(family))?;
    Failure::unless(engine.loaded().is_none(), || "a new engine has a version loaded".to_owned())?;
    for version in [0, 7] {
        let snapshot = policy(family, recipe, version)?;
        wait(engine.load(Arc::clone(&snapshot)))?;
        is_live(engine.as_ref(), &snapshot)?;
        is_of(&generate(engine.as_ref(), &work(family, 3))?, &snapshot)?;
    }
    Ok(())
}

/// Read back after each load, and after one that fails, operands are those of the live version; before the first one there
/// are none.
fn operands_are_those_of_the_live_version(
    bench: &Bench<'_>,
    family: Family,
    recipe: Recipe,
) -> Result<Option<String>, Failure> {
    let engine = bench.engine(bench.options(family))?;
    let before = engine.operand(family.network().embedding);
    Failure::unless(before.is_err(), || "an operand is shown before anything is loaded".to_owned())?;
    for version in [0, 7] {
        let snapshot = policy(family, recipe, version)?;
        wait(engine.load(Arc::clone(&snapshot)))?;
        let how = format!("after version {version} is loaded");
        if let Some(why) = shows_operands(&snapshot, |id| engine.operand(id)).map_err(|failure| failure.at(&how))? {
            return Ok(Some(why));
        }
        // They stay those of the live version when something is sampled, and when another load is refused.
        generate(engine.as_ref(), &work(family, 3))?;
        let _ = wait(engine.load(undeclared_policy(family, version + 1)?));
        shows_operands(&snapshot, |id| engine.operand(id)).map_err(|failure| failure.at("after a refused load"))?;
    }
    Ok(None)
}

/// O11 and O10: after a load the same prompts give what an engine gives that has never seen the old version.
fn nothing_old_survives_a_load(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let request = work(family, 8);
    let (old, new) = (policy(family, recipe, 0)?, policy(family, recipe, 1)?);
    let fresh = generate(bench.loaded_with(bench.options(family), &new)?.as_ref(), &request)?;
    let engine = bench.loaded_with(bench.options(family), &old)?;
    let before = generate(engine.as_ref(), &request)?;
    wait(engine.load(Arc::clone(&new)))?;
    let after = generate(engine.as_ref(), &request)?;
    same(&after, &fresh, "after a load")?;
    is_of(&after, &new)?;
    let cached = after.stats.cached_tokens;
    Failure::unless(cached == 0, || {
        format!("{cached} prompt tokens are said to come from a cache of the old version")
    })?;
    let equal = completions(&after).zip(completions(&before)).filter(|(a, b)| a.logprobs == b.logprobs).count();
    Failure::unless(equal == 0, || format!("{equal} completions have the logprobs of the old version"))
}

/// A snapshot of another network and one in an undeclared format: the old version stays live, stamp and weights.
fn a_refused_load_changes_nothing(bench: &Bench<'_>) -> Verdict {
    let (family, request) = (Family::Dense, work(Family::Dense, 6));
    let live = policy(family, Recipe::Bf16, 0)?;
    let engine = bench.loaded_with(bench.options(family), &live)?;
    let expected = generate(engine.as_ref(), &request)?;
    let misfits = [
        ("another network", policy(Family::Moe, Recipe::Bf16, 1)?),
        ("an undeclared format", undeclared_policy(family, 1)?),
    ];
    for (what, misfit) in misfits {
        if wait(engine.load(misfit)).is_ok() {
            return Err(Failure::new(format!("a snapshot of {what} is loaded")));
        }
        is_live(engine.as_ref(), &live).map_err(|failure| failure.at(format!("after {what} was refused")))?;
        same(&generate(engine.as_ref(), &request)?, &expected, &format!("after {what} was refused"))?;
    }
    Ok(())
}

/// O11 under load: each rollout whose tokens are all of its stamp's version is what that version gives, and no token is
/// of a version that was never loaded.
fn a_load_during_a_rollout_does_not_mix(bench: &Bench<'_>) -> Verdict {
    let (family, request) = (Family::Moe, work(Family::Moe, 8));
    let versions: Vec<(Arc<Snapshot>, Rollout)> = (0..2)
        .map(|version| {
            let snapshot = policy(family, Recipe::Bf16, version)?;
            let rollout = generate(bench.loaded_with(bench.options(family), &snapshot)?.as_ref(), &request)?;
            Ok((snapshot, rollout))
        })
        .collect::<Result<_, Failure>>()?;
    let engine = bench.loaded_with(bench.options(family), &versions[0].0)?;
    let done = AtomicBool::new(false);
    let loads = || -> Verdict {
        for turn in 1.. {
            if done.load(Ordering::Acquire) {
                break;
            }
            wait(engine.load(Arc::clone(&versions[turn % 2].0)))?;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    };
    let rollouts = || {
        let result = (0..12).try_for_each(|_| is_one_of(&generate(engine.as_ref(), &request)?, &versions));
        done.store(true, Ordering::Release);
        result
    };
    let tasks: Vec<Box<dyn FnOnce() -> Verdict + Send>> = vec![Box::new(loads), Box::new(rollouts)];
    together(tasks).into_iter().collect()
}

fn an_older_version_can_be_loaded_again(bench: &Bench<'_>) -> Verdict {
    let (family, request) = (Family::Dense, work(Family::Dense, 6));
    let (old, new) = (policy(family, Recipe::Bf16, 3)?, policy(family, Recipe::Bf16, 4)?);
    let engine = bench.loaded_with(bench.options(family), &old)?;
    let expected = generate(engine.as_ref(), &request)?;
    wait(engine.load(new))?;
    wait(engine.load(Arc::clone(&old)))?;
    is_live(engine.as_ref(), &old)?;
    same(&generate(engine.as_ref(), &request)?, &expected, "after a newer version and back")
}

pub(super) fn is_live(engine: &dyn RolloutEngine, snapshot: &Snapshot) -> Verdict {
    let expected = snapshot.stamp();
    match engine.loaded() {
        Some(stamp) if stamp == expected => Ok(()),
        Some(stamp) => Err(Failure::new(format!("{stamp} is said to be live, not {expected}"))),
        None => Err(Failure::new(format!("nothing is said to be live, not {expected}"))),
    }
}

/// Stamp and every token's version are those of the snapshot.
pub(super) fn is_of(rollout: &Rollout, snapshot: &Snapshot) -> Verdict {
    let (stamp, expected) = (rollout.stamp, snapshot.stamp());
    Failure::unless(stamp == expected, || format!("the rollout is said to come from {stamp}, not {expected}"))?;
    let named = rollout.stamps.as_slice();
    Failure::unless(named == [expected], || format!("the tokens are said to come from {named:?}, not {expected}"))?;
    for completion in completions(rollout) {
        let (versions, tokens) = (completion.versions.len(), completion.tokens.len());
        Failure::unless(versions == tokens, || format!("{versions} versions for {tokens} tokens"))?;
        let other = completion.versions.iter().find(|version| **version != expected.version);
        Failure::unless(other.is_none(), || format!("a token is of version {other:?}, not {}", expected.version))?;
    }
    Ok(())
}

fn is_one_of(rollout: &Rollout, versions: &[(Arc<Snapshot>, Rollout)]) -> Verdict {
    let of_stamp = versions.iter().find(|(snapshot, _)| snapshot.stamp() == rollout.stamp);
    let (snapshot, expected) = of_stamp.ok_or_else(|| Failure::new(format!("{} was never loaded", rollout.stamp)))?;
    for version in completions(rollout).flat_map(|completion| &completion.versions) {
        let known = versions.iter().any(|(snapshot, _)| snapshot.stamp().version == *version);
        Failure::unless(known, || format!("a token is of version {version}, which was never loaded"))?;
    }
    match is_of(rollout, snapshot) {
        Ok(()) => same(rollout, expected, "while versions change"),
        // An engine may go on with new weights in the middle of a completion, as long as every token says so.
        Err(_) => Ok(()),
    }
}
