//! Updates of a size that does not depend on the gradient: learning rate, decay, moments, masters in BF16.

use super::super::super::fixture::{Family, samples};
use super::super::super::{Failure, Suite, Verdict};
use super::super::bench::TrainerBench;
use super::{SAMPLES, Step, Stepped, each_parameter, is_decayed, is_rounding, run};
use crate::network::{Network, ParamId, Role};
use crate::number::bf16;
use crate::plugin::{AdamW, MasterDtype, TrainerOptions};
use crate::precision::{BackwardMode, Recipe};

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("optimizer/rate", || {
        bench.everywhere(|family, recipe| a_first_step_is_as_long_as_the_rate(bench, family, recipe))
    });
    suite.case("optimizer/moments", || {
        bench.where_cuts_change_nothing(|family, recipe| moments_weigh_earlier_gradients(bench, family, recipe))
    });
    suite.case("optimizer/decay", || {
        bench.everywhere(|family, recipe| weights_decay_without_a_gradient(bench, family, recipe))
    });
    suite.case("optimizer/router", || a_router_that_is_not_trained_stays(bench));
    let bf16_masters = TrainerOptions { masters: MasterDtype::Bf16, ..bench.options() };
    if bench.subject.backend.capabilities.masters.contains(&MasterDtype::Bf16) {
        suite.case("optimizer/bf16_masters", || {
            Family::ALL.into_iter().try_for_each(|family| masters_in_bf16_are_rounded_by_chance(bench, family))
        });
    } else {
        suite.refusal("optimizer/bf16_masters", || {
            bench.trainer_with(Family::Dense, Recipe::Bf16, bf16_masters).map(drop)
        });
    }
}

/// Betas whose powers are exact in F32, `eps` far below every gradient that is not 0, no clipping.
fn options(bench: &TrainerBench<'_>, weight_decay: f64) -> TrainerOptions {
    let optimizer = AdamW { beta1: 0.5, beta2: 0.75, eps: 1e-20, weight_decay };
    TrainerOptions { optimizer, max_grad_norm: None, ..bench.options() }
}

/// How much of the learning rate a trainer may be off that computes an update in F32: three roundings of moments, a
/// root, a quotient and a product, together far below a tenth of this.
const F32_ARITHMETIC: f64 = 1e-5;

/// With empty moments every weight with a gradient moves by the learning rate, after it has decayed.
fn a_first_step_is_as_long_as_the_rate(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (rate, weight_decay) = (0.75, 0.125);
    let steps = [Step { advantage: 1.0, learning_rate: rate }];
    let stepped = run(bench, family, recipe, options(bench, weight_decay), (SAMPLES, &steps))?;
    moved_by(family, &stepped, rate, rate * weight_decay, "the first step")
}

/// After the gradients g, -4g and 2g, of which only the last moves anything, an update is a multiple of the learning rate
/// that the betas decide.
fn moments_weigh_earlier_gradients(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let multiples = [1.0, -4.0, 2.0];
    let options = options(bench, 0.0);
    let ratio = ratio(&options.optimizer, &multiples);
    for count in 2..=multiples.len() {
        let rate = |index: usize| if index + 1 == count { 1.0 } else { 0.0 };
        let step =
            |(index, advantage): (usize, &f64)| Step { advantage: *advantage as f32, learning_rate: rate(index) };
        let steps: Vec<Step> = multiples[..count].iter().enumerate().map(step).collect();
        let stepped = run(bench, family, recipe, options.clone(), (SAMPLES, &steps))?;
        moved_by(family, &stepped, ratio[count - 1], 0.0, &format!("step {count} after steps of rate 0"))?;
    }
    Ok(())
}

/// Of each step, the first moment over the root of the second, both corrected, for gradients that are multiples of one.
fn ratio(rule: &AdamW, multiples: &[f64]) -> Vec<f64> {
    let (mut first, mut second, mut powers) = (0.0, 0.0, (1.0, 1.0));
    let step = |multiple: &f64| {
        first = rule.beta1 * first + (1.0 - rule.beta1) * multiple;
        second = rule.beta2 * second + (1.0 - rule.beta2) * multiple * multiple;
        powers = (powers.0 * rule.beta1, powers.1 * rule.beta2);
        let corrected: (f64, f64) = (first / (1.0 - powers.0), second / (1.0 - powers.1));
        (corrected.0 / corrected.1.sqrt()).abs()
    };
    multiples.iter().map(step).collect()
}

/// Every weight has decayed, and then moved by `size` up or down, or rests where its gradient can be 0.
fn moved_by(family: Family, stepped: &Stepped, size: f64, decay: f64, what: &str) -> Verdict {
    let network = family.network();
    let tolerance = size * F32_ARITHMETIC;
    each_parameter(&network, stepped, |id, before, after| {
        let keep = if is_decayed(network.parameter(id).role) { 1.0 - decay } else { 1.0 };
        let mut resting = 0;
        for (element, (&before, &after)) in before.iter().zip(after).enumerate() {
            let rest = f64::from(before) * keep;
            let tolerance = tolerance + rest.abs() * F32_ARITHMETIC;
            let moved = is_rounding(after, rest - size, tolerance) || is_rounding(after, rest + size, tolerance);
            let rests = is_rounding(after, rest, tolerance);
            Failure::unless(moved || rests, || {
                format!("{what} takes element {element} from {before} to {after}, not to {rest} plus or minus {size}")
            })?;
            resting += usize::from(rests);
        }
        let most = most_at_rest(family, &network, id);
        Failure::unless(resting <= most, || {
            format!(
                "{what} leaves {resting} of {} elements as they were, at most {most} can have no gradient",
                after.len()
            )
        })
    })
}

