//! From rewards to advantages.

/// Turns the rewards of one group into one advantage per completion.
pub trait Advantage: Send + Sync {
    /// One advantage per reward, in order.
    fn advantages(&self, rewards: &[f32]) -> Vec<f32>;
}
