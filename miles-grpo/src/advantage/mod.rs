//! From the rewards of a group to one advantage per completion.

mod centered;
mod group_normalized;

pub use centered::Centered;
pub use group_normalized::GroupNormalized;

/// Mean of a group's rewards.
fn mean(rewards: &[f32]) -> f64 {
    rewards.iter().map(|&reward| f64::from(reward)).sum::<f64>() / rewards.len() as f64
}
