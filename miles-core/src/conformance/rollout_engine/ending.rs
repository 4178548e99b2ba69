//! How completions end: by any end-of-sequence id, by length, or because they were cancelled.

use super::super::fixture::Family;
use super::super::wait::together;
use super::super::{Failure, Suite, Verdict};
use super::bench::{Bench, completions, generate, generate_until, same, same_completion, work};
use crate::plugin::{CancelToken, Completion, FinishReason, GenerateRequest, Rollout};
use crate::precision::Recipe;

/// What runs beside another task.
type Task<'a> = Box<dyn FnOnce() -> Result<Option<Rollout>, Failure> + Send + 'a>;

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    suite.case("ending/length", || bench.everywhere(|family, recipe| the_longest_length_ends(bench, family, recipe)));
    suite.case("ending/eos", || bench.everywhere(|family, recipe| every_eos_id_ends(bench, family, recipe)));
    suite.case("ending/cancelled_before", || a_request_that_is_cancelled_before_draws_little(bench));
    suite.case("ending/cancelled_during", || a_request_that_is_cancelled_keeps_what_it_drew(bench));
}

fn the_longest_length_ends(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    for max_new_tokens in [1, 2, 9] {
        for completion in completions(&generate(engine.as_ref(), &work(family, max_new_tokens))?) {
            let right = completion.tokens.len() == max_new_tokens && completion.finish == FinishReason::Length;
            Failure::unless(right, || {
                format!("{} tokens of {max_new_tokens}, ended by {:?}", completion.tokens.len(), completion.finish)
            })?;
        }
    }
    Ok(())
}

/// O17: with three ids, whichever of them is drawn ends the completion, is part of it, and the finish reason says so.
fn every_eos_id_ends(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let request = work(family, 12);
    let endless = generate(engine.as_ref(), &request)?;
    let vocab_size = family.config().vocab_size as u32;
    let times_inside = |id: u32| {
        completions(&endless).filter(|completion| completion.tokens.iter().take(11).any(|&token| token == id)).count()
    };
    let mut ids: Vec<u32> = (0..vocab_size).collect();
    ids.sort_by_key(|&id| std::cmp::Reverse(times_inside(id)));
    let (drawn, never) = (ids[0], ids[ids.len() - 2..].to_vec());
    Failure::unless(times_inside(drawn) > 0, || "no id is drawn before the last token".to_owned())?;
    for eos_token_ids in [[drawn, never[0], never[1]], [never[0], drawn, never[1]], [never[0], never[1], drawn]] {
        let what = format!("end-of-sequence ids {eos_token_ids:?}, of which {drawn} is drawn");
        let mut with_eos = request.clone();
        with_eos.sampling.eos_token_ids = eos_token_ids.to_vec();
        let found = generate(engine.as_ref(), &with_eos)?;
        for completion in completions(&found) {
            ends_by(completion, &eos_token_ids, 12).map_err(|failure| failure.at(&what))?;
        }
        let ended = completions(&found).filter(|completion| completion.finish == FinishReason::Eos).count();
        Failure::unless(ended > 0, || format!("{what}: no completion ends by it"))?;
        if bench.backend.capabilities.batch_invariant {
            same(&found, &cut(&endless, &eos_token_ids), &what)?;
        }
    }
    Ok(())
}

/// No end-of-sequence id but as the last token, and the finish reason that belongs to the last token.
fn ends_by(completion: &Completion, eos_token_ids: &[u32], max_new_tokens: usize) -> Verdict {
    let Some((last, inner)) = completion.tokens.split_last() else {
        return Err(Failure::new("a completion has no token"));
    };
    let inside = inner.iter().find(|id| eos_token_ids.contains(id));
    Failure::unless(inside.is_none(), || format!("the completion goes on after {inside:?}"))?;
    let expected = match eos_token_ids.contains(last) {
        true => FinishReason::Eos,
        false => FinishReason::Length,
    };
    let long_enough = expected == FinishReason::Eos || completion.tokens.len() == max_new_tokens;
    Failure::unless(completion.finish == expected && long_enough, || {
        format!(
            "{} tokens that end with {last} are said to have ended by {:?}",
            completion.tokens.len(),
            completion.finish
        )
    })
}

