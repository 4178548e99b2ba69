//! A reward of your own: passed as a value, and again by its registered name from a config.
//!
//! ```console
//! cargo run --release --example custom_reward
//! ```
//!
//! Runs the quickstart's model for a few steps each way and shows that both runs end in the same policy.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use async_trait::async_trait;
use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_core::register_reward;
use miles_core::registry::RegistryError;
use miles_examples::training::{finish, quickstart};
use miles_grpo::{Plan, Run};
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
    /// Steps of each run
    #[arg(long, default_value_t = 5)]
    steps: u64,
    /// Output directory; each run gets a folder in it
    #[arg(long, default_value = "runs/custom-reward")]
    out: PathBuf,
}

fn main() -> ExitCode {
    miles_examples::exit(compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let by_value = finish(Run::builder(arguments.plan("by-value", &[])?).reward(DigitMatch { extra_cost: 0.5 }))?;
    let by_name = finish(Run::builder(
        arguments.plan("by-name", &["reward.name=digit-match", "reward.options.extra_cost=0.5"])?,
    ))?;
    println!("by value: {}", by_value.summary);
    println!("by name:  {}", by_name.summary);
    if by_value.summary.policy == by_name.summary.policy {
        Ok(())
    } else {
        Err("the two runs ended in different policies".into())
    }
}

impl Arguments {
    /// The quickstart, shortened, in a folder of its own.
    fn plan(&self, folder: &str, overrides: &[&str]) -> Result<Plan, Box<dyn Error>> {
        let mut config = quickstart(&["run.existing=overwrite".to_owned(), "eval.every=0".to_owned()])?;
        config.run.steps = self.steps;
        config.run.out = self.out.join(folder);
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Ok(Plan::new(&config.with_overrides(&overrides)?)?)
    }
}
