//! Watching a run.

use serde_json::{Map, Value};

use crate::policy::PolicyStamp;

/// Watches a run. It cannot change it; an error ends the run after the step is saved.
pub trait Observer: Send {
    /// One event, in order.
    ///
    /// # Errors
    /// If the observer cannot go on (for example its file cannot be written).
    fn observe(&mut self, event: &Event<'_>) -> crate::Result<()>;
}

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The run starts (or goes on) at a step.
    Started {
        /// First step that will run.
        step: u64,
        /// Steps of the whole run.
        steps: u64,
        /// Policy that is live.
        stamp: PolicyStamp,
    },
    /// A step ended.
    Step(&'a StepRecord),
    /// The run ended, complete or interrupted.
    Finished {
        /// Steps done in all.
        steps: u64,
        /// Whether it was interrupted.
        interrupted: bool,
        /// Last policy.
        stamp: PolicyStamp,
    },
}

/// The metrics of one step, under their names in `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// Step, from 0.
    pub step: u64,
    /// Metric name to value.
    pub values: Map<String, Value>,
}

impl StepRecord {
    /// A metric as a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        self.values.get(key).and_then(Value::as_f64)
    }
}
