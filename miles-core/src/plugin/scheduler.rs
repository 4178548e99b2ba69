//! Which prompts are sampled when.

use serde_json::Value;

/// Decides what each step samples.
pub trait Scheduler: Send {
    /// The next step's work. Must be a function of the view, the seed and [`Scheduler::state`] alone.
    fn next(&mut self, view: &ScheduleView) -> Schedule;

    /// Told the mean reward of each prompt that the step sampled (prompt index, mean reward).
    fn observe(&mut self, _step: u64, _prompt_rewards: &[(usize, f32)]) {}

    /// State to save in a checkpoint; `Null` when [`Scheduler::next`] depends on the view alone.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Takes back what [`Scheduler::state`] gave.
    fn restore(&mut self, _state: &Value) {}
}

/// What a scheduler sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleView {
    /// Step about to run, from 0.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Prompts per step in the config.
    pub prompts_per_step: usize,
    /// Prompts in the training data.
    pub prompts: usize,
    /// Seed of the run.
    pub seed: u64,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Sample these prompts (indices into the training data), train, publish.
    Step {
        /// Prompt indices.
        prompts: Vec<usize>,
    },
    /// End the run here.
    Finish,
}
