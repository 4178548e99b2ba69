//! `cross-entropy`: supervised fine-tuning. Raises the logprob of every completion token as given; advantages, rollout
//! logprobs and the reference play no part.
//!
//! ```text
//! loss = -sum over tokens of weight * trainer logprob
//! ```

use miles_core::plugin::{BatchTotals, Loss, LossInput, LossTerms};
use miles_core::register_loss;
use serde::Deserialize;

use super::Denominator;
use crate::options;

/// Negative log-likelihood of the completion tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrossEntropy {
    /// What the sum over tokens is divided by (default `token-mean`).
    pub denominator: Denominator,
}

impl Loss for CrossEntropy {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        let weight = self.denominator.token_weight(input.logprobs.len(), totals);
        gradient.fill(-weight as f32);
        let loss = input.logprobs.iter().map(|&logprob| -weight * f64::from(logprob)).sum();
        LossTerms { loss, clipped_tokens: 0 }
    }
}

register_loss!("cross-entropy", |table| {
    let made: CrossEntropy = options::read("loss", "cross-entropy", table)?;
    Ok(Box::new(made))
});
