//! The suite for schedulers.

use serde_json::Value;

use super::wait::together;
use super::{Failure, Report, Suite, Verdict};
use crate::plugin::{Schedule, ScheduleView, Scheduler};

/// The groups of the scheduler suite, in order.
pub const SCHEDULER_GROUPS: &[&str] = &["steps", "view", "state"];

/// Makes a scheduler as a run starts with it, for each case.
pub type MakeScheduler<'a> = dyn Fn() -> Box<dyn Scheduler> + 'a;

/// Runs the whole scheduler suite.
#[must_use]
pub fn schedulers(make: &MakeScheduler<'_>) -> Report {
    run(make, Suite::new("scheduler"))
}

/// Runs one group of the scheduler suite, or the one case of that name.
#[must_use]
pub fn scheduler_group(make: &MakeScheduler<'_>, group: &str) -> Report {
    run(make, Suite::new("scheduler").only(group))
}

fn run(make: &MakeScheduler<'_>, mut suite: Suite) -> Report {
    suite.case("steps/first", || the_first_step_is_scheduled(make));
    suite.case("steps/prompts", || every_step_names_prompts_that_exist_once(make));
    suite.case("steps/end", || what_has_ended_stays_ended(make));
    suite.case("view/function", || a_schedule_is_a_function_of_view_and_state(make));
    suite.case("view/threads", || every_thread_gets_the_same_schedule(make));
    suite.case("state/resume", || a_restored_scheduler_goes_on_as_before(make));
    suite.finish()
}

/// Data and steps of several shapes; one prompt, all prompts in a step, epochs with a remainder.
fn views() -> Vec<ScheduleView> {
    let shapes = [(9, 3, 10), (5, 1, 1), (4, 6, 6), (12, 2, 7), (1, 4, 1000)];
    let view = |(index, (steps, prompts_per_step, prompts)): (usize, (u64, usize, usize))| ScheduleView {
        step: 0,
        steps,
        prompts_per_step,
        prompts,
        seed: index as u64,
    };
    shapes.into_iter().enumerate().map(view).collect()
}

/// Runs the steps from `from` as a run does: one call per step, then the mean rewards. Ends where the scheduler ends.
fn schedules(scheduler: &mut dyn Scheduler, view: ScheduleView, from: u64) -> Vec<Vec<usize>> {
    let mut taken = Vec::new();
    for step in from..view.steps {
        match scheduler.next(&ScheduleView { step, ..view }) {
            Schedule::Finish => break,
            Schedule::Step { prompts } => {
                scheduler.observe(step, &mean_rewards(step, &prompts));
                taken.push(prompts);
            }
        }
    }
    taken
}

/// Rewards between 0 and 1 that depend on step and prompt alone.
fn mean_rewards(step: u64, prompts: &[usize]) -> Vec<(usize, f32)> {
    // A scheduler may name any prompt.
    let place = |prompt: usize| (step as usize).wrapping_mul(7).wrapping_add(prompt.wrapping_mul(5)) % 9;
    prompts.iter().map(|&prompt| (prompt, place(prompt) as f32 / 8.0)).collect()
}

fn the_first_step_is_scheduled(make: &MakeScheduler<'_>) -> Verdict {
    for view in views() {
        let first = make().next(&view);
        Failure::unless(matches!(first, Schedule::Step { .. }), || format!("ends before the first step of {view:?}"))?;
    }
    Ok(())
}

/// At least one prompt, at most as many as the view allows, each in the data, none twice.
fn every_step_names_prompts_that_exist_once(make: &MakeScheduler<'_>) -> Verdict {
    for view in views() {
        for (step, prompts) in schedules(&mut *make(), view, 0).into_iter().enumerate() {
            let bad = |why: String| Err(Failure::new(format!("{why}, in {view:?}")).at(format!("step {step}")));
            if prompts.is_empty() || prompts.len() > view.prompts_per_step {
                return bad(format!("names {} prompts, of 1 to {}", prompts.len(), view.prompts_per_step));
            }
            for (place, &prompt) in prompts.iter().enumerate() {
                if prompt >= view.prompts {
                    return bad(format!("names prompt {prompt} of {}", view.prompts));
                }
                if prompts[..place].contains(&prompt) {
                    return bad(format!("names prompt {prompt} twice"));
                }
            }
        }
    }
    Ok(())
}

