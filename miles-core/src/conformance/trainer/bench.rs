//! What the cases share: trainers of the tiny models, batches, directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::fixture::{Family, PolicyGradient, TinyWeights, map, samples};
use super::super::rollout_engine::bench::Bench;
use super::super::{Failure, Verdict};
use super::TrainerSubject;
use crate::network::Network;
use crate::plugin::{
    AdamW, MasterDtype, Quantizer, SampleScores, TrainBatch, Trainer, TrainerInputs, TrainerOptions, UpdateReport,
};
use crate::policy::{Ledger, PolicyContext, PolicyStamp, PolicyVersion, Snapshot};
use crate::precision::{BackwardMode, PrecisionMap, Recipe};
use crate::{Error, Result};

/// Trainers under test.
pub(super) struct TrainerBench<'a> {
    pub subject: &'a TrainerSubject,
    pub engines: Bench<'a>,
}

impl<'a> TrainerBench<'a> {
    pub fn new(subject: &'a TrainerSubject) -> Self {
        TrainerBench { subject, engines: Bench::new(&subject.backend) }
    }

    pub fn does(&self, recipe: Recipe) -> bool {
        let declared = recipe.format().is_none_or(|format| self.engines.supports(&format));
        declared && self.subject.recipes.contains(&recipe)
    }

    pub fn recipes(&self) -> impl Iterator<Item = Recipe> {
        Recipe::ALL.into_iter().filter(|recipe| self.does(*recipe))
    }

    /// Runs a check for every family in every recipe, and says in which one it failed.
    pub fn everywhere(&self, check: impl Fn(Family, Recipe) -> Verdict) -> Verdict {
        for family in Family::ALL {
            for recipe in self.recipes() {
                check(family, recipe).map_err(|failure| failure.at(format!("{family} {recipe}")))?;
            }
        }
        Ok(())
    }

    /// As [`TrainerBench::everywhere`], in the recipes whose gradients do not group tokens into blocks.
    pub fn where_cuts_change_nothing(&self, check: impl Fn(Family, Recipe) -> Verdict) -> Verdict {
        self.everywhere(|family, recipe| match recipe.backward() {
            BackwardMode::Quantized => Ok(()),
            BackwardMode::HighPrecision | BackwardMode::Dequantized => check(family, recipe),
        })
    }

    pub fn options(&self) -> TrainerOptions {
        TrainerOptions {
            activations: self.engines.activations,
            optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
            max_grad_norm: Some(1.0),
            micro_batch_tokens: 4096,
            train_router: true,
            masters: MasterDtype::F32,
            seed: 0,
            threads: None,
        }
    }

    /// A trainer with weights of seed 0 and nothing published.
    pub fn new_trainer(&self, family: Family, recipe: Recipe) -> Result<Box<dyn Trainer>> {
        let map = map(&family.network(), recipe)?;
        self.make(family, &map, 0, self.options(), Arc::clone(&self.subject.backend.quantizer))
    }

    /// A trainer with version 0 published.
    pub fn trainer(&self, family: Family, recipe: Recipe) -> Result<(Box<dyn Trainer>, Arc<Snapshot>)> {
        self.trainer_with(family, recipe, self.options())
    }

    pub fn trainer_with(
        &self,
        family: Family,
        recipe: Recipe,
        options: TrainerOptions,
    ) -> Result<(Box<dyn Trainer>, Arc<Snapshot>)> {
        let map = map(&family.network(), recipe)?;
        let mut trainer = self.make(family, &map, 0, options, Arc::clone(&self.subject.backend.quantizer))?;
        let first = publish(trainer.as_mut(), 0)?;
        Ok((trainer, first))
    }

