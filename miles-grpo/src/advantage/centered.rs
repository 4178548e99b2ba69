//! `centered`: rewards minus the group's mean, without the division by the deviation.
//!
//! ```text
//! a_i = r_i - mean(r)
//! ```
//!
//! The division weighs prompts by how rarely they are solved; leaving it out removes that bias (Liu et al., 2025).

use miles_core::plugin::Advantage;
use miles_core::register_advantage;

use super::mean;
use crate::options::{self, NoOptions};

/// Rewards, centered on the group's mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Centered;

impl Advantage for Centered {
    fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
        let mean = mean(rewards);
        rewards.iter().map(|&reward| (f64::from(reward) - mean) as f32).collect()
    }
}

register_advantage!("centered", |table| {
    options::read::<NoOptions>("advantage", "centered", table)?;
    Ok(Box::new(Centered))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_sum_to_zero_and_keep_differences() {
        assert_eq!(Centered.advantages(&[1.0, 0.0, 0.0, 0.0]), [0.75, -0.25, -0.25, -0.25]);
        assert_eq!(Centered.advantages(&[0.5; 3]), [0.0; 3]);
    }
}
