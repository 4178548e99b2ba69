//! The arithmetic of one optimizer step, against AdamW's formula in F64.
//!
//! ```text
//! m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//! w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//! ```
//!
//! Nothing of this asks the trainer for a gradient. Two choices of `eps` show both sides of the formula:
//!
//! - Far below every gradient ([`steps`]): an update has the learning rate's size whatever the gradient is, and after
//!   gradients that are known multiples of one another, a known multiple of it. So rate, decay and betas show alone.
//! - Far above every gradient ([`gradients`]): an update is the gradient times `lr / eps`. So the gradient itself shows, and
//!   with it `eps`, the reported norms and clipping.
//!
//! Masters are read as BF16, which is what they are published as; updates are large beside the weights, so that little
//! of them is lost.

mod gradients;
mod steps;

use std::sync::Arc;

use super::super::fixture::{Family, PolicyGradient, TinyWeights, samples};
use super::super::{Failure, Suite, Verdict};
use super::bench::{TrainerBench, is_of_network, publish};
use super::publication::Rounded;
use crate::network::{Network, ParamId, Role};
use crate::number::bf16;
use crate::plugin::{TrainBatch, Trainer, TrainerOptions, UpdateReport};
use crate::policy::{Snapshot, WeightSource};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    steps::add(suite, bench);
    gradients::add(suite, bench);
}

/// Samples of the fixture that most updates are made of.
const SAMPLES: usize = 8;

/// One update on samples of the fixture.
#[derive(Clone, Copy)]
struct Step {
    /// What the advantages, and so the gradient, are multiplied by.
    advantage: f32,
    learning_rate: f64,
}

/// A trainer before and after some updates.
struct Stepped {
    /// Initial weights, by parameter, in the number type of the masters.
    before: Vec<Vec<f32>>,
    /// Masters after the last update, rounded to BF16.
    after: Vec<Vec<f32>>,
    /// Of the last update.
    report: UpdateReport,
    /// The first version, which the first gradient belongs to.
    first: Arc<Snapshot>,
}

/// Updates on `count` samples of the fixture.
fn run(
    bench: &TrainerBench<'_>,
    family: Family,
    recipe: Recipe,
    options: TrainerOptions,
    (count, steps): (usize, &[Step]),
) -> Result<Stepped, Failure> {
    let network = family.network();
    let weights = TinyWeights::new(&network, 0);
    let before = network.ids().map(|id| values(&weights, id)).collect::<Result<_, _>>()?;
    let (mut trainer, first) = bench.trainer_with(family, recipe, options.clone())?;
    let (mut report, mut live) = (UpdateReport::default(), Arc::clone(&first));
    for (version, step) in (1..).zip(steps) {
        let mut samples = samples(count, family.config().vocab_size);
        samples.iter_mut().for_each(|sample| sample.advantage *= step.advantage);
        let batch = TrainBatch::new(samples, live.stamp(), 1.0)?;
        report = trainer.update(&batch, &PolicyGradient, step.learning_rate)?;
        live = publish(trainer.as_mut(), version)?;
    }
    let after = masters(bench, family, recipe, options, trainer.as_ref(), &live)?;
    Ok(Stepped { before, after, report, first })
}

/// The masters behind a version: its values, or, where it holds codes, what a trainer without codes publishes that takes
/// the saved masters over.
fn masters(
    bench: &TrainerBench<'_>,
    family: Family,
    recipe: Recipe,
    options: TrainerOptions,
    trainer: &dyn Trainer,
    live: &Snapshot,
) -> Result<Vec<Vec<f32>>, Failure> {
    let network = family.network();
    let read = |snapshot: &Snapshot| {
        is_of_network(snapshot, &network)?;
        let of = |id: ParamId| -> Result<Vec<f32>, Failure> {
            let (values, elements) = (values(&Rounded(snapshot), id)?, network.parameter(id).elements());
            let name = &network.parameter(id).name;
            Failure::unless(values.len() == elements, || {
                format!("`{name}` has {} values, not {elements}", values.len())
            })?;
            Ok(values)
        };
        network.ids().map(of).collect()
    };
    if recipe == Recipe::Bf16 {
        return read(live);
    }
    let saved = bench.directory()?;
    trainer.save(saved.path())?;
    let (mut in_bf16, _) = bench.trainer_with(family, Recipe::Bf16, options)?;
    in_bf16.restore(saved.path())?;
    read(publish(in_bf16.as_mut(), 1)?.as_ref())
}

fn values(source: &dyn WeightSource, id: ParamId) -> Result<Vec<f32>, Failure> {
    let mut values = Vec::new();
    source.read(id, &mut values)?;
    Ok(values)
}

/// Calls `check` with every trained parameter, its masters before and after; names the parameter that fails.
fn each_parameter(
    network: &Network,
    stepped: &Stepped,
    mut check: impl FnMut(ParamId, &[f32], &[f32]) -> Verdict,
) -> Verdict {
    for id in network.ids().filter(|&id| network.parameter(id).role.is_trained()) {
        let (before, after) = (&stepped.before[id.index()], &stepped.after[id.index()]);
        check(id, before, after).map_err(|failure| failure.at(format_args!("`{}`", network.parameter(id).name)))?;
    }
    Ok(())
}

/// Norms and biases are not decayed.
fn is_decayed(role: Role) -> bool {
    !matches!(role, Role::Norm | Role::Bias)
}

/// Whether `found` is the BF16 rounding of a value at most `tolerance` from `expected`.
fn is_rounding(found: f32, expected: f64, tolerance: f64) -> bool {
    let rounded = |x: f64| bf16::round(x as f32);
    rounded(expected - tolerance) <= found && found <= rounded(expected + tolerance)
}