    pub fn make(
        &self,
        family: Family,
        map: &Arc<PrecisionMap>,
        seed: u64,
        options: TrainerOptions,
        quantizer: Arc<dyn Quantizer>,
    ) -> Result<Box<dyn Trainer>> {
        let network = family.network();
        let weights = TinyWeights::new(&network, seed);
        (self.subject.backend.trainer)(TrainerInputs {
            network,
            map: Arc::clone(map),
            weights: &weights,
            quantizer,
            options,
            scratch: Some(self.subject.scratch.clone()),
        })
    }

    /// An empty directory, removed with everything in it when dropped.
    pub fn directory(&self) -> Result<Directory, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = self.subject.scratch.join(name);
        fs::create_dir(&path).map_err(|error| Failure::from(error).at(path.display()))?;
        Ok(Directory(path))
    }
}

/// A directory of one case.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that cannot be removed is left in the scratch directory, which is its owner's to clear.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn publish(trainer: &mut dyn Trainer, version: u64) -> Result<Arc<Snapshot>> {
    let ledger = Ledger::discard();
    let version = PolicyVersion(version);
    trainer.publish(PolicyContext { run: "conformance", step: version.0, version, ledger: &ledger })
}

/// Eight samples of a family under the stamp of a version.
pub(super) fn batch(family: Family, stamp: PolicyStamp) -> Result<TrainBatch> {
    Ok(TrainBatch::new(samples(8, family.config().vocab_size), stamp, 1.0)?)
}

/// One optimizer step and the version it makes.
pub(super) fn step(
    trainer: &mut dyn Trainer,
    batch: &TrainBatch,
    version: u64,
) -> Result<(UpdateReport, Arc<Snapshot>)> {
    let report = trainer.update(batch, &PolicyGradient, LEARNING_RATE)?;
    Ok((report, publish(trainer, version)?))
}

/// Logprobs and entropies to the bit.
pub(super) fn same_scores(found: &[SampleScores], expected: &[SampleScores], how: &str) -> Verdict {
    let (count, wanted) = (found.len(), expected.len());
    Failure::unless(count == wanted, || format!("{how}: scores of {count} samples, not {wanted}"))?;
    for (sample, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (what, found, expected) in
            [("logprob", &found.logprobs, &expected.logprobs), ("entropy", &found.entropies, &expected.entropies)]
        {
            let (count, wanted) = (found.len(), expected.len());
            Failure::unless(count == wanted, || format!("{how}: sample {sample} has {count} of {wanted} values"))?;
            for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
                let same = found.to_bits() == expected.to_bits();
                Failure::unless(same, || {
                    format!("{how}: sample {sample}, token {token}: {what} {found:e}, not {expected:e}")
                })?;
            }
        }
    }
    Ok(())
}

/// The same bytes in every tensor; names the first tensor that differs.
pub(super) fn same_policy(found: &Arc<Snapshot>, expected: &Arc<Snapshot>, how: &str) -> Verdict {
    let network = expected.network();
    is_of_network(found, network).map_err(|failure| failure.at(how))?;
    for id in network.ids() {
        let same = found.tensor_digest(id) == expected.tensor_digest(id);
        Failure::unless(same, || format!("{how}: `{}` has other bytes", network.parameter(id).name))?;
    }
    let (digest, wanted) = (found.stamp().digest, expected.stamp().digest);
    Failure::unless(digest == wanted, || format!("{how}: the policy digest is {digest}, not {wanted}"))
}

/// A snapshot has the parameters of a network, so that each of them can be looked up in it.
pub(in crate::conformance) fn is_of_network(snapshot: &Snapshot, network: &Network) -> Verdict {
    let (found, expected) = (&snapshot.network().parameters, &network.parameters);
    Failure::unless(found == expected, || {
        let (found, expected) = (found.len(), expected.len());
        format!(
            "what is published has {found} parameters of another network than the one with {expected} that is trained"
        )
    })
}

pub(super) fn is_unpublished(error: &Error) -> bool {
    matches!(error, Error::Train(crate::plugin::TrainError::Unpublished { .. }))
}

/// Large enough that one step changes the bytes of every format.
pub(super) const LEARNING_RATE: f64 = 0.02;
