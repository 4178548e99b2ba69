//! A reward for short completions.

use miles_core::plugin::{Reward, RewardError, RewardInput, async_trait};

/// `1 / (1 + tokens)` for a completion that ended by itself, 0 for one that was cut off. A sample without a prompt is
/// refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortness;

#[async_trait]
impl Reward for Shortness {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        if input.prompt.is_empty() {
            return Err(RewardError::MissingField { field: "prompt" });
        }
        let ended = if input.finished { 1.0 } else { 0.0 };
        Ok(ended / (1.0 + input.completion_tokens.len() as f32))
    }
}

miles_core::register_reward!("outside-shortness", |_options| Ok(Box::new(Shortness)));
