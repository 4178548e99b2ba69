//! `synchronous`: sample, train, publish, and only then sample again.
//!
//! The prompts of a step are a function of the seed and the step alone. Each pass over the data (epoch) is one
//! permutation, cut into steps of `prompts_per_step`; a remainder that does not fill a step is left out of that epoch,
//! so that no step holds a prompt twice. Another permutation leaves out other prompts.

use miles_core::plugin::{Schedule, ScheduleView, Scheduler};
use miles_core::random::{self, Stream};
use miles_core::register_scheduler;

use crate::options::{self, NoOptions};

/// Shuffled epochs, one policy version per step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synchronous;

impl Scheduler for Synchronous {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        let steps_per_epoch = (view.prompts / view.prompts_per_step.max(1)) as u64;
        if view.step >= view.steps || steps_per_epoch == 0 {
            return Schedule::Finish;
        }
        let (epoch, place) = (view.step / steps_per_epoch, view.step % steps_per_epoch);
        let order = random::permutation(view.seed, Stream::PromptOrder, epoch, view.prompts);
        let first = place as usize * view.prompts_per_step;
        Schedule::Step { prompts: order[first..first + view.prompts_per_step].to_vec() }
    }
}

register_scheduler!("synchronous", |table| {
    options::read::<NoOptions>("scheduler", "synchronous", table)?;
    Ok(Box::new(Synchronous))
});

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(step: u64, seed: u64) -> Vec<usize> {
        let view = ScheduleView { step, steps: 100, prompts_per_step: 4, prompts: 11, seed };
        match Synchronous.next(&view) {
            Schedule::Step { prompts } => prompts,
            Schedule::Finish => panic!("step {step} did not run"),
        }
    }

    #[test]
    fn an_epoch_holds_no_prompt_twice_and_epochs_differ() {
        let epoch = |number: u64| [prompts(2 * number, 5), prompts(2 * number + 1, 5)].concat();
        for number in 0..20 {
            let mut seen = epoch(number);
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 8);
        }
        assert_ne!(epoch(0), epoch(1));
        let mut ever: Vec<usize> = (0..20).flat_map(epoch).collect();
        ever.sort_unstable();
        ever.dedup();
        assert_eq!(ever, (0..11).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_is_a_function_of_seed_and_step() {
        assert_eq!(prompts(7, 5), prompts(7, 5));
        assert_ne!(prompts(7, 5), prompts(7, 6));
    }

    #[test]
    fn the_run_ends_after_its_steps() {
        let view = ScheduleView { step: 3, steps: 3, prompts_per_step: 1, prompts: 2, seed: 0 };
        assert_eq!(Synchronous.next(&view), Schedule::Finish);
    }
}
