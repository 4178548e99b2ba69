//! What cannot be sampled is a typed error that names the prompt or the parameter; what is merely empty is not.

use super::super::fixture::{CONTEXT_TOKENS, Family, policy, token_ids};
use super::super::wait::wait;
use super::super::{Failure, Suite, Verdict};
use super::bench::{Bench, attempt, generate, refused, same, work};
use crate::Error;
use crate::plugin::{GenerateRequest, PromptRequest, RolloutError, Sampling};
use crate::policy::PolicyError;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    suite.case("refusals/nothing_loaded", || nothing_is_sampled_from_nothing(bench));
    suite.case("refusals/network", || a_snapshot_of_another_network_is_refused(bench));
    suite.case("refusals/empty", || nothing_asked_is_nothing_drawn(bench));
    suite.case("refusals/prompt", || a_prompt_without_tokens_is_refused(bench));
    suite.case("refusals/vocabulary", || ids_outside_the_vocabulary_are_refused(bench));
    suite.case("refusals/context", || what_exceeds_the_context_is_refused(bench));
    suite.case("refusals/parameters", || parameters_outside_their_range_are_refused(bench));
}

fn nothing_is_sampled_from_nothing(bench: &Bench<'_>) -> Verdict {
    let engine = bench.engine(bench.options(Family::Dense))?;
    refused(attempt(engine.as_ref(), &work(Family::Dense, 4)), "a request before any load", |error| {
        matches!(error, Error::Rollout(RolloutError::NothingLoaded))
    })
}

fn a_snapshot_of_another_network_is_refused(bench: &Bench<'_>) -> Verdict {
    let engine = bench.engine(bench.options(Family::Dense))?;
    let misfit = policy(Family::Moe, Recipe::Bf16, 0)?;
    refused(wait(engine.load(misfit)), "a snapshot of another network", |error| {
        matches!(error, Error::Policy(PolicyError::TensorMismatch { .. }))
    })?;
    Failure::unless(engine.loaded().is_none(), || "a refused version is said to be live".to_owned())
}

/// No prompt gives no group, a prompt without completions gives an empty group; neither is an error.
fn nothing_asked_is_nothing_drawn(bench: &Bench<'_>) -> Verdict {
    let engine = bench.loaded(Family::Dense, Recipe::Bf16)?;
    let request = work(Family::Dense, 4);
    let nothing = generate(engine.as_ref(), &GenerateRequest { prompts: Vec::new(), ..request.clone() })?;
    Failure::unless(nothing.groups.is_empty(), || format!("{} groups for no prompt", nothing.groups.len()))?;
    let whole = generate(engine.as_ref(), &request)?;
    let mut with_gap = request.clone();
    with_gap.prompts[1].completions = 0;
    let mut expected = whole.clone();
    expected.groups[1].completions.clear();
    same(&generate(engine.as_ref(), &with_gap)?, &expected, "beside a prompt that wants no completion")
}

fn with_prompt(tokens: Vec<u32>, max_new_tokens: usize) -> GenerateRequest {
    let mut request = work(Family::Dense, max_new_tokens);
    request.prompts.push(PromptRequest { key: 31, tokens, completions: 2 });
    request
}

fn a_prompt_without_tokens_is_refused(bench: &Bench<'_>) -> Verdict {
    let engine = bench.loaded(Family::Dense, Recipe::Bf16)?;
    refused(attempt(engine.as_ref(), &with_prompt(Vec::new(), 4)), "a prompt without tokens", |error| {
        matches!(error, Error::Rollout(RolloutError::EmptyPrompt { key: 31 }))
    })
}

fn ids_outside_the_vocabulary_are_refused(bench: &Bench<'_>) -> Verdict {
    let engine = bench.loaded(Family::Dense, Recipe::Bf16)?;
    for wrong in [61, u32::MAX] {
        let request = with_prompt(vec![3, wrong, 5], 4);
        refused(
            attempt(engine.as_ref(), &request),
            &format!("token id {wrong} of 61"),
            |error| matches!(error, Error::Rollout(RolloutError::TokenOutOfRange { id, vocab_size: 61 }) if *id == wrong),
        )?;
    }
    Ok(())
}

/// A prompt and its longest completion fill the context to the last token, and not one token more.
fn what_exceeds_the_context_is_refused(bench: &Bench<'_>) -> Verdict {
    let engine = bench.loaded(Family::Dense, Recipe::Bf16)?;
    let new_tokens = 5;
    let prompt = |tokens: usize| with_prompt(token_ids(31, tokens, 61), new_tokens);
    let fits = generate(engine.as_ref(), &prompt(CONTEXT_TOKENS - new_tokens))?;
    let tokens =
        fits.groups.last().map_or(0, |group| group.completions.iter().map(|completion| completion.tokens.len()).sum());
    Failure::unless(tokens == 2 * new_tokens, || {
        format!("two completions have {tokens} tokens to the end of the context, not {new_tokens} each")
    })?;
    for prompt_tokens in [CONTEXT_TOKENS - new_tokens + 1, CONTEXT_TOKENS, CONTEXT_TOKENS * 3] {
        let what = format!("{prompt_tokens} and {new_tokens} tokens in a context of {CONTEXT_TOKENS}");
        refused(attempt(engine.as_ref(), &prompt(prompt_tokens)), &what, |error| {
            matches!(error, Error::Rollout(RolloutError::ContextExceeded { key: 31, prompt_tokens: found, .. })
                if *found == prompt_tokens)
        })?;
    }
    let endless = with_prompt(vec![1], usize::MAX);
    refused(attempt(engine.as_ref(), &endless), "a completion of any length", |error| {
        matches!(error, Error::Rollout(RolloutError::ContextExceeded { .. }))
    })
}

fn parameters_outside_their_range_are_refused(bench: &Bench<'_>) -> Verdict {
    let engine = bench.loaded(Family::Dense, Recipe::Bf16)?;
    type Change = fn(&mut Sampling);
    let cases: [(&str, Change); 8] = [
        ("temperature", |sampling| sampling.temperature = -1.0),
        ("temperature", |sampling| sampling.temperature = f32::NAN),
        ("temperature", |sampling| sampling.temperature = f32::INFINITY),
        ("top_p", |sampling| sampling.top_p = 0.0),
        ("top_p", |sampling| sampling.top_p = 1.5),
        ("top_p", |sampling| sampling.top_p = f32::NAN),
        ("min_p", |sampling| sampling.min_p = -0.5),
        ("max_new_tokens", |sampling| sampling.max_new_tokens = 0),
    ];
    for (expected, change) in cases {
        let mut request = work(Family::Dense, 4);
        change(&mut request.sampling);
        let what = format!("{:?}", request.sampling);
        refused(
            attempt(engine.as_ref(), &request),
            &what,
            |error| matches!(error, Error::Rollout(RolloutError::BadSampling { key, .. }) if *key == expected),
        )?;
    }
    Ok(())
}
