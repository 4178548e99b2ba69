//! Sampling, and the proof that the samples came from the policy that was published.

use miles_core::plugin::{
    CancelToken, CompletionGroup, FinishReason, GenerateRequest, PromptRequest, Rollout, RolloutEngine, RolloutStats,
    Sampling,
};
use miles_core::policy::{PolicyError, PolicyStamp, PolicyVersion};

use super::StageError;
use crate::Result;
use crate::data::PromptSet;

/// What is sampled in one step.
#[derive(Clone, Copy, Debug)]
pub struct RolloutRequest<'a> {
    /// Prompts that the indices point into.
    pub prompts: &'a PromptSet,
    /// Which prompts.
    pub indices: &'a [usize],
    /// Completions per prompt.
    pub completions: usize,
    /// How tokens are drawn.
    pub sampling: &'a Sampling,
    /// Seed of the draws.
    pub seed: u64,
    /// Step.
    pub step: u64,
}

/// Completions of one step, checked: every token was drawn from the policy of the stamp, and from no other.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    rollout: Rollout,
}

impl Sampled {
    /// One group per prompt; a group's key is the prompt's index.
    #[must_use]
    pub fn groups(&self) -> &[CompletionGroup] {
        &self.rollout.groups
    }

    /// The policy they came from.
    #[must_use]
    pub fn stamp(&self) -> PolicyStamp {
        self.rollout.stamp
    }

    /// Temperature that the logprobs are scaled by.
    #[must_use]
    pub fn logprob_temperature(&self) -> f32 {
        self.rollout.logprob_temperature
    }

    /// What sampling took.
    #[must_use]
    pub fn stats(&self) -> RolloutStats {
        self.rollout.stats
    }

    /// Number of completions.
    #[must_use]
    pub fn completions(&self) -> usize {
        self.groups().iter().map(|group| group.completions.len()).sum()
    }
}

/// Samples every prompt and compares what came back with what was asked and with the `live` policy.
///
/// # Errors
/// [`PolicyError::StaleVersion`] when another policy than the published one was sampled from;
/// [`StageError::ForeignToken`] when one token was; [`RolloutError`](miles_core::plugin::RolloutError) when a token's
/// version is none of the rollout's; [`StageError::BadRollout`] when the completions do not belong to the prompts;
/// whatever the engine reports.
pub async fn sample(engine: &dyn RolloutEngine, request: RolloutRequest<'_>, live: PolicyStamp) -> Result<Sampled> {
    let generate = GenerateRequest {
        prompts: request.indices.iter().map(|&index| prompt(&request, index)).collect(),
        sampling: request.sampling.clone(),
        seed: request.seed,
        step: request.step,
    };
    let rollout = engine.generate(&generate, &CancelToken::default()).await?;
    is_live(rollout.stamp, live)?;
    check(&rollout, &generate)?;
    rollout.stamps.iter().try_for_each(|&stamp| is_live(stamp, live))?;
    rollout.check_versions().map_err(miles_core::Error::from)?;
    Ok(Sampled { rollout })
}

fn is_live(stamp: PolicyStamp, live: PolicyStamp) -> Result<()> {
    if stamp == live {
        return Ok(());
    }
    let stale = PolicyError::StaleVersion { operation: "rollout", expected: live, actual: stamp };
    Err(miles_core::Error::from(stale).into())
}

fn prompt(request: &RolloutRequest<'_>, index: usize) -> PromptRequest {
    let tokens = request.prompts.prompts()[index].tokens.clone();
    PromptRequest { key: index as u64, tokens, completions: request.completions }
}

fn check(rollout: &Rollout, asked: &GenerateRequest) -> Result<(), StageError> {
    if rollout.groups.len() != asked.prompts.len() {
        let why = format!("{} groups for {} prompts", rollout.groups.len(), asked.prompts.len());
        let prompt = asked.prompts.get(rollout.groups.len()).map_or(0, |prompt| prompt.key);
        return Err(StageError::BadRollout { prompt, why });
    }
    for (group, prompt) in rollout.groups.iter().zip(&asked.prompts) {
        if let Some(why) = fault(group, prompt) {
            return Err(StageError::BadRollout { prompt: prompt.key, why });
        }
        check_versions(group, rollout.stamp.version)?;
    }
    Ok(())
}

fn check_versions(group: &CompletionGroup, expected: PolicyVersion) -> Result<(), StageError> {
    for (sample, completion) in group.completions.iter().enumerate() {
        let foreign = completion.versions.iter().enumerate().find(|(_, version)| **version != expected);
        if let Some((token, &version)) = foreign {
            return Err(StageError::ForeignToken { prompt: group.key, sample, token, version, expected });
        }
    }
    Ok(())
}

fn fault(group: &CompletionGroup, prompt: &PromptRequest) -> Option<String> {
    if group.key != prompt.key {
        return Some(format!("the group of prompt {} is in its place", group.key));
    }
    if group.prompt_tokens != prompt.tokens {
        return Some(format!("the prompt ids {:?} came back as {:?}", prompt.tokens, group.prompt_tokens));
    }
    if group.completions.len() != prompt.completions {
        return Some(format!("{} completions, {} asked for", group.completions.len(), prompt.completions));
    }
    group.completions.iter().enumerate().find_map(|(sample, completion)| {
        let tokens = completion.tokens.len();
        if completion.finish == FinishReason::Cancelled {
            Some(format!("completion {sample} was cancelled"))
        } else if tokens == 0 {
            Some(format!("completion {sample} has no tokens"))
        } else if completion.logprobs.len() != tokens || completion.versions.len() != tokens {
            let (logprobs, versions) = (completion.logprobs.len(), completion.versions.len());
            Some(format!("completion {sample}: {tokens} tokens, {logprobs} logprobs, {versions} versions"))
        } else {
            None
        }
    })
}
