//! Every recipe that the subject does trains; every other one is refused.

use std::sync::Arc;

use super::super::fixture::{Family, UNDECLARED, undeclared_map};
use super::super::{Failure, Suite, Verdict};
use super::bench::{TrainerBench, batch, is_of_network, publish, step};
use crate::Result;
use crate::plugin::Trainer;
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    for recipe in Recipe::ALL {
        let name = format!("recipes/{recipe}");
        if bench.does(recipe) {
            suite.case(name, || {
                Family::ALL.into_iter().try_for_each(|family| a_step_changes_the_policy(bench, family, recipe))
            });
        } else {
            suite.refusal(name, || {
                let trainer = bench.new_trainer(Family::Dense, recipe)?;
                whole_step(trainer)
            });
        }
    }
    suite.refusal(format!("recipes/{UNDECLARED}"), || {
        let map = undeclared_map(&Family::Dense.network())?;
        let quantizer = Arc::clone(&bench.subject.backend.quantizer);
        whole_step(bench.make(Family::Dense, &map, 0, bench.options(), quantizer)?)
    });
}

/// Everything that may be the first to notice what is not supported.
fn whole_step(mut trainer: Box<dyn Trainer>) -> Result<()> {
    let first = publish(trainer.as_mut(), 0)?;
    step(trainer.as_mut(), &batch(Family::Dense, first.stamp())?, 1)?;
    Ok(())
}

fn a_step_changes_the_policy(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let (report, second) = step(trainer.as_mut(), &batch(family, first.stamp())?, 1)?;
    let norm = report.grad_norm;
    Failure::unless(norm.is_finite() && norm > 0.0, || format!("{family}: the gradient has the norm {norm}"))?;
    Failure::unless(report.loss.is_finite(), || format!("{family}: the loss is {}", report.loss))?;
    [&first, &second].into_iter().try_for_each(|snapshot| is_of_network(snapshot, &family.network()))?;
    for id in first.network().ids() {
        let changed = first.tensor_digest(id) != second.tensor_digest(id);
        // A small vector may keep its bytes; no matrix does at this learning rate.
        let parameter = first.network().parameter(id);
        let is_matrix = parameter.shape.len() == 2;
        Failure::unless(changed || !is_matrix, || format!("{family}: the step left `{}` as it was", parameter.name))?;
    }
    Ok(())
}
