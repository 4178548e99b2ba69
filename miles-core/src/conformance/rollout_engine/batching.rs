//! O15: a completion does not depend on what else is computed.

use std::sync::Arc;

use super::super::fixture::{Family, policy, token_ids};
use super::super::wait::together;
use super::super::{Failure, Suite, Verdict};
use super::bench::{Bench, generate, same, work};
use crate::plugin::{EngineOptions, GenerateRequest, PromptRequest, Rollout};
use crate::precision::Recipe;

/// The reason in a report of a backend that is not batch-invariant.
pub(in crate::conformance) const DEPENDS: &str = "the backend declares that its results depend on the batch";

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    type Check = fn(&Bench<'_>, Family, Recipe) -> Verdict;
    let cases: [(&str, Check); 5] = [
        ("sampling/neighbours", neighbours_change_nothing),
        ("sampling/crowd", a_crowd_changes_nothing),
        ("sampling/running", places_change_nothing),
        ("sampling/threads", threads_change_nothing),
        ("sampling/requests", requests_at_the_same_time_change_nothing),
    ];
    for (name, check) in cases {
        if bench.backend.capabilities.batch_invariant {
            suite.case(name, || bench.everywhere(|family, recipe| check(bench, family, recipe)));
        } else {
            suite.unsupported(name, || Ok(DEPENDS.to_owned()));
        }
    }
}

/// Each prompt alone, and all of them in the opposite order.
fn neighbours_change_nothing(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let request = work(family, 8);
    let whole = generate(engine.as_ref(), &request)?;
    for (prompt, group) in request.prompts.iter().zip(&whole.groups) {
        let single = GenerateRequest { prompts: vec![prompt.clone()], ..request.clone() };
        let expected = Rollout { groups: vec![group.clone()], ..whole.clone() };
        same(&generate(engine.as_ref(), &single)?, &expected, "a prompt alone")?;
    }
    let mut backwards = request.clone();
    backwards.prompts.reverse();
    let mut found = generate(engine.as_ref(), &backwards)?;
    found.groups.reverse();
    same(&found, &whole, "the prompts in the opposite order")
}

/// Many prompts together, in the opposite order, and a few at a time.
fn a_crowd_changes_nothing(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let vocab_size = family.config().vocab_size;
    let prompt = |index: usize| PromptRequest {
        key: index as u64 * 3,
        tokens: token_ids(index as u64, 1 + index % 7, vocab_size),
        completions: 1,
    };
    let request = GenerateRequest { prompts: (0..37).map(prompt).collect(), ..work(family, 3) };
    let whole = generate(engine.as_ref(), &request)?;
    let mut backwards = request.clone();
    backwards.prompts.reverse();
    let mut found = generate(engine.as_ref(), &backwards)?;
    found.groups.reverse();
    same(&found, &whole, "37 prompts in the opposite order")?;
    for few in 1..=9 {
        let prompts = request.prompts.iter().skip(few * 3).take(few).cloned().collect();
        let groups = whole.groups.iter().skip(few * 3).take(few).cloned().collect();
        let found = generate(engine.as_ref(), &GenerateRequest { prompts, ..request.clone() })?;
        same(&found, &Rollout { groups, ..whole.clone() }, &format!("{few} of 37 prompts"))?;
    }
    Ok(())
}

fn places_change_nothing(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    options_change_nothing(
        bench,
        family,
        recipe,
        [1, 3, 64].map(|max_running| {
            let options = EngineOptions { max_running, ..bench.options(family) };
            (format!("{max_running} completions at a time"), options)
        }),
    )
}

fn threads_change_nothing(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    options_change_nothing(
        bench,
        family,
        recipe,
        [1, 2, 5].map(|threads| {
            let options = EngineOptions { threads: Some(threads), ..bench.options(family) };
            (format!("{threads} threads"), options)
        }),
    )
}

fn options_change_nothing(
    bench: &Bench<'_>,
    family: Family,
    recipe: Recipe,
    options: [(String, EngineOptions); 3],
) -> Verdict {
    let request = work(family, 8);
    let expected = generate(bench.loaded(family, recipe)?.as_ref(), &request)?;
    let snapshot = policy(family, recipe, 0)?;
    for (how, options) in options {
        let engine = bench.loaded_with(options, &snapshot)?;
        same(&generate(engine.as_ref(), &request)?, &expected, &how)?;
    }
    Ok(())
}

/// One engine, three threads that ask it for different work.
fn requests_at_the_same_time_change_nothing(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let requests: Vec<GenerateRequest> =
        [4, 8, 11].into_iter().map(|tokens| GenerateRequest { step: tokens as u64, ..work(family, tokens) }).collect();
    let expected: Vec<Rollout> =
        requests.iter().map(|request| generate(engine.as_ref(), request)).collect::<Result<_, _>>()?;
    let tasks = requests.iter().map(|request| {
        let engine = Arc::clone(&engine);
        Box::new(move || generate(engine.as_ref(), request)) as Box<dyn FnOnce() -> Result<Rollout, Failure> + Send>
    });
    let tasks: Vec<_> = tasks.collect();
    for (found, expected) in together(tasks).into_iter().zip(&expected) {
        same(&found?, expected, "beside other requests")?;
    }
    Ok(())
}
