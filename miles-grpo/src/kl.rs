//! Estimators of the divergence between the policy and a reference, from logprobs of sampled tokens (Schulman, 2020).
//!
//! With `d = reference logprob - policy logprob` of one token drawn from the policy:
//!
//! | name | value | gradient on the policy logprob | |
//! |---|---|---|---|
//! | `k1` | `-d` | `1` | unbiased; single tokens can be negative |
//! | `k2` | `d^2 / 2` | `-d` | biased, low variance, the usual choice as a penalty |
//! | `k3` | `exp(d) - d - 1` | `1 - exp(d)` | unbiased and never negative |

use serde::{Deserialize, Serialize};

/// Which estimator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KlEstimator {
    /// `-d`
    K1,
    /// `d^2 / 2`
    K2,
    /// `exp(d) - d - 1`
    K3,
}

impl KlEstimator {
    /// Estimate from one token.
    #[must_use]
    pub fn value(self, logprob: f32, reference_logprob: f32) -> f64 {
        let d = f64::from(reference_logprob) - f64::from(logprob);
        match self {
            KlEstimator::K1 => -d,
            KlEstimator::K2 => 0.5 * d * d,
            KlEstimator::K3 => libm::expm1(d) - d,
        }
    }

    /// Derivative of [`KlEstimator::value`] by `logprob`.
    #[must_use]
    pub fn gradient(self, logprob: f32, reference_logprob: f32) -> f64 {
        let d = f64::from(reference_logprob) - f64::from(logprob);
        match self {
            KlEstimator::K1 => 1.0,
            KlEstimator::K2 => -d,
            KlEstimator::K3 => -libm::expm1(d),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [KlEstimator; 3] = [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3];

    #[test]
    fn equal_logprobs_give_exactly_zero() {
        for estimator in ALL {
            assert_eq!(estimator.value(-1.25, -1.25), 0.0);
        }
    }

    #[test]
    fn k3_is_never_negative() {
        for d in [-3.0f32, -1e-3, -1e-7, 1e-7, 1e-3, 3.0] {
            assert!(KlEstimator::K3.value(-4.0 - d, -4.0) >= 0.0, "d = {d}");
        }
    }

    #[test]
    fn gradients_are_the_derivatives() {
        // Logprobs with few bits, so that +-h is exact in f32.
        let h = 2f32.powi(-8);
        for estimator in ALL {
            for logprob in [-0.5f32, -1.5, -3.25] {
                let reference = -1.75;
                let rise = estimator.value(logprob + h, reference) - estimator.value(logprob - h, reference);
                let numeric = rise / f64::from(2.0 * h);
                let exact = estimator.gradient(logprob, reference);
                assert!((numeric - exact).abs() < 1e-4 * exact.abs().max(1.0), "{estimator:?}: {numeric} {exact}");
            }
        }
    }
}
