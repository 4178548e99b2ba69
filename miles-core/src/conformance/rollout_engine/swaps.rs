//! Versions that are loaded while a request runs, in every publication mode that the engine declares.
//!
//! A version is loaded when the engine looks at the cancel token for the n-th time, so nothing depends on time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::fixture::{Family, policy, undeclared_policy};
use super::super::wait::wait;
use super::super::{Failure, Suite, Verdict};
use super::batching::DEPENDS;
use super::bench::{Bench, completions, generate, generate_until, same, same_completion, work};
use super::versions::{is_live, is_of};
use crate::Result;
use crate::plugin::{
    CancelToken, Completion, EngineOptions, GenerateRequest, PromptRequest, PublicationMode, Rollout, RolloutEngine,
};
use crate::policy::{PolicyVersion, Snapshot};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    let capabilities = &bench.backend.capabilities;
    for mode in PublicationMode::ALL {
        let name = format!("swaps/{mode}");
        if !capabilities.publication.contains(&mode) {
            let options = EngineOptions { publication: mode, ..bench.options(Family::Dense) };
            suite.refusal(name, || bench.engine(options).map(drop));
        } else if capabilities.batch_invariant {
            let check = match mode {
                PublicationMode::Finish => a_request_finishes_on_its_version,
                PublicationMode::Continue => every_token_is_of_the_version_it_names,
                PublicationMode::AbortAndResubmit => every_group_is_of_one_version,
            };
            suite.case(name, || bench.everywhere(|family, recipe| check(bench, family, recipe)));
        } else {
            suite.unsupported(name, || Ok(DEPENDS.to_owned()));
        }
    }
    suite.case("swaps/refused_load", || {
        capabilities.publication.iter().try_for_each(|&mode| {
            a_refused_load_is_not_noticed(bench, mode).map_err(|failure| failure.at(format!("mode {mode}")))
        })
    });
}

/// When versions are loaded: early, while the first prompts run, and again before the last ones begin.
const LOOKS: [usize; 2] = [3, 9];

/// Versions 0 to 2 of a family in a recipe.
fn versions(family: Family, recipe: Recipe) -> Result<[Arc<Snapshot>; 3]> {
    Ok([policy(family, recipe, 0)?, policy(family, recipe, 1)?, policy(family, recipe, 2)?])
}

fn engine(
    bench: &Bench<'_>,
    family: Family,
    mode: PublicationMode,
    first: &Arc<Snapshot>,
) -> Result<Arc<dyn RolloutEngine>> {
    bench.loaded_with(EngineOptions { publication: mode, ..bench.options(family) }, first)
}

