//! A scheduler that goes through the data in order.

use miles_core::plugin::{Schedule, ScheduleView, Scheduler};

/// The next prompts after those of the step before, from the start again at the end. A step takes what the data has if
/// that is less than a step's worth.
#[derive(Clone, Copy, Debug, Default)]
pub struct InOrder;

impl Scheduler for InOrder {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        if view.step >= view.steps || view.prompts == 0 {
            return Schedule::Finish;
        }
        let first = (view.step % view.prompts as u64) as usize * view.prompts_per_step;
        let count = view.prompts_per_step.min(view.prompts);
        Schedule::Step { prompts: (first..first + count).map(|place| place % view.prompts).collect() }
    }
}

miles_core::register_scheduler!("outside-in-order", |_options| Ok(Box::new(InOrder)));
