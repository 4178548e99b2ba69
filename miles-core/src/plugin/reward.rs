//! Judging completions.

use async_trait::async_trait;

/// Judges one completion.
#[async_trait]
pub trait Reward: Send + Sync {
    /// The reward. An error is an outcome of its own, never a reward of 0: the run's policy says what happens then.
    ///
    /// # Errors
    /// If the completion could not be judged.
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError>;
}

/// What a reward sees.
#[derive(Clone, Copy, Debug)]
pub struct RewardInput<'a> {
    /// The prompt as written in the data.
    pub prompt: &'a str,
    /// The completion as text, without its end-of-sequence token.
    pub completion: &'a str,
    /// The completion's token ids.
    pub completion_tokens: &'a [u32],
    /// The expected answer in the data, if any.
    pub answer: Option<&'a str>,
    /// Whether the completion ended by itself (not by length).
    pub finished: bool,
    /// The whole data row.
    pub row: &'a serde_json::Map<String, serde_json::Value>,
}

/// Why a completion could not be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// The data row lacks what the reward needs.
    #[error("the data row has no `{field}`")]
    MissingField {
        /// Field.
        field: &'static str,
    },
    /// The reward panicked.
    #[error("the reward panicked: {message}")]
    Panicked {
        /// Panic message.
        message: String,
    },
    /// Anything else.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}