/// Generates while snapshots are loaded, each at a look at the cancel token; gives the rollout and what each load said.
fn generate_while_loading(
    engine: &Arc<dyn RolloutEngine>,
    request: &GenerateRequest,
    loads: &[(usize, Arc<Snapshot>)],
) -> Result<(Rollout, Vec<Result<()>>), Failure> {
    let results = Arc::new(Mutex::new(Vec::new()));
    let (loader, planned, said, looks) =
        (Arc::clone(engine), loads.to_vec(), Arc::clone(&results), AtomicUsize::new(0));
    let cancel = CancelToken::when(move || {
        let look = looks.fetch_add(1, Ordering::Relaxed);
        for (_, snapshot) in planned.iter().filter(|(at, _)| *at == look) {
            let result = wait(loader.load(Arc::clone(snapshot)));
            said.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
        false
    });
    let rollout = generate_until(engine.as_ref(), request, &cancel)?;
    let said = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
    let (found, wanted) = (said.len(), loads.len());
    Failure::unless(found == wanted, || {
        format!("the engine looked at the cancel token for {found} of {wanted} loads")
    })?;
    Ok((rollout, said))
}

/// The loads succeed, and the rollout names exactly the policies of its tokens.
fn published(
    engine: &Arc<dyn RolloutEngine>,
    request: &GenerateRequest,
    newer: &[Arc<Snapshot>],
) -> Result<Rollout, Failure> {
    let loads: Vec<_> = LOOKS.into_iter().zip(newer.iter().cloned()).collect();
    let (rollout, said) = generate_while_loading(engine, request, &loads)?;
    said.into_iter().collect::<Result<()>>()?;
    rollout.check_versions()?;
    for stamp in &rollout.stamps {
        let mut all = completions(&rollout).flat_map(|completion| &completion.versions);
        Failure::unless(all.any(|version| *version == stamp.version), || format!("no token is of {stamp}"))?;
    }
    Ok(rollout)
}

fn a_request_finishes_on_its_version(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (request, [old, new, newest]) = (work(family, 8), versions(family, recipe)?);
    let engine = engine(bench, family, PublicationMode::Finish, &old)?;
    let undisturbed = generate(engine.as_ref(), &request)?;
    let rollout = published(&engine, &request, &[new, Arc::clone(&newest)])?;
    same(&rollout, &undisturbed, "while versions are loaded")?;
    is_of(&rollout, &old)?;
    is_live(engine.as_ref(), &newest)?;
    let later = generate(engine.as_ref(), &request)?;
    is_of(&later, &newest)?;
    same(&later, &generate(bench.loaded_with(bench.options(family), &newest)?.as_ref(), &request)?, "the next request")
}

/// A run of tokens of one version in a completion.
struct Stretch<'a> {
    version: PolicyVersion,
    /// Prompt, and the tokens before the stretch.
    before: Vec<u32>,
    completion: &'a Completion,
    tokens: std::ops::Range<usize>,
}

/// O11: without randomness, each stretch of one version is what an engine that knows only that version makes of the
/// tokens before it: ids and logprob bits.
fn every_token_is_of_the_version_it_names(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let mut request = work(family, 8);
    request.sampling.temperature = 0.0;
    let versions = versions(family, recipe)?;
    let engine = engine(bench, family, PublicationMode::Continue, &versions[0])?;
    let rollout = published(&engine, &request, &versions[1..])?;
    is_live(engine.as_ref(), &versions[2])?;
    let mixed = completions(&rollout).filter(|completion| completion.versions.first() != completion.versions.last());
    Failure::unless(mixed.count() > 0, || "no running completion went on with a new version".to_owned())?;
    Failure::unless(rollout.stats.recomputed_tokens > 0, || "nothing is said to be computed again".to_owned())?;
    let stretches: Vec<Stretch<'_>> = rollout
        .groups
        .iter()
        .flat_map(|group| group.completions.iter().flat_map(|completion| stretches(&group.prompt_tokens, completion)))
        .collect();
    for snapshot in &versions {
        let of_version: Vec<&Stretch<'_>> =
            stretches.iter().filter(|stretch| stretch.version == snapshot.stamp().version).collect();
        let prompt = |(key, stretch): (u64, &&Stretch<'_>)| PromptRequest {
            key,
            tokens: stretch.before.clone(),
            completions: 1,
        };
        let prompts = (0..).zip(&of_version).map(prompt).collect();
        let alone = bench.loaded_with(bench.options(family), snapshot)?;
        let fresh = generate(alone.as_ref(), &GenerateRequest { prompts, ..request.clone() })?;
        for (stretch, fresh) in of_version.iter().zip(completions(&fresh)) {
            let tokens = stretch.tokens.len();
            let (found, expected) = (part(stretch.completion, stretch.tokens.clone()), part(fresh, 0..tokens));
            same_completion(&found, &expected)
                .map_err(|failure| failure.at(format!("tokens {:?} of {}", stretch.tokens, snapshot.stamp())))?;
        }
    }
    Ok(())
}