/// The elements of a parameter whose gradient may be 0: rows of tokens that no sample has, and, as a gradient may be
/// rounded to 0, a quarter of everything else.
fn most_at_rest(family: Family, network: &Network, id: ParamId) -> usize {
    let parameter = network.parameter(id);
    let elements = parameter.elements();
    let is_table = parameter.role == Role::Embedding && id != network.head.weight;
    if !is_table {
        return elements / 4;
    }
    let vocab_size = family.config().vocab_size;
    let (rows, cols) = parameter.rows_cols();
    let inputs = samples(SAMPLES, vocab_size).into_iter().flat_map(|sample| {
        let inputs = sample.tokens.len() - 1;
        sample.tokens.into_iter().take(inputs)
    });
    let used: std::collections::BTreeSet<u32> = inputs.collect();
    (rows - used.len()) * cols + used.len() * cols / 4
}

/// Without a gradient (its norm is 0, too) a matrix is multiplied by `1 - rate * decay` and a vector stays.
fn weights_decay_without_a_gradient(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let network = family.network();
    let options = TrainerOptions { max_grad_norm: Some(1.0), ..options(bench, 0.25) };
    let stepped = run(bench, family, recipe, options, (SAMPLES, &[Step { advantage: 0.0, learning_rate: 0.5 }]))?;
    let norm = stepped.report.grad_norm;
    Failure::unless(norm == 0.0, || format!("the gradient of a loss that is 0 has the norm {norm}"))?;
    each_parameter(&network, &stepped, |id, before, after| {
        let keep = if is_decayed(network.parameter(id).role) { 0.875 } else { 1.0 };
        for (element, (&before, &after)) in before.iter().zip(after).enumerate() {
            let expected = f64::from(before) * keep;
            let right = is_rounding(after, expected, expected.abs() * F32_ARITHMETIC);
            Failure::unless(right, || format!("element {element} goes from {before} to {after}, not to {expected}"))?;
        }
        Ok(())
    })
}

/// With `train_router` off a router keeps its weights, decay included, and everything else moves.
fn a_router_that_is_not_trained_stays(bench: &TrainerBench<'_>) -> Verdict {
    let family = Family::Moe;
    let network = family.network();
    for recipe in bench.recipes().filter(|recipe| recipe.backward() != BackwardMode::Quantized) {
        let options = TrainerOptions { train_router: false, ..options(bench, 0.125) };
        let stepped = run(bench, family, recipe, options, (SAMPLES, &[Step { advantage: 1.0, learning_rate: 0.75 }]))?;
        each_parameter(&network, &stepped, |id, before, after| {
            let stays = before.iter().zip(after).all(|(&before, &after)| bf16::round(before) == after);
            let is_router = network.parameter(id).role == Role::Router;
            Failure::unless(stays == is_router, || format!("{recipe}: {}", if stays { "it stays" } else { "it moves" }))
        })?;
    }
    Ok(())
}

/// Each master becomes one of the two BF16 values around its new value, as often the upper one as the value is near it.
fn masters_in_bf16_are_rounded_by_chance(bench: &TrainerBench<'_>, family: Family) -> Verdict {
    let network = family.network();
    let rate = 0.75;
    let options = TrainerOptions { masters: MasterDtype::Bf16, ..options(bench, 0.0) };
    let stepped =
        run(bench, family, Recipe::Bf16, options, (SAMPLES, &[Step { advantage: 1.0, learning_rate: rate }]))?;
    let (mut drift, mut variance) = (0.0, 0.0);
    each_parameter(&network, &stepped, |_, before, after| {
        for (element, (&before, &after)) in before.iter().zip(after).enumerate() {
            let start = f64::from(bf16::round(before));
            let near = |expected: &&f64| (f64::from(after) - **expected).abs() < rate / 2.0;
            let expected = [start, start - rate, start + rate];
            let Some(&expected) = expected.iter().find(near) else {
                return Err(Failure::new(format!("element {element} goes from {start} to {after}")));
            };
            let (below, above) = neighbours(expected);
            let right = after == below || after == above || is_rounding(after, expected, rate * F32_ARITHMETIC);
            Failure::unless(right, || {
                format!("element {element} becomes {after}, {expected} is between {below} and {above}")
            })?;
            let step = f64::from(above) - f64::from(below);
            if step > 0.0 {
                let share = (expected - f64::from(below)) / step;
                drift += (f64::from(after) - expected) / step;
                variance += share * (1.0 - share);
            }
        }
        Ok(())
    })?;
    Failure::unless(drift.abs() <= 6.0 * f64::sqrt(variance) + 1.0, || {
        format!("rounding moves the weights by {drift:.1} steps in all, chance by {:.1}", f64::sqrt(variance))
    })
}

/// The BF16 values on both sides of a value; twice the value where it is one itself.
fn neighbours(x: f64) -> (f32, f32) {
    let cut = f32::from_bits((x as f32).to_bits() & 0xFFFF_0000);
    if f64::from(cut) == x {
        return (cut, cut);
    }
    let further = f32::from_bits(cut.to_bits() + 0x0001_0000);
    if x > 0.0 { (cut, further) } else { (further, cut) }
}
