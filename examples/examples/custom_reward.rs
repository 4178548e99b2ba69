//! A reward of your own: passed as a value, and again by its registered name from a config.
//!
//! ```console
//! cargo run --release --example custom_reward
//! ```
//!
//! Runs the quickstart's model for a few steps each way and shows that both runs end in the same policy.

use std::process::ExitCode;

use async_trait::async_trait;
use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_core::register_reward;
use miles_core::registry::RegistryError;
use miles_examples::training::{BothWaysArgs, both_ways};
use serde::Deserialize;

/// The share of the answer's characters that the completion has in the right place, less a cost per extra character.
///
/// A graded reward: half an answer earns half, so that groups without one right answer still say something.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DigitMatch {
    /// Cost of each character beyond the answer's length.
    extra_cost: f32,
}

impl Default for DigitMatch {
    fn default() -> Self {
        DigitMatch { extra_cost: 0.25 }
    }
}

#[async_trait]
impl Reward for DigitMatch {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let answer = input.answer.ok_or(RewardError::MissingField { field: "answer" })?;
        let completion = input.completion.trim();
        let same = answer.chars().zip(completion.chars()).filter(|(a, b)| a == b).count();
        let extra = completion.chars().count().saturating_sub(answer.chars().count());
        Ok(same as f32 / answer.chars().count().max(1) as f32 - self.extra_cost * extra as f32)
    }
}

register_reward!("digit-match", |options| {
    let reward = if options.is_null() { Ok(DigitMatch::default()) } else { DigitMatch::deserialize(options) };
    let reward = reward.map_err(|error| RegistryError::BadOptions {
        kind: "reward",
        name: "digit-match".to_owned(),
        why: error.to_string(),
    })?;
    Ok(Box::new(reward))
});

/// Trains with a user's own reward, by value and by name.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    both_ways: BothWaysArgs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let by_name = ["reward.name=digit-match", "reward.options.extra_cost=0.5"];
    miles_examples::exit(both_ways(
        &arguments.both_ways,
        &[],
        |builder| builder.reward(DigitMatch { extra_cost: 0.5 }),
        &by_name,
    ))
}
