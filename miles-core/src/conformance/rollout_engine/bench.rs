//! What the cases share: engines with a policy loaded, and comparisons that name the first difference.

use std::sync::Arc;

use super::super::fixture::{CONTEXT_TOKENS, Family, policy, request};
use super::super::wait::wait;
use super::super::{Failure, Verdict};
use crate::format::FormatId;
use crate::plugin::{
    ActivationDtype, Backend, CancelToken, Completion, EngineOptions, GenerateRequest, Rollout, RolloutEngine, Support,
};
use crate::policy::Snapshot;
use crate::precision::{PartitionPlan, Recipe};
use crate::{Error, Result};

/// A backend under test.
pub(in crate::conformance) struct Bench<'a> {
    pub backend: &'a Backend,
    pub activations: ActivationDtype,
}

impl<'a> Bench<'a> {
    pub fn new(backend: &'a Backend) -> Self {
        let declared = &backend.capabilities.activations;
        // What a run uses unless its config says otherwise.
        let activations = match declared.contains(&ActivationDtype::Bf16) {
            true => ActivationDtype::Bf16,
            false => declared.first().copied().unwrap_or(ActivationDtype::Bf16),
        };
        Bench { backend, activations }
    }

    pub fn supports(&self, format: &FormatId) -> bool {
        self.backend.capabilities.format(format) != Support::Unsupported
    }

    /// One recipe per declared format, and BF16.
    pub fn recipes(&self) -> Vec<Recipe> {
        let recipes = [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block];
        let supported = |recipe: &Recipe| recipe.format().is_none_or(|format| self.supports(&format));
        recipes.into_iter().filter(supported).collect()
    }

    /// Runs a check for every family in every recipe, and says in which one it failed.
    pub fn everywhere(&self, check: impl Fn(Family, Recipe) -> Verdict) -> Verdict {
        for family in Family::ALL {
            for recipe in self.recipes() {
                check(family, recipe).map_err(|failure| failure.at(format!("{family} {recipe}")))?;
            }
        }
        Ok(())
    }

    /// Options that the cases start from: completions have to wait for a place.
    pub fn options(&self, family: Family) -> EngineOptions {
        EngineOptions {
            network: family.network(),
            activations: self.activations,
            max_running: 4,
            context_tokens: CONTEXT_TOKENS,
            threads: None,
            partition: PartitionPlan::WHOLE,
            publication: self.backend.capabilities.publication.first().copied().unwrap_or_default(),
        }
    }

    pub fn engine(&self, options: EngineOptions) -> Result<Arc<dyn RolloutEngine>> {
        (self.backend.engine)(options)
    }

    /// An engine with version 0 of a family in a recipe.
    pub fn loaded(&self, family: Family, recipe: Recipe) -> Result<Arc<dyn RolloutEngine>> {
        self.loaded_with(self.options(family), &policy(family, recipe, 0)?)
    }

    pub fn loaded_with(&self, options: EngineOptions, snapshot: &Arc<Snapshot>) -> Result<Arc<dyn RolloutEngine>> {
        let engine = self.engine(options)?;
        wait(engine.load(Arc::clone(snapshot)))?;
        Ok(engine)
    }
}

/// The request of the fixture for a family.
pub(super) fn work(family: Family, max_new_tokens: usize) -> GenerateRequest {
    request(family.config().vocab_size, max_new_tokens)
}

/// Samples to the end; an answer that does not fit the request is a failure, so that what looks at it may count on its
/// shape.
pub(in crate::conformance) fn generate(
    engine: &dyn RolloutEngine,
    request: &GenerateRequest,
) -> Result<Rollout, Failure> {
    generate_until(engine, request, &CancelToken::default())
}

/// Samples until the end or until cancelled.
pub(super) fn generate_until(
    engine: &dyn RolloutEngine,
    request: &GenerateRequest,
    cancel: &CancelToken,
) -> Result<Rollout, Failure> {
    let rollout = wait(engine.generate(request, cancel))?;
    answers(&rollout, request)?;
    Ok(rollout)
}

/// What an engine says, whatever that is: for what it has to refuse.
pub(super) fn attempt(engine: &dyn RolloutEngine, request: &GenerateRequest) -> Result<Rollout> {
    wait(engine.generate(request, &CancelToken::default()))
}

