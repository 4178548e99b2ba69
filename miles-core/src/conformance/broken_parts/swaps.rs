//! What a rollout engine can do wrong with a version that is loaded while a request runs.

use std::sync::Arc;

use super::engine::EngineDefect;
use crate::Result;
use crate::plugin::{CancelToken, Completion, EngineFactory, EngineOptions, GenerateRequest, PublicationMode, Rollout};
use crate::policy::{PolicyTensor, Snapshot};

/// The options that an engine with a defect is made with.
pub(super) fn options(defect: EngineDefect, options: EngineOptions) -> EngineOptions {
    let mixes = options.publication == PublicationMode::AbortAndResubmit;
    match (defect, mixes) {
        (EngineDefect::MixesGroups, true) => EngineOptions { publication: PublicationMode::Continue, ..options },
        _ => options,
    }
}

/// A snapshot with the tensors of `misfit` that every engine can read, and those of `live` in place of the others.
pub(super) fn half(live: &Snapshot, misfit: &Snapshot) -> Option<Arc<Snapshot>> {
    let network = live.network();
    if misfit.network().parameters != network.parameters {
        return None;
    }
    let tensor = |id| match misfit.tensor(id).as_ref() {
        PolicyTensor::Dense(_) => Arc::clone(misfit.tensor(id)),
        PolicyTensor::Quantized(_) => Arc::clone(live.tensor(id)),
    };
    let tensors = network.ids().map(tensor).collect();
    let map = Arc::clone(live.map());
    Snapshot::new(live.stamp().version, Arc::clone(network), map, tensors).ok().map(Arc::new)
}

/// Makes a rollout with tokens of several versions wrong. `first` is the version that the request began with.
pub(super) async fn spoil(
    defect: EngineDefect,
    rollout: &mut Rollout,
    request: &GenerateRequest,
    first: &Arc<Snapshot>,
    (make, options): (&EngineFactory, &EngineOptions),
) -> Result<()> {
    match defect {
        EngineDefect::LabelsOneTokenLate => each(rollout, |completion| {
            let versions = completion.versions.clone();
            for (late, before) in completion.versions.iter_mut().skip(1).zip(versions) {
                *late = before;
            }
        }),
        EngineDefect::NamesTheNewestOnly => rollout.stamps.retain(|stamp| *stamp == rollout.stamp),
        EngineDefect::OldWeightsAfterASwap | EngineDefect::OldKeysAfterASwap => {
            let engine = make(options.clone())?;
            engine.load(Arc::clone(first)).await?;
            let old = engine.generate(request, &CancelToken::default()).await?;
            let old = old.groups.into_iter().flat_map(|group| group.completions);
            let new = rollout.groups.iter_mut().flat_map(|group| &mut group.completions);
            new.zip(old).for_each(|(new, old)| mix(defect, new, old));
        }
        _ => {}
    }
    Ok(())
}

fn each(rollout: &mut Rollout, change: impl Fn(&mut Completion)) {
    rollout.groups.iter_mut().flat_map(|group| &mut group.completions).for_each(change);
}

/// The old version's tokens under the new labels, or logprobs between those of both versions, as new weights over old
/// keys give.
fn mix(defect: EngineDefect, new: &mut Completion, old: Completion) {
    let tokens = 0..new.tokens.len().min(old.tokens.len());
    for token in tokens.filter(|&token| new.versions[token] != old.versions[token]) {
        if defect == EngineDefect::OldWeightsAfterASwap {
            (new.tokens[token], new.logprobs[token]) = (old.tokens[token], old.logprobs[token]);
        } else {
            new.logprobs[token] = 0.5 * (new.logprobs[token] + old.logprobs[token]);
        }
    }
}
