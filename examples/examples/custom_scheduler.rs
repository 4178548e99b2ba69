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
use std::process::ExitCode;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_core::plugin::{Schedule, ScheduleView, Scheduler};
use miles_core::random::{Stream, permutation};
use miles_core::register_scheduler;
use miles_examples::training::{BothWaysArgs, both_ways};
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
    #[command(flatten)]
    both_ways: BothWaysArgs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let by_name = ["scheduler.name=frontier"];
    miles_examples::exit(both_ways(
        &arguments.both_ways,
        &[],
        |builder| builder.scheduler(Frontier::default()),
        &by_name,
    ))
}
