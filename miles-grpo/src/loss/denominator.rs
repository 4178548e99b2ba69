//! What a sum over tokens is divided by. Always a count over the *whole* batch of one optimizer step, so that a
//! completion's share does not depend on how the batch is cut into micro-batches.

use miles_core::plugin::BatchTotals;
use serde::{Deserialize, Serialize};

/// Weight of one token in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Denominator {
    /// Every token of the batch weighs the same: `1 / tokens`.
    #[default]
    TokenMean,
    /// Every completion weighs the same, and its tokens share that: `1 / (samples * tokens of the completion)`.
    SequenceMean,
}

impl Denominator {
    /// Weight of each of the `completion_tokens` tokens of one completion.
    #[must_use]
    pub fn token_weight(self, completion_tokens: usize, totals: &BatchTotals) -> f64 {
        match self {
            Denominator::TokenMean => 1.0 / totals.tokens as f64,
            Denominator::SequenceMean => 1.0 / (totals.samples as f64 * completion_tokens as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_batch_sum_to_one() {
        let lengths = [1usize, 3, 8];
        let totals = BatchTotals { samples: 3, tokens: 12 };
        for denominator in [Denominator::TokenMean, Denominator::SequenceMean] {
            let sum: f64 = lengths.iter().map(|&n| n as f64 * denominator.token_weight(n, &totals)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{denominator:?}: {sum}");
        }
        assert_eq!(Denominator::TokenMean.token_weight(3, &totals), 1.0 / 12.0);
        assert_eq!(Denominator::SequenceMean.token_weight(8, &totals), 1.0 / 24.0);
    }
}