/// The completions as they end by the first of some ids.
fn cut(endless: &Rollout, eos_token_ids: &[u32]) -> Rollout {
    let mut rollout = endless.clone();
    for completion in rollout.groups.iter_mut().flat_map(|group| &mut group.completions) {
        if let Some(at) = completion.tokens.iter().position(|id| eos_token_ids.contains(id)) {
            completion.tokens.truncate(at + 1);
            completion.logprobs.truncate(at + 1);
            completion.versions.truncate(at + 1);
            completion.finish = FinishReason::Eos;
        }
    }
    rollout
}

fn a_request_that_is_cancelled_before_draws_little(bench: &Bench<'_>) -> Verdict {
    let (engine, request) = (bench.loaded(Family::Dense, Recipe::Bf16)?, work(Family::Dense, 32));
    let whole = generate(engine.as_ref(), &request)?;
    let cancel = CancelToken::default();
    cancel.cancel();
    let found = generate_until(engine.as_ref(), &request, &cancel)?;
    is_beginning(&found, &whole)?;
    let going_on = completions(&found).filter(|completion| completion.finish != FinishReason::Cancelled).count();
    Failure::unless(going_on == 0, || format!("{going_on} completions of 32 tokens came to their end"))?;
    same(&generate(engine.as_ref(), &request)?, &whole, "the next request")
}

/// Whenever the request is cancelled: each completion is whole or a beginning, and the engine serves the next request.
fn a_request_that_is_cancelled_keeps_what_it_drew(bench: &Bench<'_>) -> Verdict {
    let engine = bench.loaded(Family::Dense, Recipe::Bf16)?;
    let mut request = work(Family::Dense, 40);
    request.prompts.iter_mut().for_each(|prompt| prompt.completions *= 3);
    let whole = generate(engine.as_ref(), &request)?;
    for wait_micros in [0, 200, 1000, 5000] {
        let cancel = CancelToken::default();
        let canceller = || {
            std::thread::sleep(std::time::Duration::from_micros(wait_micros));
            cancel.cancel();
            Ok(None)
        };
        let rollout = || generate_until(engine.as_ref(), &request, &cancel).map(Some);
        let tasks: [Task<'_>; 2] = [Box::new(canceller), Box::new(rollout)];
        for found in together(tasks.into()) {
            if let Some(found) = found? {
                is_beginning(&found, &whole)?;
            }
        }
    }
    let last = GenerateRequest { step: 1, ..request };
    let expected = generate(bench.loaded(Family::Dense, Recipe::Bf16)?.as_ref(), &last)?;
    same(&generate(engine.as_ref(), &last)?, &expected, "a request after cancelled ones")
}

/// Every completion is the whole one, or cancelled and its beginning.
fn is_beginning(found: &Rollout, whole: &Rollout) -> Verdict {
    let shape = |rollout: &Rollout| -> Vec<(u64, usize)> {
        rollout.groups.iter().map(|group| (group.key, group.completions.len())).collect()
    };
    Failure::unless(shape(found) == shape(whole), || "a cancelled request loses completions".to_owned())?;
    for (found, whole) in completions(found).zip(completions(whole)) {
        if found.finish != FinishReason::Cancelled {
            same_completion(found, whole)?;
            continue;
        }
        let tokens = found.tokens.len();
        let longer = tokens >= whole.tokens.len();
        Failure::unless(!longer, || format!("a completion of all {tokens} tokens is said to be cancelled"))?;
        let beginning = Completion {
            tokens: whole.tokens[..tokens].to_vec(),
            logprobs: whole.logprobs[..tokens].to_vec(),
            versions: whole.versions[..tokens].to_vec(),
            finish: FinishReason::Cancelled,
        };
        same_completion(found, &beginning)?;
    }
    Ok(())
}
