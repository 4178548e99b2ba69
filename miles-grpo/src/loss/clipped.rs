//! `clipped`: the clipped surrogate of PPO (Schulman et al., 2017) as GRPO uses it, with separate lower and upper
//! bounds and an optional penalty on the divergence from the reference policy.
//!
//! ```text
//! ratio = exp(trainer logprob - rollout logprob)
//! loss  = sum over tokens of weight * (-min(ratio A, clip(ratio, 1 - eps_low, 1 + eps_high) A) + kl_coefficient KL)
//! ```
//!
//! `weight` is the [`Denominator`]'s. A token counts as clipped when the clip takes its gradient away: `A > 0` and
//! `ratio > 1 + eps_high`, or `A < 0` and `ratio < 1 - eps_low`.

use miles_core::plugin::{BatchTotals, Loss, LossInput, LossTerms};
use miles_core::register_loss;
use serde::Deserialize;

use super::Denominator;
use crate::kl::KlEstimator;
use crate::options;

/// The clipped surrogate.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clipped {
    /// How far below 1 a ratio may pull (default 0.2).
    pub eps_low: f64,
    /// How far above 1 a ratio may push (default 0.2).
    pub eps_high: f64,
    /// Factor on the divergence from the reference policy (default 0: measured, not penalized).
    pub kl_coefficient: f64,
    /// Estimator of that divergence (default `k3`).
    pub kl_estimator: KlEstimator,
    /// What the sum over tokens is divided by (default `token-mean`).
    pub denominator: Denominator,
}

impl Default for Clipped {
    fn default() -> Self {
        Clipped {
            eps_low: 0.2,
            eps_high: 0.2,
            kl_coefficient: 0.0,
            kl_estimator: KlEstimator::K3,
            denominator: Denominator::TokenMean,
        }
    }
}

impl Loss for Clipped {
    /// With a penalty and no reference logprobs the loss and the gradient are NaN, which every trainer refuses.
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        let weight = self.denominator.token_weight(input.logprobs.len(), totals);
        let advantage = f64::from(input.advantage);
        let mut terms = LossTerms::default();
        for (token, slot) in gradient.iter_mut().enumerate() {
            let logprob = input.logprobs[token];
            let ratio = libm::exp(f64::from(logprob) - f64::from(input.rollout_logprobs[token]));
            let bounded = ratio.clamp(1.0 - self.eps_low, 1.0 + self.eps_high);
            let clipped = bounded * advantage < ratio * advantage;
            let (surrogate, slope) =
                if clipped { (bounded * advantage, 0.0) } else { (ratio * advantage, ratio * advantage) };
            let (mut loss, mut derivative) = (-surrogate, -slope);
            if self.kl_coefficient != 0.0 {
                let reference = input.reference_logprobs.map_or(f32::NAN, |logprobs| logprobs[token]);
                loss += self.kl_coefficient * self.kl_estimator.value(logprob, reference);
                derivative += self.kl_coefficient * self.kl_estimator.gradient(logprob, reference);
            }
            terms.loss += weight * loss;
            terms.clipped_tokens += usize::from(clipped);
            *slot = (weight * derivative) as f32;
        }
        terms
    }
}

register_loss!("clipped", |table| {
    let made: Clipped = options::read("loss", "clipped", table)?;
    let ranges = [
        ("eps_low", made.eps_low, made.eps_low > 0.0 && made.eps_low < 1.0, "above 0 and below 1"),
        ("eps_high", made.eps_high, made.eps_high > 0.0 && made.eps_high <= 1e6, "above 0 and at most 1e6"),
        ("kl_coefficient", made.kl_coefficient, (0.0..=1e6).contains(&made.kl_coefficient), "from 0 to 1e6"),
    ];
    match ranges.into_iter().find(|(_, _, fits, _)| !fits) {
        Some((key, value, _, range)) => {
            Err(options::bad("loss", "clipped", format!("{key} = {value:?} is not {range}")).into())
        }
        None => Ok(Box::new(made)),
    }
});
