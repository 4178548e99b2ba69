//! `arithmetic`: 1 when the number that the completion ends on is the expected one, 0 otherwise.
//!
//! The number is looked for in this order, and the first place that exists decides:
//!
//! 1. the last number inside the last `\boxed{...}`;
//! 2. the first number after the last `=`;
//! 3. the last number of the completion.
//!
//! Numbers are compared exactly as decimals (`7`, `7.0` and `07` are equal, `0.1` and `0.1000001` are not). A
//! completion without a number scores 0. A data row whose answer is missing or not a number is an error, never a 0.

use async_trait::async_trait;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_core::register_reward;

use super::Number;
use crate::options::{self, NoOptions};

/// Compares the completion's last number with the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic;

/// An answer in the data that is not a number.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the answer `{answer}` is not a number")]
pub struct BadAnswer {
    /// The answer.
    pub answer: String,
}

#[async_trait]
impl Reward for Arithmetic {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let answer = input.answer.ok_or(RewardError::MissingField { field: "answer" })?;
        let expected = Number::parse(answer)
            .ok_or_else(|| RewardError::Other(Box::new(BadAnswer { answer: answer.to_owned() })))?;
        Ok(f32::from(u8::from(stated(input.completion) == Some(expected))))
    }
}

register_reward!("arithmetic", |table| {
    options::read::<NoOptions>("reward", "arithmetic", table)?;
    Ok(Box::new(Arithmetic))
});

/// The number that a completion states as its result.
fn stated(completion: &str) -> Option<Number> {
    if let Some((_, tail)) = completion.rsplit_once("\\boxed{") {
        return Number::last_in(balanced(tail));
    }
    match completion.rsplit_once('=') {
        Some((_, tail)) => Number::first_in(tail),
        None => Number::last_in(completion),
    }
}

/// The text up to the brace that closes one opened before it (all of it when none does).
fn balanced(text: &str) -> &str {
    let mut depth = 1usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    fn score(completion: &str, answer: Option<&str>) -> Result<f32, RewardError> {
        let row = serde_json::Map::new();
        let input = RewardInput { prompt: "", completion, completion_tokens: &[], answer, finished: true, row: &row };
        block_on(Arithmetic.score(&input))
    }

    #[test]
    fn the_number_is_found_in_the_documented_order() {
        for (completion, right) in [
            ("12", true),
            ("first 7, then 12", true),
            ("12, not 7", false),
            ("5+7=12", true),
            ("5+7=12 since 5 and 7", true),
            ("5+7=13\n5+7=12", true),
            ("12=", false),
            ("= 7 so \\boxed{12}", true),
            ("\\boxed{7} or \\boxed{x = {12}}", true),
            ("\\boxed{12", true),
            ("\\boxed{} 12", false),
            ("", false),
            ("twelve", false),
            ("-12", false),
            ("12.0", true),
            ("12.5", false),
        ] {
            assert_eq!(score(completion, Some("12")).unwrap(), f32::from(u8::from(right)), "{completion:?}");
        }
        assert_eq!(score("3-8=-5", Some("-5")).unwrap(), 1.0);
        assert_eq!(score("1,024", Some("1024")).unwrap(), 1.0);
    }

    #[test]
    fn a_bad_answer_is_an_error_that_shows_it() {
        assert!(matches!(score("1", None), Err(RewardError::MissingField { field: "answer" })));
        assert!(score("1", Some("one")).unwrap_err().to_string().contains("one"));
    }
}
