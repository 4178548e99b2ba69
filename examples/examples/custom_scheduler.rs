//! A scheduler of your own: passed as a value, and again by its registered name from a config.
//!
//! ```console
//! cargo run --release --example custom_scheduler
//! ```
//!
//! The scheduler prefers prompts whose completions sometimes succeed: a group that always fails or always succeeds has
//! no advantage to learn from. Runs the quickstart's model for a few steps each way and shows that both runs end in
//! the same policy.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_core::plugin::{Schedule, ScheduleView, Scheduler};
use miles_core::random::{Stream, permutation};
use miles_core::register_scheduler;
use miles_examples::training::{finish, quickstart};
use miles_grpo::{Plan, Run};
use serde_json::{Value, json};

/// Takes prompts in a shuffled order, those with the most uneven known rewards first.
#[derive(Clone, Debug, Default)]
struct Frontier {
    /// Prompt index to its mean reward when it was last sampled.
    seen: BTreeMap<usize, f32>,
}

impl Frontier {
    /// How much a prompt promises: 1 at a mean reward of one half, 0 at none or all, and in between if unknown.
    fn promise(&self, prompt: usize) -> f32 {
        self.seen.get(&prompt).map_or(0.6, |reward| 4.0 * reward * (1.0 - reward))
    }
}

impl Scheduler for Frontier {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        let mut prompts = permutation(view.seed, Stream::PromptOrder, view.step, view.prompts);
        prompts.sort_by(|&a, &b| self.promise(b).total_cmp(&self.promise(a)));
        prompts.truncate(view.prompts_per_step);
        Schedule::Step { prompts }
    }

    fn observe(&mut self, _step: u64, prompt_rewards: &[(usize, f32)]) {
        self.seen.extend(prompt_rewards.iter().copied());
    }

    // What a checkpoint must hold, so that a resumed run schedules as an uninterrupted one.
    fn state(&self) -> Value {
        json!(self.seen)
    }

    fn restore(&mut self, state: &Value) {
        self.seen = serde_json::from_value(state.clone()).unwrap_or_default();
    }
}

register_scheduler!("frontier", |_options| Ok(Box::new(Frontier::default())));

/// Trains with a user's own scheduler, by value and by name.
#[derive(Parser)]
struct Arguments {
    /// Steps of each run
    #[arg(long, default_value_t = 5)]
    steps: u64,
    /// Output directory; each run gets a folder in it
    #[arg(long, default_value = "runs/custom-scheduler")]
    out: PathBuf,
}

fn main() -> ExitCode {
    miles_examples::exit(compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let by_value = finish(Run::builder(arguments.plan("by-value", &[])?).scheduler(Frontier::default()))?;
    let by_name = finish(Run::builder(arguments.plan("by-name", &["scheduler.name=frontier"])?))?;
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
