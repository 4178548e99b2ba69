//! A scheduler with one defect.

use serde_json::Value;

use super::defects;
use crate::plugin::{Schedule, ScheduleView, Scheduler};

defects! {
    /// What is wrong with a scheduler.
    SchedulerDefect {
        /// Counts its own calls in place of reading the view's step: a step asked for twice is two steps.
        CountsCalls => "view/function",
        /// Repeats the prompts of its last call when it is asked for an odd step: a resumed run has none to repeat.
        RepeatsTheLast => "state/resume",
        /// Ends before the first step.
        NeverStarts => "steps/first",
        /// Goes on after it has ended.
        GoesOn => "steps/end",
        /// Names a prompt behind the last one.
        OutsideTheData => "steps/prompts",
        /// Names the first prompt of a step again.
        NamesTwice => "steps/prompts",
        /// Names no prompt in a step.
        NamesNone => "steps/prompts",
        /// Learns from rewards and does not save what it learned.
        ForgetsItsState => "state/resume",
    }
}

/// A good scheduler with one defect.
pub struct BrokenScheduler {
    inner: Box<dyn Scheduler>,
    defect: SchedulerDefect,
    calls: u64,
    rewards: usize,
    last: Option<Vec<usize>>,
}

impl BrokenScheduler {
    /// Breaks a scheduler.
    #[must_use]
    pub fn new(inner: Box<dyn Scheduler>, defect: SchedulerDefect) -> Self {
        BrokenScheduler { inner, defect, calls: 0, rewards: 0, last: None }
    }

    fn broken(&mut self, view: &ScheduleView, mut prompts: Vec<usize>) -> Schedule {
        match self.defect {
            SchedulerDefect::NeverStarts => return Schedule::Finish,
            SchedulerDefect::GoesOn if view.step % 2 == 1 => return Schedule::Finish,
            SchedulerDefect::RepeatsTheLast if view.step % 2 == 1 => {
                if let Some(last) = &self.last {
                    prompts.clone_from(last);
                }
            }
            SchedulerDefect::OutsideTheData => prompts[0] = view.prompts,
            SchedulerDefect::NamesTwice => {
                if let Some(second) = prompts.get_mut(1..).and_then(<[usize]>::first_mut) {
                    *second = view.prompts - 1;
                }
                prompts[0] = view.prompts - 1;
            }
            SchedulerDefect::NamesNone => prompts.clear(),
            SchedulerDefect::ForgetsItsState => {
                prompts.iter_mut().for_each(|prompt| *prompt = (*prompt + self.rewards) % view.prompts);
            }
            _ => {}
        }
        self.last = Some(prompts.clone());
        Schedule::Step { prompts }
    }
}

impl Scheduler for BrokenScheduler {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        let step = if self.defect == SchedulerDefect::CountsCalls { self.calls } else { view.step };
        self.calls += 1;
        match self.inner.next(&ScheduleView { step, ..*view }) {
            // Only a scheduler that ended in the middle of a run can go on.
            Schedule::Finish => Schedule::Finish,
            Schedule::Step { prompts } => self.broken(view, prompts),
        }
    }

    fn observe(&mut self, step: u64, prompt_rewards: &[(usize, f32)]) {
        self.rewards += prompt_rewards.len();
        self.inner.observe(step, prompt_rewards);
    }

    fn state(&self) -> Value {
        self.inner.state()
    }

    fn restore(&mut self, state: &Value) {
        self.inner.restore(state);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::conformance::{Outcome, SCHEDULER_GROUPS, schedulers};
    use crate::random::{Stream, permutation};

    /// The first prompts of a permutation of its own for every step.
    struct Shuffled;

    impl Scheduler for Shuffled {
        fn next(&mut self, view: &ScheduleView) -> Schedule {
            if view.step >= view.steps {
                return Schedule::Finish;
            }
            let mut prompts = permutation(view.seed, Stream::PromptOrder, view.step, view.prompts);
            prompts.truncate(view.prompts_per_step);
            Schedule::Step { prompts }
        }
    }

    #[test]
    fn a_good_scheduler_passes() {
        let report = schedulers(&|| Box::new(Shuffled));
        report.require().unwrap();
        let mut groups: Vec<&str> = report.cases.iter().map(|case| case.group()).collect();
        groups.dedup();
        assert_eq!(groups, SCHEDULER_GROUPS);
    }

    #[test]
    fn every_broken_scheduler_is_caught_by_the_case_of_its_defect() {
        for &defect in SchedulerDefect::ALL {
            let report = schedulers(&|| Box::new(BrokenScheduler::new(Box::new(Shuffled), defect)));
            let outcome = report.outcome(defect.caught_by());
            assert!(matches!(outcome, Some(Outcome::Failed { .. })), "{defect:?}\n{report}");
        }
    }
}