/// Groups in request order with the prompts' keys and ids, as many completions as asked for, one logprob and one version
/// per token, and no more tokens than allowed.
fn answers(rollout: &Rollout, request: &GenerateRequest) -> Verdict {
    let (groups, prompts) = (rollout.groups.len(), request.prompts.len());
    Failure::unless(groups == prompts, || format!("{groups} groups for {prompts} prompts"))?;
    for (group, prompt) in rollout.groups.iter().zip(&request.prompts) {
        let key = prompt.key;
        Failure::unless(group.key == key, || format!("the group of prompt {} stands in place of {key}", group.key))?;
        Failure::unless(group.prompt_tokens == prompt.tokens, || {
            format!("prompt {key} is given back as {:?}, not as {:?}", group.prompt_tokens, prompt.tokens)
        })?;
        let (count, wanted) = (group.completions.len(), prompt.completions);
        Failure::unless(count == wanted, || format!("prompt {key} has {count} completions, not {wanted}"))?;
        for (sample, completion) in group.completions.iter().enumerate() {
            let (tokens, most) = (completion.tokens.len(), request.sampling.max_new_tokens);
            Failure::unless(tokens <= most, || {
                format!("completion {sample} of prompt {key} has {tokens} tokens of at most {most}")
            })?;
            for (what, count) in [("logprobs", completion.logprobs.len()), ("versions", completion.versions.len())] {
                Failure::unless(count == tokens, || {
                    format!("completion {sample} of prompt {key} has {count} {what} for {tokens} tokens")
                })?;
            }
        }
    }
    Ok(())
}

/// Every completion of a rollout, in order.
pub(super) fn completions(rollout: &Rollout) -> impl Iterator<Item = &Completion> {
    rollout.groups.iter().flat_map(|group| &group.completions)
}

/// The same groups with the same ids and the same logprob bits.
pub(super) fn same(found: &Rollout, expected: &Rollout, how: &str) -> Verdict {
    let (groups, wanted) = (found.groups.len(), expected.groups.len());
    Failure::unless(groups == wanted, || format!("{how}: {groups} groups, not {wanted}"))?;
    for (found, expected) in found.groups.iter().zip(&expected.groups) {
        let key = expected.key;
        Failure::unless(found.key == key, || format!("{how}: the group of prompt {} in place of {key}", found.key))?;
        let (count, wanted) = (found.completions.len(), expected.completions.len());
        Failure::unless(count == wanted, || format!("{how}: prompt {key} has {count} completions, not {wanted}"))?;
        for (sample, (found, expected)) in found.completions.iter().zip(&expected.completions).enumerate() {
            same_completion(found, expected)
                .map_err(|failure| failure.at(format!("{how}: prompt {key}, completion {sample}")))?;
        }
    }
    Ok(())
}

pub(super) fn same_completion(found: &Completion, expected: &Completion) -> Verdict {
    for (token, (found, expected)) in found.tokens.iter().zip(&expected.tokens).enumerate() {
        Failure::unless(found == expected, || format!("token {token} is {found}, not {expected}"))?;
    }
    let (tokens, wanted) = (found.tokens.len(), expected.tokens.len());
    Failure::unless(tokens == wanted, || format!("{tokens} tokens, not {wanted}"))?;
    for (token, (found, expected)) in found.logprobs.iter().zip(&expected.logprobs).enumerate() {
        let same = found.to_bits() == expected.to_bits();
        Failure::unless(same, || format!("the logprob of token {token} is {found:e}, not {expected:e}"))?;
    }
    let (finish, wanted) = (found.finish, expected.finish);
    Failure::unless(finish == wanted, || format!("ended by {finish:?}, not {wanted:?}"))
}

/// The attempt fails with an error of the right kind.
pub(in crate::conformance) fn refused<T>(attempt: Result<T>, what: &str, is_right: impl Fn(&Error) -> bool) -> Verdict {
    match attempt {
        Err(error) if is_right(&error) => Ok(()),
        Err(error) => Err(Failure::from(error).at(format!("{what}: refused with another error"))),
        Ok(_) => Err(Failure::new(format!("{what}: not refused"))),
    }
}
