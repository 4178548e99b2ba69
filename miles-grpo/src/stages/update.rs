//! Moving the master weights.
//!
//! One optimizer step per rollout is the default and strictly on-policy. With several, the batch is cut into parts of
//! whole groups; after each part but the last the trainer makes a version of its own (quantized once, like every
//! version) so that the next part's forward multiplies what would be published. Ratios are then no longer 1, which is
//! what the clip is for; the mismatch is measured before the first of them.

use miles_core::plugin::{Loss, SampleScores, ScoredPolicy, Trainer, UpdateReport};
use miles_core::policy::{Ledger, PolicyContext, PolicyStamp};

use super::batch::{batch, check_scores};
use super::{Clock, Packed, Stage, publish};
use crate::Result;

/// Who makes the versions of this step, for the ledger.
#[derive(Clone, Copy)]
pub struct Versioning<'a> {
    /// Run.
    pub run: &'a str,
    /// Step.
    pub step: u64,
    /// Where quantization events go.
    pub ledger: &'a Ledger,
    /// The newest version before this step.
    pub live: PolicyStamp,
}

impl<'a> Versioning<'a> {
    /// The context of the version after `newest`.
    pub(super) fn after(&self, newest: PolicyStamp) -> PolicyContext<'a> {
        PolicyContext { run: self.run, step: self.step, version: newest.version.next(), ledger: self.ledger }
    }
}

/// What a step's optimizer steps did.
#[derive(Clone, Debug, PartialEq)]
pub struct Updated {
    /// Trainer logprobs and entropies of the whole batch before any of them.
    pub scores: Vec<SampleScores>,
    /// One report per optimizer step.
    pub reports: Vec<UpdateReport>,
    /// The version that the last of them started from.
    pub newest: PolicyStamp,
}

/// Takes the optimizer steps of one training step.
///
/// # Errors
/// Whatever the trainer reports.
pub fn update(
    trainer: &mut dyn Trainer,
    packed: &Packed,
    parts: usize,
    loss: &dyn Loss,
    learning_rate: f64,
    versioning: Versioning<'_>,
    clock: &mut Clock,
) -> Result<Updated> {
    if parts == 1 {
        let report = trainer.update(packed.batch(), loss, learning_rate)?;
        check_scores(packed.batch(), &report.scores)?;
        return Ok(Updated { scores: report.scores.clone(), reports: vec![report], newest: versioning.live });
    }
    let scores = trainer.score(ScoredPolicy::Current, packed.batch())?;
    check_scores(packed.batch(), &scores)?;
    let (mut newest, mut reports) = (versioning.live, Vec::with_capacity(parts));
    for samples in packed.cut(parts) {
        if !reports.is_empty() {
            clock.lap(Stage::Train);
            newest = publish::quantize(trainer, versioning.after(newest))?.stamp();
            clock.lap(Stage::Quantize);
        }
        // The stamp says which version has to be current in the trainer; that the samples came from the live policy
        // was checked when they were sampled.
        let part = batch(samples, newest, packed.batch().temperature())?;
        reports.push(trainer.update(&part, loss, learning_rate)?);
    }
    Ok(Updated { scores, reports, newest })
}
