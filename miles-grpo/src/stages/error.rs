//! What a stage refuses.

use miles_core::plugin::RewardError;
use miles_core::policy::PolicyVersion;

/// Something that a plug-in or a stage made and the next stage cannot use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// A schedule that names a prompt which does not exist, names one twice, or names none.
    #[error("step {step}: the schedule {why}")]
    BadSchedule {
        /// Step.
        step: u64,
        /// What is wrong.
        why: String,
    },
    /// A rollout that is not what was asked for.
    #[error("the rollout of prompt {prompt}: {why}")]
    BadRollout {
        /// Prompt, as its index in the data.
        prompt: u64,
        /// What differs.
        why: String,
    },
    /// A token of another policy version than the one that should have been sampled from.
    #[error("prompt {prompt}, completion {sample}: token {token} was drawn from version {version}, not {expected}")]
    ForeignToken {
        /// Prompt, as its index in the data.
        prompt: u64,
        /// Completion in the group.
        sample: usize,
        /// Token in the completion.
        token: usize,
        /// Version that the token was drawn from.
        version: PolicyVersion,
        /// Version that was published.
        expected: PolicyVersion,
    },
    /// A completion that could not be judged, under the policy that this ends the run.
    #[error("prompt {prompt}, completion {sample}: {source}")]
    Reward {
        /// Prompt, as its index in the data.
        prompt: u64,
        /// Completion in the group.
        sample: usize,
        /// Why.
        source: RewardError,
    },
    /// Not one completion of a step could be judged.
    #[error("step {step}: none of the {completions} completions could be judged")]
    NothingJudged {
        /// Step.
        step: u64,
        /// Completions sampled.
        completions: usize,
    },
    /// An advantage estimator that returns another number of values than it was given, or one that is not finite.
    #[error("prompt {prompt}: the advantage of rewards {rewards:?} is {advantages:?}")]
    BadAdvantages {
        /// Prompt, as its index in the data.
        prompt: u64,
        /// Rewards given.
        rewards: Vec<f32>,
        /// Advantages returned.
        advantages: Vec<f32>,
    },
    /// A trainer that scores another number of completions or tokens than the batch has.
    #[error("sample {sample}: the trainer scored {scored} tokens of {expected}")]
    BadScores {
        /// Sample in the batch.
        sample: usize,
        /// Tokens scored.
        scored: usize,
        /// Completion tokens.
        expected: usize,
    },
    /// A metric that is not a finite number.
    #[error("step {step}: the metric `{key}` is {value:?}")]
    NonFiniteMetric {
        /// Step.
        step: u64,
        /// Metric.
        key: String,
        /// Value.
        value: f64,
    },
}

/// A reward that is not a number.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the reward is {0}")]
pub struct NonFiniteReward(pub f32);
