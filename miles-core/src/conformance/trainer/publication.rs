//! O3: what is published is the quantization of the BF16 rounding of the masters, and of nothing else.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::fixture::{Family, PolicyGradient, RuleQuantizer, TinyWeights, map, quantize};
use super::super::operands::{show_all, shows_operands};
use super::super::{Failure, Suite, Verdict};
use super::bench::{LEARNING_RATE, TrainerBench, batch, is_of_network, publish, same_policy, step};
use crate::Result;
use crate::network::ParamId;
use crate::plugin::Trainer;
use crate::policy::{Ledger, LedgerEvent, PolicyContext, PolicyTensor, PolicyVersion, Snapshot, WeightSource};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &TrainerBench<'_>) {
    suite.case("publication/first", || {
        bench.everywhere(|family, recipe| the_first_version_is_that_of_the_weights(bench, family, recipe))
    });
    suite.case("publication/masters", || {
        bench.everywhere(|family, recipe| a_later_version_is_that_of_its_masters(bench, family, recipe))
    });
    suite.case("publication/repeatable", || {
        bench.everywhere(|family, recipe| masters_that_do_not_move_keep_their_bytes(bench, family, recipe))
    });
    suite.optional("publication/operand", || {
        let recipes: Vec<Recipe> = bench.recipes().collect();
        show_all(Family::ALL, &recipes, |family, recipe| operands_are_those_of_the_version(bench, family, recipe))
    });
    suite.case("publication/ledger", || {
        bench.everywhere(|family, recipe| every_tensor_is_in_the_ledger(bench, family, recipe))
    });
}

/// The weights have bits below BF16, so a version made from them directly has other bytes.
fn the_first_version_is_that_of_the_weights(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (_, found) = bench.trainer(family, recipe)?;
    let network = family.network();
    let map = map(&network, recipe)?;
    let expected = quantize(&network, &map, &RuleQuantizer::new(), &TinyWeights::new(&network, 0), 0)?;
    let (stamp, wanted) = (found.stamp().version, expected.stamp().version);
    Failure::unless(stamp == wanted, || format!("version {stamp} is published, not {wanted}"))?;
    same_policy(&found, &expected, "the first version")
}

/// A second trainer that takes the saved masters over in BF16 shows what they round to.
fn a_later_version_is_that_of_its_masters(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    let (_, found) = step(trainer.as_mut(), &batch(family, first.stamp())?, 1)?;
    let saved = bench.directory()?;
    trainer.save(saved.path())?;
    let mut in_bf16 = bench.new_trainer(family, Recipe::Bf16)?;
    in_bf16.restore(saved.path())?;
    let rounded = publish(in_bf16.as_mut(), 1)?;
    is_of_network(&rounded, &family.network())?;
    is_of_network(&found, &family.network())?;
    let expected = quantize(&family.network(), found.map(), &RuleQuantizer::new(), &Rounded(&rounded), 1)?;
    same_policy(&found, &expected, "the version after a step")
}

/// The values of a version that holds no codes.
pub(super) struct Rounded<'a>(pub &'a Snapshot);

impl WeightSource for Rounded<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        match self.0.tensor(id).as_ref() {
            PolicyTensor::Dense(tensor) => tensor.read_f32(into),
            PolicyTensor::Quantized(tensor) => *into = tensor.dequantize_f32()?,
        }
        Ok(())
    }
}

/// Published twice without a step between, and after a step of learning rate 0 without decay.
fn masters_that_do_not_move_keep_their_bytes(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let mut options = bench.options();
    options.optimizer.weight_decay = 0.0;
    let (mut trainer, first) = bench.trainer_with(family, recipe, options)?;
    let again = publish(trainer.as_mut(), 1)?;
    same_policy(&again, &first, "published twice")?;
    let batch = batch(family, again.stamp())?;
    trainer.update(&batch, &super::super::fixture::PolicyGradient, 0.0)?;
    same_policy(&publish(trainer.as_mut(), 2)?, &first, "after a step of learning rate 0")
}

/// Operands are those of the newest version, and there are none before the first one, between an update and its version, and
/// between restoring and publishing.
fn operands_are_those_of_the_version(
    bench: &TrainerBench<'_>,
    family: Family,
    recipe: Recipe,
) -> Result<Option<String>, Failure> {
    let any = family.network().embedding;
    let none = |trainer: &dyn Trainer, when: &str| {
        Failure::unless(trainer.operand(any).is_err(), || format!("an operand is shown {when}"))
    };
    none(bench.new_trainer(family, recipe)?.as_ref(), "before a version is published")?;
    let (mut trainer, first) = bench.trainer(family, recipe)?;
    if let Some(why) = shows_operands(&first, |id| trainer.operand(id))? {
        return Ok(Some(why));
    }
    trainer.update(&batch(family, first.stamp())?, &PolicyGradient, LEARNING_RATE)?;
    none(trainer.as_ref(), "between an update and its version")?;
    let second = publish(trainer.as_mut(), 1)?;
    shows_operands(&second, |id| trainer.operand(id)).map_err(|failure| failure.at("after a step"))?;
    let saved = bench.directory()?;
    trainer.save(saved.path())?;
    trainer.restore(saved.path())?;
    none(trainer.as_ref(), "between restoring and publishing")?;
    let third = publish(trainer.as_mut(), 2)?;
    shows_operands(&third, |id| trainer.operand(id)).map_err(|failure| failure.at("after restoring"))
}

/// One event per tensor and version, whose digest is that of the published tensor.
fn every_tensor_is_in_the_ledger(bench: &TrainerBench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let mut trainer = bench.new_trainer(family, recipe)?;
    let written = Written::default();
    let ledger = Ledger::new(Box::new(written.clone()), "in memory".to_owned());
    let version = PolicyVersion(4);
    let snapshot = trainer.publish(PolicyContext { run: "conformance", step: 3, version, ledger: &ledger })?;
    ledger.flush()?;
    let events = written.events()?;
    let network = snapshot.network();
    let (count, wanted) = (events.len(), network.parameters.len());
    Failure::unless(count == wanted, || format!("{count} ledger events for {wanted} tensors"))?;
    for id in network.ids() {
        let name = &network.parameter(id).name;
        let event = events.iter().find(|event| event.tensor == *name);
        let event = event.ok_or_else(|| Failure::new(format!("the ledger has no event of `{name}`")))?;
        let right = (event.version, event.step) == (version, 3)
            && event.output_digest == snapshot.tensor_digest(id)
            && event.format == snapshot.map().entry(id).format.to_string();
        Failure::unless(right, || format!("the ledger's event does not describe the published tensor: {event:?}"))?;
    }
    Ok(())
}

/// A ledger's lines, kept in memory.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn events(&self) -> Result<Vec<LedgerEvent>, Failure> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(String::from_utf8(bytes)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
