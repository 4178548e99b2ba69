//! Updates that are the gradient itself: `eps`, norms, clipping, and the gradient against differences of the network in F64.

use super::super::super::fixture::{Family, Nudge, nudged_logprobs, samples};
use super::super::super::{Failure, Suite, Verdict};
use super::super::bench::TrainerBench;
use super::{SAMPLES, Step, Stepped, each_parameter, run};
use crate::network::{Network, ParamId, Role};
use crate::plugin::{ActivationDtype, AdamW, TrainSample, TrainerOptions};
use crate::policy::Snapshot;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("optimizer/norms", || {
        bench.everywhere(|family, recipe| reported_norms_are_those_of_the_gradient(bench, family, recipe))
    });
    suite.case("optimizer/clip", || {
        bench.everywhere(|family, recipe| the_whole_gradient_is_clipped(bench, family, recipe))
    });
    if bench.engines.backend.capabilities.activations.contains(&ActivationDtype::F32) {
        suite.case("optimizer/gradient", || {
            Family::ALL.into_iter().try_for_each(|family| {
                the_gradient_is_that_of_the_network(bench, family).map_err(|failure| failure.at(family))
            })
        });
    }
}

/// Far above every gradient: `sqrt(v) + eps` is `eps` to one part in a million.
const EPS: f64 = (1 << 20) as f64;
/// What a gradient is multiplied by. Most gradients of the fixture are beyond 1/1024 of their weight, so that what is added
/// to a weight is most of the sum.
const GAIN: f64 = 1024.0;

fn options(bench: &TrainerBench<'_>, max_grad_norm: Option<f64>) -> TrainerOptions {
    let optimizer = AdamW { beta1: 0.5, beta2: 0.75, eps: EPS, weight_decay: 0.0 };
    TrainerOptions { optimizer, max_grad_norm, ..bench.options() }
}

/// One step of `w - gain * g`.
fn step(gain: f64) -> [Step; 1] {
    [Step { advantage: 1.0, learning_rate: gain * EPS }]
}

/// The gradient of an element by what an update of [`GAIN`] made of it, and how far that may be off: half a step of BF16.
fn measured(before: f32, after: f32) -> (f64, f64) {
    let gradient = (f64::from(before) - f64::from(after)) / GAIN;
    (gradient, f64::from(after).abs() / 256.0 / GAIN)
}

/// How far a norm may be off: thousands of elements whose roundings by at most 2^-9 have both signs, and the share of
/// `sqrt(v)` in `sqrt(v) + eps`.
const NORM_TOLERANCE: f64 = 1e-3;

/// `eps` and the norms, of the whole gradient and of each part, are in one proportion: the update is `rate / eps` times the
/// gradient that has the norm.
fn reported_norms_are_those_of_the_gradient(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let network = family.network();
    let stepped = run(bench, family, recipe, options(bench, None), (SAMPLES, &step(GAIN)))?;
    let mut parts: Vec<(String, f64)> = Vec::new();
    each_parameter(&network, &stepped, |id, before, after| {
        let squares = before.iter().zip(after).map(|(&before, &after)| measured(before, after).0.powi(2)).sum::<f64>();
        let name = part_name(&network, id);
        match parts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += squares,
            None => parts.push((name, squares)),
        }
        Ok(())
    })?;
    let near = |found: f64, expected: f64| (found - expected).abs() <= expected * NORM_TOLERANCE;
    let (found, expected) = (stepped.report.grad_norm, parts.iter().map(|part| part.1).sum::<f64>().sqrt());
    Failure::unless(near(found, expected), || {
        format!("the gradient is reported with the norm {found}, the update is that of one of {expected}")
    })?;
    let reported = &stepped.report.part_grad_norms;
    let names = |parts: &[(String, f64)]| parts.iter().map(|part| part.0.clone()).collect::<Vec<_>>();
    Failure::unless(names(reported) == names(&parts), || {
        format!("norms are reported of {:?}, not of {:?}", names(reported), names(&parts))
    })?;
    for ((part, found), (_, squares)) in reported.iter().zip(&parts) {
        let expected = squares.sqrt();
        Failure::unless(near(*found, expected), || {
            format!("the gradient of {part} is reported with the norm {found}, the update is that of one of {expected}")
        })?;
    }
    Ok(())
}

fn part_name(network: &Network, id: ParamId) -> String {
    let parameter = network.parameter(id);
    match (parameter.layer, parameter.role) {
        (Some(layer), _) => format!("layers.{layer}"),
        (None, Role::Embedding) => "embedding".to_owned(),
        (None, Role::Head) => "head".to_owned(),
        (None, _) => "norm".to_owned(),
    }
}

