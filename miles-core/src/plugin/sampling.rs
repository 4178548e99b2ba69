//! How tokens are drawn, and the ranges of the parameters: one set, for configs and for engines.

use serde::{Deserialize, Serialize};

use super::RolloutError;

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits; 0 takes the largest logit.
    pub temperature: f32,
    /// Smallest set of tokens whose probability reaches this (1: all).
    pub top_p: f32,
    /// The k most likely tokens (0: all).
    pub top_k: usize,
    /// Tokens at least this fraction as likely as the likeliest (0: all).
    pub min_p: f32,
    /// Longest completion, in tokens.
    pub max_new_tokens: usize,
    /// Ids that end a completion; the id itself is part of it.
    pub eos_token_ids: Vec<u32>,
}

impl Sampling {
    /// Refuses parameters outside their ranges.
    ///
    /// # Errors
    /// [`RolloutError::BadSampling`] names the first such parameter.
    pub fn check(&self) -> Result<(), RolloutError> {
        let parameters = [
            ("temperature", self.temperature, SamplingRange::TEMPERATURE),
            ("top_p", self.top_p, SamplingRange::TOP_P),
            ("min_p", self.min_p, SamplingRange::MIN_P),
        ];
        for (key, value, range) in parameters {
            let value = f64::from(value);
            if !range.contains(value) {
                return Err(RolloutError::BadSampling { key, value, range: range.words });
            }
        }
        match self.max_new_tokens {
            0 => Err(RolloutError::BadSampling { key: "max_new_tokens", value: 0.0, range: "1 and above" }),
            _ => Ok(()),
        }
    }
}

/// The values that a sampling parameter may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRange {
    words: &'static str,
    lowest: f32,
    highest: f32,
    has_zero: bool,
}

impl SamplingRange {
    /// Of the temperature. Below it a division of ordinary logits leaves the range of `f32`, above it every distribution
    /// is flat.
    pub const TEMPERATURE: Self =
        SamplingRange { words: "0 or from 0.001 to 1000", lowest: 1e-3, highest: 1e3, has_zero: true };
    /// Of top-p. Below it no probability counts in `f32` sums over a large vocabulary.
    pub const TOP_P: Self = SamplingRange { words: "from 0.000001 to 1", lowest: 1e-6, highest: 1.0, has_zero: false };
    /// Of min-p.
    pub const MIN_P: Self =
        SamplingRange { words: "0 or from 0.000001 to 1", lowest: 1e-6, highest: 1.0, has_zero: true };

    /// Whether a value, rounded to `f32` as it will be, lies in the range. What is rounded to 0 without being 0 does not.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.has_zero && value == 0.0) || (self.lowest..=self.highest).contains(&(value as f32))
    }

    /// The range in words, for errors.
    #[must_use]
    pub fn words(&self) -> &'static str {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_their_words_say() {
        for (range, inside, outside) in [
            (SamplingRange::TEMPERATURE, [0.0, 0.001, 1000.0], [0.000_999, 1001.0, 1e-300]),
            (SamplingRange::TOP_P, [0.000_001, 0.5, 1.0], [0.0, 1.001, 1e-300]),
            (SamplingRange::MIN_P, [0.0, 0.000_001, 1.0], [1e-7, 1.001, 1e-300]),
        ] {
            assert!(inside.into_iter().all(|value| range.contains(value)), "{range:?}");
            assert!(!outside.into_iter().any(|value| range.contains(value)), "{range:?}");
            for never in [-0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
                assert!(!range.contains(never), "{range:?} holds {never}");
            }
        }
    }

    #[test]
    fn a_parameter_outside_is_named_with_a_value_that_can_be_read_back() {
        let plain =
            Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens: 1, eos_token_ids: vec![] };
        plain.check().unwrap();
        for (key, sampling) in [
            ("temperature", Sampling { temperature: 1e-30, ..plain.clone() }),
            ("top_p", Sampling { top_p: 1e-30, ..plain.clone() }),
            ("min_p", Sampling { min_p: 1e-30, ..plain.clone() }),
        ] {
            let error = sampling.check().unwrap_err();
            assert!(matches!(error, RolloutError::BadSampling { key: found, .. } if found == key), "{error}");
            let text = error.to_string();
            let shown = text.split(" = ").nth(1).unwrap().split(' ').next().unwrap();
            assert_eq!(shown.parse::<f64>().unwrap() as f32, 1e-30, "{text}");
            assert!(shown.len() < 30, "{text}");
        }
        let error = Sampling { max_new_tokens: 0, ..plain }.check().unwrap_err();
        assert!(matches!(error, RolloutError::BadSampling { key: "max_new_tokens", .. }), "{error}");
    }
}
