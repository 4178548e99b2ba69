//! Gradients against differences, shares against the cut, refusals.

use miles_core::plugin::{BatchTotals, Loss, LossInput};
use miles_core::registry;
use serde_json::json;

use super::{Clipped, CrossEntropy, Denominator};
use crate::kl::KlEstimator;

/// Multiples of 2^-8, so that steps of `H` are exact in f32.
const LOGPROBS: [f32; 5] = [-0.5, -1.25, -2.0, -0.75, -3.0];
const ROLLOUT: [f32; 5] = [-0.5, -1.0, -2.75, -0.875, -2.5];
const REFERENCE: [f32; 5] = [-0.625, -1.25, -1.5, -1.0, -3.5];
const H: f32 = 1.0 / 256.0;

fn input<'a>(logprobs: &'a [f32], advantage: f32) -> LossInput<'a> {
    let tokens = logprobs.len();
    LossInput {
        logprobs,
        rollout_logprobs: &ROLLOUT[..tokens],
        reference_logprobs: Some(&REFERENCE[..tokens]),
        advantage,
    }
}

fn assert_gradient_is_numeric(loss: &dyn Loss, advantage: f32) {
    let totals = BatchTotals { samples: 3, tokens: 11 };
    let mut gradient = vec![0.0; LOGPROBS.len()];
    loss.evaluate(&input(&LOGPROBS, advantage), &totals, &mut gradient);
    for token in 0..LOGPROBS.len() {
        let value_at = |step: f32| {
            let mut moved = LOGPROBS;
            moved[token] += step;
            loss.evaluate(&input(&moved, advantage), &totals, &mut [0.0; 5]).loss
        };
        let numeric = (value_at(H) - value_at(-H)) / f64::from(2.0 * H);
        let exact = f64::from(gradient[token]);
        assert!((numeric - exact).abs() < 2e-5 + 1e-4 * exact.abs(), "token {token}: {numeric} against {exact}");
    }
}

#[test]
fn clipped_gradient_equals_differences() {
    for denominator in [Denominator::TokenMean, Denominator::SequenceMean] {
        for (kl_coefficient, kl_estimator) in
            [(0.0, KlEstimator::K3), (0.3, KlEstimator::K1), (0.3, KlEstimator::K2), (0.3, KlEstimator::K3)]
        {
            for advantage in [1.5, -0.75, 0.0] {
                let loss = Clipped { eps_low: 0.2, eps_high: 0.28, kl_coefficient, kl_estimator, denominator };
                assert_gradient_is_numeric(&loss, advantage);
            }
        }
    }
}

#[test]
fn cross_entropy_gradient_equals_differences() {
    for denominator in [Denominator::TokenMean, Denominator::SequenceMean] {
        assert_gradient_is_numeric(&CrossEntropy { denominator }, 0.0);
    }
}

#[test]
fn clipping_takes_gradient_only_on_the_side_that_moved_far_enough() {
    let loss = Clipped { eps_low: 0.2, eps_high: 0.28, ..Clipped::default() };
    let totals = BatchTotals { samples: 1, tokens: 2 };
    // ratios exp(0.5) = 1.65 and exp(-0.5) = 0.61
    let (logprobs, rollout) = ([-1.0, -1.5], [-1.5, -1.0]);
    for (advantage, clipped_token) in [(1.0, 0), (-1.0, 1)] {
        let mut gradient = [0.0; 2];
        let input = LossInput { logprobs: &logprobs, rollout_logprobs: &rollout, reference_logprobs: None, advantage };
        let terms = loss.evaluate(&input, &totals, &mut gradient);
        assert_eq!(terms.clipped_tokens, 1);
        assert_eq!(gradient[clipped_token], 0.0);
        assert_ne!(gradient[1 - clipped_token], 0.0);
    }
}

