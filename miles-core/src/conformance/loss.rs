//! The suite for training objectives.

use super::wait::together;
use super::{Failure, Report, Suite, Verdict};
use crate::plugin::{BatchTotals, Loss, LossInput, LossTerms};

/// The groups of the loss suite, in order.
pub const LOSS_GROUPS: &[&str] = &["gradient", "batch", "threads"];

/// Runs the whole loss suite.
#[must_use]
pub fn losses(loss: &dyn Loss) -> Report {
    run(loss, Suite::new("loss"))
}

/// Runs one group of the loss suite, or the one case of that name.
#[must_use]
pub fn loss_group(loss: &dyn Loss, group: &str) -> Report {
    run(loss, Suite::new("loss").only(group))
}

fn run(loss: &dyn Loss, mut suite: Suite) -> Report {
    suite.case("gradient/finite", || loss_and_gradient_are_finite(loss));
    suite.case("gradient/differences", || the_gradient_is_that_of_the_loss(loss));
    suite.case("batch/cut", || a_share_depends_on_its_sample_and_the_totals_alone(loss));
    suite.case("batch/denominator", || a_batch_of_equal_samples_weighs_as_one(loss));
    suite.case("threads/any", || every_thread_gets_the_same_bits(loss));
    suite.finish()
}

// Multiples of 2^-8, so that a step of STEP is exact in F32. No ratio is near a usual clip bound.
const LOGPROBS: [f32; 5] = [-0.5, -1.25, -2.0, -0.75, -3.0];
const ROLLOUT: [f32; 5] = [-0.5, -1.0, -2.75, -0.875, -2.5];
const REFERENCE: [f32; 5] = [-0.625, -1.25, -1.5, -1.0, -3.5];
const STEP: f32 = 1.0 / 256.0;

const ADVANTAGES: [f32; 3] = [1.5, -0.75, 0.0];

fn evaluate(loss: &dyn Loss, logprobs: &[f32], advantage: f32, totals: BatchTotals) -> (LossTerms, Vec<f32>) {
    let tokens = logprobs.len();
    let input = LossInput {
        logprobs,
        rollout_logprobs: &ROLLOUT[..tokens],
        reference_logprobs: Some(&REFERENCE[..tokens]),
        advantage,
    };
    let mut gradient = vec![0.0; tokens];
    let terms = loss.evaluate(&input, &totals, &mut gradient);
    (terms, gradient)
}

fn loss_and_gradient_are_finite(loss: &dyn Loss) -> Verdict {
    for advantage in ADVANTAGES {
        for tokens in 1..=LOGPROBS.len() {
            let totals = BatchTotals { samples: 3, tokens: tokens + 6 };
            let (terms, gradient) = evaluate(loss, &LOGPROBS[..tokens], advantage, totals);
            let finite = terms.loss.is_finite() && gradient.iter().all(|slope| slope.is_finite());
            Failure::unless(finite, || format!("advantage {advantage}: {terms:?}, gradient {gradient:?}"))?;
            let fits = terms.clipped_tokens <= tokens;
            Failure::unless(fits, || format!("{} of {tokens} tokens are clipped", terms.clipped_tokens))?;
        }
    }
    Ok(())
}

/// Central differences in F64 over a step of 2^-8. Their own error is the third derivative times the square of the step
/// over 6, below 2e-5 for objectives that are exponentials of logprobs; the gradient is F32.
fn the_gradient_is_that_of_the_loss(loss: &dyn Loss) -> Verdict {
    let totals = BatchTotals { samples: 3, tokens: 11 };
    for advantage in ADVANTAGES {
        let (_, gradient) = evaluate(loss, &LOGPROBS, advantage, totals);
        for (token, &slope) in gradient.iter().enumerate() {
            let value_at = |step: f32| {
                let mut moved = LOGPROBS;
                moved[token] += step;
                evaluate(loss, &moved, advantage, totals).0.loss
            };
            let difference = (value_at(STEP) - value_at(-STEP)) / f64::from(2.0 * STEP);
            let slope = f64::from(slope);
            let near = (difference - slope).abs() < 2e-5 + 1e-4 * slope.abs();
            Failure::unless(near, || {
                format!("advantage {advantage}, token {token}: gradient {slope}, differences give {difference}")
            })?;
        }
    }
    Ok(())
}

/// O16: the same bits however often and beside whatever else a sample is evaluated.
fn a_share_depends_on_its_sample_and_the_totals_alone(loss: &dyn Loss) -> Verdict {
    let totals = BatchTotals { samples: 4, tokens: 11 };
    let lengths = [1usize, 3, 2, 5];
    let shares = |order: &[usize]| -> Vec<(u64, Vec<u32>)> {
        let mut shares = vec![(0, Vec::new()); lengths.len()];
        for &sample in order {
            let (terms, gradient) = evaluate(loss, &LOGPROBS[..lengths[sample]], 0.5, totals);
            shares[sample] = (terms.loss.to_bits(), gradient.iter().map(|slope| slope.to_bits()).collect());
        }
        shares
    };
    let first = shares(&[0, 1, 2, 3]);
    for order in [&[3, 2, 1, 0][..], &[0, 1, 2, 3], &[2, 2, 0, 3, 1, 1]] {
        Failure::unless(shares(order) == first, || format!("evaluated in the order {order:?}, a share differs"))?;
    }
    Ok(())
}

/// O16: four equal samples have the loss of one, not four times as much or a quarter.
fn a_batch_of_equal_samples_weighs_as_one(loss: &dyn Loss) -> Verdict {
    let tokens = LOGPROBS.len();
    let (one, gradient) = evaluate(loss, &LOGPROBS, 0.5, BatchTotals { samples: 1, tokens });
    let (quarter, quarter_gradient) = evaluate(loss, &LOGPROBS, 0.5, BatchTotals { samples: 4, tokens: 4 * tokens });
    // Each side is a sum of products in F64 with one division by a count; F32 gradients round once.
    let close = |whole: f64, part: f64, unit: f64| (whole - 4.0 * part).abs() <= 4.0 * unit * whole.abs();
    Failure::unless(close(one.loss, quarter.loss, f64::EPSILON * 8.0), || {
        format!("one sample has loss {}, each of four equal ones {}", one.loss, quarter.loss)
    })?;
    for (token, (&whole, &part)) in gradient.iter().zip(&quarter_gradient).enumerate() {
        Failure::unless(close(whole.into(), part.into(), f32::EPSILON.into()), || {
            format!("token {token}: gradient {whole} in a batch of one, {part} in a batch of four equal samples")
        })?;
    }
    Ok(())
}

fn every_thread_gets_the_same_bits(loss: &dyn Loss) -> Verdict {
    let totals = BatchTotals { samples: 2, tokens: 9 };
    let bits = || {
        let (terms, gradient) = evaluate(loss, &LOGPROBS, 1.5, totals);
        (terms.loss.to_bits(), gradient.iter().map(|slope| slope.to_bits()).collect::<Vec<u32>>())
    };
    let here = bits();
    let tasks = (0..4).map(|_| Box::new(bits) as Box<dyn FnOnce() -> (u64, Vec<u32>) + Send>);
    for there in together(tasks.collect()) {
        Failure::unless(there == here, || "the same sample has another loss on another thread".to_owned())?;
    }
    Ok(())
}
