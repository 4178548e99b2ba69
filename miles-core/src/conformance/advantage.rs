//! The suite for advantage estimators.

use super::wait::together;
use super::{Failure, Report, Suite, Verdict};
use crate::plugin::Advantage;

/// The groups of the advantage suite, in order.
pub const ADVANTAGE_GROUPS: &[&str] = &["values", "threads"];

/// Runs the whole advantage suite.
#[must_use]
pub fn advantages(advantage: &dyn Advantage) -> Report {
    run(advantage, Suite::new("advantage"))
}

/// Runs one group of the advantage suite, or the one case of that name.
#[must_use]
pub fn advantage_group(advantage: &dyn Advantage, group: &str) -> Report {
    run(advantage, Suite::new("advantage").only(group))
}

fn run(advantage: &dyn Advantage, mut suite: Suite) -> Report {
    suite.case("values/one_per_reward", || one_finite_advantage_per_reward(advantage));
    suite.case("values/equal_rewards", || equal_rewards_of_a_group_are_credited_equally(advantage));
    suite.case("values/order", || a_better_reward_is_never_credited_less(advantage));
    suite.case("values/repeatable", || the_same_rewards_give_the_same_bits(advantage));
    suite.case("threads/any", || every_thread_gets_the_same_bits(advantage));
    suite.finish()
}

/// Groups as they come: none, one, all equal, spread, tiny and huge.
fn groups() -> Vec<Vec<f32>> {
    let tiny = f32::from_bits(1);
    vec![
        vec![],
        vec![0.0],
        vec![1.0],
        vec![0.0; 4],
        vec![0.3; 5],
        vec![1.0, 0.0, 0.0, 0.0],
        vec![-1.0, 0.5, 2.0, 0.5, -3.25],
        vec![0.0, tiny],
        vec![1.0, 1.0 + f32::EPSILON],
        vec![1e30, -1e30, 0.0],
        vec![-0.0, 0.0],
        (0..64).map(|index| (index % 7) as f32 - 3.0).collect(),
    ]
}

fn one_finite_advantage_per_reward(advantage: &dyn Advantage) -> Verdict {
    for rewards in groups() {
        let found = advantage.advantages(&rewards);
        let right = found.len() == rewards.len() && found.iter().all(|value| value.is_finite());
        Failure::unless(right, || format!("the rewards {rewards:?} give {found:?}"))?;
    }
    Ok(())
}

fn equal_rewards_of_a_group_are_credited_equally(advantage: &dyn Advantage) -> Verdict {
    compare(advantage, |reward, other| reward == other, |found, other| found == other, "equal")
}

fn a_better_reward_is_never_credited_less(advantage: &dyn Advantage) -> Verdict {
    compare(advantage, |reward, other| reward > other, |found, other| found >= other, "in the order of their rewards")
}

/// Every pair of rewards that is `related` has advantages that are `right`.
fn compare(
    advantage: &dyn Advantage,
    related: fn(f32, f32) -> bool,
    right: fn(f32, f32) -> bool,
    how: &str,
) -> Verdict {
    for rewards in groups() {
        let found = advantage.advantages(&rewards);
        for (&reward, &value) in rewards.iter().zip(&found) {
            for (&other, &other_value) in rewards.iter().zip(&found) {
                let holds = !related(reward, other) || right(value, other_value);
                Failure::unless(holds, || {
                    format!("rewards {reward} and {other} get {value} and {other_value}, which are not {how}")
                })?;
            }
        }
    }
    Ok(())
}

fn bits(advantage: &dyn Advantage) -> Vec<Vec<u32>> {
    let of = |rewards: Vec<f32>| advantage.advantages(&rewards).iter().map(|value| value.to_bits()).collect();
    groups().into_iter().map(of).collect()
}

fn the_same_rewards_give_the_same_bits(advantage: &dyn Advantage) -> Verdict {
    let (first, second) = (bits(advantage), bits(advantage));
    Failure::unless(first == second, || "the same groups get other advantages the second time".to_owned())
}

fn every_thread_gets_the_same_bits(advantage: &dyn Advantage) -> Verdict {
    let here = bits(advantage);
    let tasks = (0..4).map(|_| Box::new(|| bits(advantage)) as Box<dyn FnOnce() -> Vec<Vec<u32>> + Send>);
    for there in together(tasks.collect()) {
        Failure::unless(there == here, || "the same groups get other advantages on another thread".to_owned())?;
    }
    Ok(())
}