#[test]
fn equal_logprobs_give_minus_the_advantage_and_nothing_clipped() {
    let totals = BatchTotals { samples: 1, tokens: 5 };
    let mut gradient = [0.0; 5];
    let input = LossInput { logprobs: &ROLLOUT, rollout_logprobs: &ROLLOUT, reference_logprobs: None, advantage: 2.0 };
    let terms = Clipped::default().evaluate(&input, &totals, &mut gradient);
    assert!((terms.loss + 2.0).abs() < 1e-12 && terms.clipped_tokens == 0, "{terms:?}");
    assert_eq!(gradient, [-0.4; 5]);
}

/// O16: the shares of a batch's completions sum to the same loss and gradients however they are grouped, because each
/// share is computed from the batch's totals alone.
#[test]
fn o16_loss_share_is_independent_of_the_cut() {
    let lengths = [1usize, 3, 2, 5];
    let totals = BatchTotals { samples: 4, tokens: 11 };
    for denominator in [Denominator::TokenMean, Denominator::SequenceMean] {
        let loss = Clipped { denominator, kl_coefficient: 0.1, ..Clipped::default() };
        let evaluate = |cut: &[usize]| {
            let (mut sum, mut gradients) = (0.0, Vec::new());
            for micro_batch in cut {
                let first = gradients.len();
                for &tokens in &lengths[first..first + micro_batch] {
                    let mut gradient = vec![0.0; tokens];
                    sum += loss.evaluate(&input(&LOGPROBS[..tokens], 0.5), &totals, &mut gradient).loss;
                    gradients.push(gradient);
                }
            }
            (sum, gradients)
        };
        let whole = evaluate(&[4]);
        for cut in [&[1usize, 1, 1, 1][..], &[2, 2], &[3, 1], &[1, 3]] {
            assert_eq!(evaluate(cut), whole, "{denominator:?} cut as {cut:?}");
        }
        // The gradient on a batch of n equal completions is that on one, not n times as much or as little.
        let once = BatchTotals { samples: 1, tokens: 5 };
        let four = BatchTotals { samples: 4, tokens: 20 };
        let mut gradient = [[0.0; 5]; 2];
        let one = loss.evaluate(&input(&LOGPROBS, 0.5), &once, &mut gradient[0]).loss;
        let quarter = loss.evaluate(&input(&LOGPROBS, 0.5), &four, &mut gradient[1]).loss;
        assert!((one - 4.0 * quarter).abs() < 1e-12, "{one} against 4 x {quarter}");
        assert_eq!(gradient[0], gradient[1].map(|g| 4.0 * g));
    }
}

#[test]
fn a_penalty_without_reference_is_never_silently_zero() {
    let loss = Clipped { kl_coefficient: 0.1, ..Clipped::default() };
    let input = LossInput { logprobs: &LOGPROBS, rollout_logprobs: &ROLLOUT, reference_logprobs: None, advantage: 1.0 };
    let mut gradient = [0.0; 5];
    let terms = loss.evaluate(&input, &BatchTotals { samples: 1, tokens: 5 }, &mut gradient);
    assert!(terms.loss.is_nan() && gradient.iter().all(|g| g.is_nan()));
}

#[test]
fn options_are_read_by_name_and_refused_by_range_and_key() {
    assert!(registry::loss("clipped", &json!({ "eps_high": 0.28, "denominator": "sequence-mean" })).is_ok());
    assert!(registry::loss("cross-entropy", &json!({ "denominator": "token-mean" })).is_ok());
    for (options, word) in [
        (json!({ "eps_low": 0.0 }), "eps_low"),
        (json!({ "eps_low": 1.0 }), "eps_low"),
        (json!({ "eps_high": -0.1 }), "eps_high"),
        (json!({ "kl_coefficient": -1.0 }), "kl_coefficient"),
        (json!({ "kl_estimator": "k4" }), "k4"),
        (json!({ "epsilon": 0.1 }), "epsilon"),
    ] {
        let error = registry::loss("clipped", &options).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
}
