//! `exact-match`: 1 when the completion is the expected answer, 0 otherwise.

use async_trait::async_trait;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_core::register_reward;
use serde::Deserialize;

use crate::options;

/// Compares text. White space around both sides does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExactMatch {
    /// Whether upper and lower case differ (default true).
    pub case_sensitive: bool,
}

impl Default for ExactMatch {
    fn default() -> Self {
        ExactMatch { case_sensitive: true }
    }
}

#[async_trait]
impl Reward for ExactMatch {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let answer = input.answer.ok_or(RewardError::MissingField { field: "answer" })?.trim();
        let completion = input.completion.trim();
        let equal = match self.case_sensitive {
            true => completion == answer,
            false => completion.to_lowercase() == answer.to_lowercase(),
        };
        Ok(f32::from(u8::from(equal)))
    }
}

register_reward!("exact-match", |table| Ok(Box::new(options::read::<ExactMatch>("reward", "exact-match", table)?)));

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    fn score(reward: ExactMatch, completion: &str, answer: Option<&str>) -> Result<f32, RewardError> {
        let row = serde_json::Map::new();
        let input = RewardInput { prompt: "", completion, completion_tokens: &[], answer, finished: true, row: &row };
        block_on(reward.score(&input))
    }

    #[test]
    fn white_space_around_does_not_count_and_case_does() {
        let exact = ExactMatch::default();
        assert_eq!(score(exact, " Paris\n", Some("Paris")).unwrap(), 1.0);
        assert_eq!(score(exact, "paris", Some("Paris")).unwrap(), 0.0);
        assert_eq!(score(ExactMatch { case_sensitive: false }, "paris", Some("Paris")).unwrap(), 1.0);
        assert_eq!(score(exact, "", Some("Paris")).unwrap(), 0.0);
    }

    #[test]
    fn a_row_without_answer_is_an_error_not_a_zero() {
        let error = score(ExactMatch::default(), "x", None).unwrap_err();
        assert!(matches!(error, RewardError::MissingField { field: "answer" }));
    }
}