/// A scheduler that says `Finish` says so again, and past the last step no prompt outside the data is named.
fn what_has_ended_stays_ended(make: &MakeScheduler<'_>) -> Verdict {
    for view in views() {
        let mut scheduler = make();
        let taken = schedules(&mut *scheduler, view, 0);
        let mut ended = (taken.len() as u64) < view.steps;
        for step in taken.len() as u64..view.steps + 3 {
            match scheduler.next(&ScheduleView { step, ..view }) {
                Schedule::Finish => ended = true,
                Schedule::Step { .. } if ended => {
                    return Err(Failure::new(format!("schedules step {step} after it ended, in {view:?}")));
                }
                Schedule::Step { prompts } => {
                    let inside = prompts.iter().all(|&prompt| prompt < view.prompts);
                    Failure::unless(inside, || format!("step {step} names {prompts:?} of {}", view.prompts))?;
                }
            }
        }
    }
    Ok(())
}

/// The same state and view give the same schedule, in another instance and whatever ran before it elsewhere.
fn a_schedule_is_a_function_of_view_and_state(make: &MakeScheduler<'_>) -> Verdict {
    for view in views() {
        let first = schedules(&mut *make(), view, 0);
        let other = ScheduleView { seed: view.seed + 1, ..view };
        schedules(&mut *make(), other, 0);
        let second = schedules(&mut *make(), view, 0);
        same(&second, &first, 0, "another instance", &view)?;
        // Asked again for a step from the state before it, the answer is the same: no step is lost or taken twice.
        let mut scheduler = make();
        for (step, prompts) in first.iter().enumerate() {
            let at = ScheduleView { step: step as u64, ..view };
            let mut twin = make();
            twin.restore(&through_text(&scheduler.state())?);
            for (who, scheduler) in [("the scheduler", &mut scheduler), ("one with its state", &mut twin)] {
                let found = scheduler.next(&at);
                let right = found == Schedule::Step { prompts: prompts.clone() };
                Failure::unless(right, || format!("step {step}: {who} gives {found:?}, not {prompts:?}, in {view:?}"))?;
            }
            scheduler.observe(at.step, &mean_rewards(at.step, prompts));
        }
    }
    Ok(())
}

fn every_thread_gets_the_same_schedule(make: &MakeScheduler<'_>) -> Verdict {
    for view in views() {
        let here = schedules(&mut *make(), view, 0);
        let mut moved = [make(), make()];
        let tasks = moved.iter_mut().map(|scheduler| {
            Box::new(move || schedules(&mut **scheduler, view, 0)) as Box<dyn FnOnce() -> Vec<Vec<usize>> + Send>
        });
        for there in together(tasks.collect()) {
            same(&there, &here, 0, "another thread", &view)?;
        }
    }
    Ok(())
}

/// O19: stopped after any step, saved, restored and run on, as if it had never stopped.
fn a_restored_scheduler_goes_on_as_before(make: &MakeScheduler<'_>) -> Verdict {
    for view in views() {
        let whole = schedules(&mut *make(), view, 0);
        for stop in 0..=whole.len() {
            let mut stopped = make();
            for (step, prompts) in whole[..stop].iter().enumerate() {
                let at = ScheduleView { step: step as u64, ..view };
                stopped.next(&at);
                stopped.observe(at.step, &mean_rewards(at.step, prompts));
            }
            let mut resumed = make();
            resumed.restore(&through_text(&stopped.state())?);
            let rest = schedules(&mut *resumed, view, stop as u64);
            same(&rest, &whole[stop..], stop, "a restored scheduler", &view)?;
        }
    }
    Ok(())
}

/// A state as a checkpoint keeps it.
fn through_text(state: &Value) -> Result<Value, Failure> {
    Ok(serde_json::from_str(&serde_json::to_string(state)?)?)
}

fn same(found: &[Vec<usize>], expected: &[Vec<usize>], from: usize, who: &str, view: &ScheduleView) -> Verdict {
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let step = from + place;
        Failure::unless(found == expected, || {
            format!("step {step}: {who} gives {found:?}, not {expected:?}, in {view:?}")
        })?;
    }
    let (found, expected) = (from + found.len(), from + expected.len());
    Failure::unless(found == expected, || format!("{who} ends after {found} steps, not {expected}, in {view:?}"))
}