/// A limit of a quarter of the norm makes every gradient a quarter, one of twice the norm changes none, and the norm that
/// is reported is the one before.
fn the_whole_gradient_is_clipped(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let network = family.network();
    let free = run(bench, family, recipe, options(bench, None), (SAMPLES, &step(GAIN)))?;
    let norm = free.report.grad_norm;
    Failure::unless(norm.is_finite() && norm > 0.0, || format!("the gradient has the norm {norm}"))?;
    for (what, limit, gain) in [("a quarter of", norm / 4.0, 4.0), ("twice", norm * 2.0, 1.0)] {
        let clipped = run(bench, family, recipe, options(bench, Some(limit)), (SAMPLES, &step(GAIN * gain)))?;
        let found = clipped.report.grad_norm;
        Failure::unless(found == norm, || {
            format!("with a limit of {what} the norm, the norm before clipping is {found} and not {norm}")
        })?;
        let (mut others, mut all) = (0, 0);
        each_parameter(&network, &clipped, |id, _, after| {
            let expected = &free.after[id.index()];
            for (element, (&found, &expected)) in after.iter().zip(expected).enumerate() {
                // The limit's quotient need not be exact, so some values fall to the other side of a rounding.
                let near = (found - expected).abs() <= expected.abs() / 100.0;
                Failure::unless(near, || {
                    format!("with a limit of {what} the norm element {element} becomes {found}, not {expected}")
                })?;
                others += usize::from(found != expected);
            }
            all += after.len();
            Ok(())
        })?;
        Failure::unless(others * 100 <= all, || {
            format!("with a limit of {what} the norm {others} of {all} weights are not those of the gradient times it")
        })?;
    }
    Ok(())
}

/// In F32, elements of every parameter against central differences of the loss of the network in F64.
fn the_gradient_is_that_of_the_network(bench: &TrainerBench<'_>, family: Family) -> Verdict {
    let network = family.network();
    let options = TrainerOptions { activations: ActivationDtype::F32, ..options(bench, None) };
    // Few samples: every difference is two passes over all of them.
    let stepped = run(bench, family, Recipe::Bf16, options, (3, &step(GAIN)))?;
    let batch = samples(3, family.config().vocab_size);
    each_parameter(&network, &stepped, |id, before, after| {
        for element in elements_of(&network, id, &batch) {
            let (found, rounding) = measured(before[element], after[element]);
            let expected = difference(&stepped, &batch, id, element)?;
            let near = (found - expected).abs() <= rounding + expected.abs() * GRADIENT_TOLERANCE + GRADIENT_FLOOR;
            Failure::unless(near, || format!("the gradient of element {element} is {found}, not {expected}"))?;
        }
        Ok(())
    })
}

/// Room for F32 in any order of sums, through every layer and back.
const GRADIENT_TOLERANCE: f64 = 1e-3;
/// Where terms cancel, what is left of F32 roundings of gradients of at most 1.
const GRADIENT_FLOOR: f64 = 1e-6;
/// The step of a difference: its error is of the order of its square, and F64 keeps ten digits of a difference.
const DIFFERENCE: f64 = 1e-5;

/// Three elements spread over the parameter; of a table, in the row of a token that every batch has.
fn elements_of(network: &Network, id: ParamId, batch: &[TrainSample]) -> Vec<usize> {
    let parameter = network.parameter(id);
    let (rows, cols) = parameter.rows_cols();
    let elements = rows * cols;
    if parameter.role == Role::Embedding {
        let used = batch.iter().filter_map(|sample| sample.tokens.first()).take(2);
        return used.map(|&token| (token as usize * cols + token as usize % cols).min(elements - 1)).collect();
    }
    vec![0, elements * 2 / 5, elements - 1]
}

/// `(L(w + h) - L(w - h)) / 2h` for the loss of the whole batch.
fn difference(stepped: &Stepped, batch: &[TrainSample], id: ParamId, element: usize) -> Result<f64, Failure> {
    let loss = |by: f64| loss(&stepped.first, batch, Nudge { id, element, by });
    Ok((loss(DIFFERENCE)? - loss(-DIFFERENCE)?) / (2.0 * DIFFERENCE))
}

/// [`PolicyGradient`](super::super::super::fixture::PolicyGradient) in F64.
fn loss(policy: &Snapshot, batch: &[TrainSample], nudge: Nudge) -> Result<f64, Failure> {
    let tokens: usize = batch.iter().map(TrainSample::completion_tokens).sum();
    let mut loss = 0.0;
    for sample in batch {
        let logprobs = nudged_logprobs(policy, Some(nudge), &sample.tokens, 1.0)?;
        let of_completion: f64 = logprobs.iter().skip(sample.prompt_tokens - 1).sum();
        loss -= f64::from(sample.advantage) * of_completion / tokens as f64;
    }
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::bf16;

    #[test]
    fn half_a_step_of_bf16_is_within_what_a_measurement_allows() {
        for after in [1.0_f32, 1.99, -700.3, 0.013] {
            let (_, allowed) = measured(0.0, after);
            let half = (f64::from(after) - f64::from(bf16::round(after))).abs() / GAIN;
            assert!(half <= allowed, "{after}: {half} of {allowed}");
        }
    }
}