fn stretches<'a>(prompt: &[u32], completion: &'a Completion) -> Vec<Stretch<'a>> {
    let mut found = Vec::new();
    let mut start = 0;
    for versions in completion.versions.chunk_by(|a, b| a == b) {
        let before = [prompt, &completion.tokens[..start]].concat();
        let tokens = start..start + versions.len();
        start = tokens.end;
        found.push(Stretch { version: versions[0], before, completion, tokens });
    }
    found
}

/// Some tokens of a completion, as far as it has them.
fn part(completion: &Completion, tokens: std::ops::Range<usize>) -> Completion {
    fn of<T: Copy>(values: &[T], range: &std::ops::Range<usize>) -> Vec<T> {
        values.iter().skip(range.start).take(range.len()).copied().collect()
    }
    Completion {
        tokens: of(&completion.tokens, &tokens),
        logprobs: of(&completion.logprobs, &tokens),
        versions: of(&completion.versions, &tokens),
        finish: completion.finish,
    }
}

/// Each group is what an engine that knows only its version makes of the same prompt with the same random numbers.
fn every_group_is_of_one_version(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (request, versions) = (work(family, 8), versions(family, recipe)?);
    let engine = engine(bench, family, PublicationMode::AbortAndResubmit, &versions[0])?;
    let rollout = published(&engine, &request, &versions[1..])?;
    is_live(engine.as_ref(), &versions[2])?;
    let aborted = (rollout.stats.aborted_completions, rollout.stats.aborted_tokens);
    Failure::unless(aborted.0 > 0 && aborted.1 >= aborted.0, || format!("{aborted:?} completions and tokens aborted"))?;
    for group in &rollout.groups {
        let versions = || group.completions.iter().flat_map(|completion| &completion.versions);
        let mixed = versions().any(|version| Some(version) != versions().next());
        Failure::unless(!mixed, || format!("the group of prompt {} is of more than one version", group.key))?;
    }
    for snapshot in &versions {
        let fresh = generate(bench.loaded_with(bench.options(family), snapshot)?.as_ref(), &request)?;
        let is_of_it = |rollout: &Rollout, index: usize| {
            let first = rollout.groups[index].completions.first().and_then(|completion| completion.versions.first());
            first == Some(&snapshot.stamp().version)
        };
        let kept: Vec<usize> = (0..rollout.groups.len()).filter(|&index| is_of_it(&rollout, index)).collect();
        let only = |rollout: &Rollout| Rollout {
            groups: kept.iter().map(|&index| rollout.groups[index].clone()).collect(),
            ..rollout.clone()
        };
        same(&only(&rollout), &only(&fresh), &format!("groups of {}", snapshot.stamp()))?;
    }
    Ok(())
}

/// O7: neither the running request nor a later one notices a load that fails.
fn a_refused_load_is_not_noticed(bench: &Bench<'_>, mode: PublicationMode) -> Verdict {
    let (family, request) = (Family::Dense, work(Family::Dense, 6));
    let live = policy(family, Recipe::Bf16, 0)?;
    let engine = engine(bench, family, mode, &live)?;
    let undisturbed = generate(engine.as_ref(), &request)?;
    let misfits = [
        ("another network", policy(Family::Moe, Recipe::Bf16, 1)?),
        ("an undeclared format", undeclared_policy(family, 1)?),
    ];
    for (what, misfit) in misfits {
        let (rollout, said) = generate_while_loading(&engine, &request, &[(LOOKS[0], misfit)])?;
        Failure::unless(said.iter().all(Result::is_err), || format!("a snapshot of {what} is loaded"))?;
        let how = format!("while {what} was refused");
        is_live(engine.as_ref(), &live).map_err(|failure| failure.at(&how))?;
        is_of(&rollout, &live).map_err(|failure| failure.at(&how))?;
        same(&rollout, &undisturbed, &how)?;
        same(&generate(engine.as_ref(), &request)?, &undisturbed, &format!("after {what} was refused"))?;
    }
    Ok(())
}
