//! Judging. An error of a reward is an outcome of its own, counted and logged, never a silent 0.

use miles_core::plugin::{Completion, FinishReason, Reward, RewardError, RewardInput};

use super::error::NonFiniteReward;
use super::join::{BoxFuture, join_all};
use super::{Sampled, StageError};
use crate::Result;
use crate::config::OnRewardError;
use crate::data::{Prompt, PromptSet, TextTokenizer};

/// What became of one completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// It has a reward.
    Reward(f32),
    /// It could not be judged and is left out.
    Dropped,
}

impl Outcome {
    /// The reward, where there is one.
    #[must_use]
    pub fn reward(self) -> Option<f32> {
        match self {
            Outcome::Reward(reward) => Some(reward),
            Outcome::Dropped => None,
        }
    }
}

/// Judged completions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewarded {
    sampled: Sampled,
    outcomes: Vec<Vec<Outcome>>,
    errors: usize,
}

impl Rewarded {
    /// What was judged.
    #[must_use]
    pub fn sampled(&self) -> &Sampled {
        &self.sampled
    }

    /// One outcome per completion, `[group][completion]`.
    #[must_use]
    pub fn outcomes(&self) -> &[Vec<Outcome>] {
        &self.outcomes
    }

    /// Every reward, in order.
    pub fn rewards(&self) -> impl Iterator<Item = f32> + '_ {
        self.outcomes.iter().flatten().filter_map(|outcome| outcome.reward())
    }

    /// Completions that could not be judged, whatever was done about it.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Mean reward of each prompt that has one.
    #[must_use]
    pub fn prompt_rewards(&self) -> Vec<(usize, f32)> {
        let groups = self.sampled.groups().iter().zip(&self.outcomes);
        groups
            .filter_map(|(group, outcomes)| {
                let rewards: Vec<f64> = outcomes.iter().filter_map(|o| o.reward()).map(f64::from).collect();
                let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
                (!rewards.is_empty()).then_some((group.key as usize, mean as f32))
            })
            .collect()
    }
}

/// Who judges, and what happens when it cannot.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    /// Judges.
    pub reward: &'a dyn Reward,
    /// Turns ids into the text that is judged.
    pub tokenizer: &'a TextTokenizer,
    /// What happens to a completion that could not be judged.
    pub on_error: OnRewardError,
}

/// Judges every completion, all at once.
///
/// # Errors
/// [`StageError::Reward`] for the first completion that could not be judged, where the policy is to fail.
pub async fn judge(judge: Judge<'_>, prompts: &PromptSet, sampled: Sampled) -> Result<Rewarded> {
    let mut futures: Vec<BoxFuture<'_, Result<f32, RewardError>>> = Vec::with_capacity(sampled.completions());
    for group in sampled.groups() {
        let prompt = &prompts.prompts()[group.key as usize];
        futures.extend(group.completions.iter().map(|completion| score(judge, prompt, completion)));
    }
    let mut results = join_all(futures).await.into_iter();
    let mut errors = 0;
    let mut outcomes = Vec::with_capacity(sampled.groups().len());
    for group in sampled.groups() {
        let mut of_group = Vec::with_capacity(group.completions.len());
        for (sample, result) in results.by_ref().take(group.completions.len()).enumerate() {
            let result = result.unwrap_or_else(|message| Err(RewardError::Panicked { message }));
            of_group.push(match result {
                Ok(reward) => Outcome::Reward(reward),
                Err(source) => {
                    errors += 1;
                    tracing::warn!(prompt = group.key, sample, error = %source, "a completion could not be judged");
                    match judge.on_error {
                        OnRewardError::Drop => Outcome::Dropped,
                        OnRewardError::Score(reward) => Outcome::Reward(reward),
                        OnRewardError::Fail => {
                            return Err(StageError::Reward { prompt: group.key, sample, source }.into());
                        }
                    }
                }
            });
        }
        outcomes.push(of_group);
    }
    Ok(Rewarded { sampled, outcomes, errors })
}

fn score<'a>(
    judge: Judge<'a>,
    prompt: &'a Prompt,
    completion: &'a Completion,
) -> BoxFuture<'a, Result<f32, RewardError>> {
    Box::pin(async move {
        let is_finished = completion.finish == FinishReason::Eos;
        let spoken = &completion.tokens[..completion.tokens.len() - usize::from(is_finished)];
        let text = judge.tokenizer.decode(spoken).map_err(|error| RewardError::Other(Box::new(error)))?;
        let input = RewardInput {
            prompt: &prompt.text,
            completion: &text,
            completion_tokens: &completion.tokens,
            answer: prompt.answer.as_deref(),
            finished: is_finished,
            row: &prompt.row,
        };
        let reward = judge.reward.score(&input).await?;
        match reward.is_finite() {
            true => Ok(reward),
            false => Err(RewardError::Other(Box::new(NonFiniteReward(reward)))),
        }
    })
}
