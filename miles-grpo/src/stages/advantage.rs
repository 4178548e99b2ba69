//! Crediting: rewards of a group become advantages of its completions.

use miles_core::plugin::Advantage;

use super::{Rewarded, StageError};

/// Judged completions with their advantages.
#[derive(Clone, Debug, PartialEq)]
pub struct Credited {
    rewarded: Rewarded,
    advantages: Vec<Vec<Option<f32>>>,
}

impl Credited {
    /// What was credited.
    #[must_use]
    pub fn rewarded(&self) -> &Rewarded {
        &self.rewarded
    }

    /// One advantage per completion, `[group][completion]`; `None` for completions without a reward.
    #[must_use]
    pub fn advantages(&self) -> &[Vec<Option<f32>>] {
        &self.advantages
    }
}

/// Credits each group by itself; completions without a reward take no part.
///
/// # Errors
/// [`StageError::BadAdvantages`] when the estimator does not give one finite value per reward.
pub fn credit(advantage: &dyn Advantage, rewarded: Rewarded) -> Result<Credited, StageError> {
    let mut advantages = Vec::with_capacity(rewarded.outcomes().len());
    for (group, outcomes) in rewarded.sampled().groups().iter().zip(rewarded.outcomes()) {
        let rewards: Vec<f32> = outcomes.iter().filter_map(|outcome| outcome.reward()).collect();
        let credits = advantage.advantages(&rewards);
        if credits.len() != rewards.len() || !credits.iter().all(|credit| credit.is_finite()) {
            return Err(StageError::BadAdvantages { prompt: group.key, rewards, advantages: credits });
        }
        let mut credits = credits.into_iter();
        advantages.push(outcomes.iter().map(|outcome| outcome.reward().and_then(|_| credits.next())).collect());
    }
    Ok(Credited { rewarded, advantages })
}
