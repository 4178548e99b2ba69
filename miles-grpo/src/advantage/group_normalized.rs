//! `group-normalized`: the advantage of GRPO (Shao et al., 2024).
//!
//! ```text
//! a_i = (r_i - mean(r)) / (std(r) + eps)
//! ```
//!
//! `std` is the population deviation (divided by n, not n - 1): the group is all there is. A group whose rewards are
//! all equal says nothing about which completion is better and gets zeros.

use miles_core::plugin::Advantage;
use miles_core::register_advantage;
use serde::Deserialize;

use super::mean;
use crate::options;

/// Rewards, centered on the group's mean and divided by its deviation.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupNormalized {
    /// Added to the deviation (default 1e-4).
    pub eps: f64,
}

impl Default for GroupNormalized {
    fn default() -> Self {
        GroupNormalized { eps: 1e-4 }
    }
}

impl Advantage for GroupNormalized {
    fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
        let mean = mean(rewards);
        let variance = rewards.iter().map(|&reward| (f64::from(reward) - mean).powi(2)).sum::<f64>();
        let deviation = (variance / rewards.len() as f64).sqrt();
        if deviation == 0.0 {
            return vec![0.0; rewards.len()];
        }
        rewards.iter().map(|&reward| ((f64::from(reward) - mean) / (deviation + self.eps)) as f32).collect()
    }
}

register_advantage!("group-normalized", |table| {
    let made: GroupNormalized = options::read("advantage", "group-normalized", table)?;
    if !(0.0..=1e6).contains(&made.eps) {
        let why = format!("eps = {:?} is not from 0 to 1e6", made.eps);
        return Err(options::bad("advantage", "group-normalized", why).into());
    }
    Ok(Box::new(made))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_are_centered_and_divided_by_the_population_deviation() {
        // mean 0.25, population deviation sqrt(3)/4
        let exact = GroupNormalized { eps: 0.0 };
        let deviation = 3f64.sqrt() / 4.0;
        let expected = [0.75 / deviation, -0.25 / deviation, -0.25 / deviation, -0.25 / deviation].map(|a| a as f32);
        assert_eq!(exact.advantages(&[1.0, 0.0, 0.0, 0.0]), expected);
    }

    #[test]
    fn a_group_of_equal_rewards_gets_zeros() {
        for eps in [0.0, 1e-4] {
            assert_eq!(GroupNormalized { eps }.advantages(&[0.3; 5]), [0.0; 5]);
            assert_eq!(GroupNormalized { eps }.advantages(&[1.0]), [0.0]);
            assert_eq!(GroupNormalized { eps }.advantages(&[]), [0.0; 0]);
        }
    }

    #[test]
    fn eps_keeps_tiny_differences_from_blowing_up() {
        let advantages = GroupNormalized { eps: 1.0 }.advantages(&[0.0, 1e-6]);
        assert!(advantages.iter().all(|a| a.abs() < 1e-6), "{advantages:?}");
    }
}
