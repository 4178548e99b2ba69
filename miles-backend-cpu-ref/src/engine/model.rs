//! A loaded policy version: its prepared weights and the forward over them.

use std::sync::Arc;

use miles_core::network::{self, Network, ParamId};
use miles_core::plugin::{ActivationDtype, Support};
use miles_core::policy::{PolicyError, PolicyStamp, PolicyTensor, Snapshot};
use miles_core::{Error, Result};

use super::batch::Batch;
use super::cache::KvCache;
use super::operations::RolloutOperations;
use crate::kernel::Isa;
use crate::ops::{Context, Forward, PolicyWeights};

/// One policy version, ready to compute.
pub(super) struct LoadedPolicy {
    context: Context,
    activations: ActivationDtype,
    weights: PolicyWeights,
}

impl LoadedPolicy {
    /// Prepares a snapshot that belongs to `network`.
    ///
    /// # Errors
    /// [`PolicyError::TensorMismatch`] for a snapshot of another network, [`Error::Unsupported`] for a format that the
    /// quantizer does not do and for shards with outer scales of their own.
    pub(super) fn new(
        snapshot: &Arc<Snapshot>,
        network: &Arc<Network>,
        context: &Context,
        activations: ActivationDtype,
    ) -> Result<Self> {
        check_network(snapshot, network)?;
        check_formats(snapshot, context)?;
        let weights = PolicyWeights::new(snapshot, context)?;
        Ok(LoadedPolicy { context: context.clone(), activations, weights })
    }

    pub(super) fn stamp(&self) -> PolicyStamp {
        self.weights.stamp()
    }

    /// A tensor as the engine multiplies it.
    pub(super) fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        self.weights.operand(id)
    }

    pub(super) fn network(&self) -> &Network {
        self.weights.snapshot().network()
    }

    pub(super) fn activations(&self) -> ActivationDtype {
        self.activations
    }

    pub(super) fn isa(&self) -> Isa {
        self.context.compute().isa()
    }

    /// Runs `work` on the policy's threads.
    pub(super) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.context.compute().pool().install(work)
    }

    /// Logits `[output rows, vocab]` of a batch; its rows' keys and values are appended to `cache`.
    pub(super) fn forward(&self, batch: &Batch, cache: &mut KvCache) -> Result<Vec<f32>> {
        self.install(|| {
            let forward = self.operations();
            let mut operations = RolloutOperations { forward, batch, cache };
            let hidden = network::forward(self.network(), &mut operations)?;
            if batch.output_rows().is_empty() {
                return Ok(Vec::new());
            }
            Ok(network::logits(self.network(), &mut operations, &hidden)?.into_values())
        })
    }

    /// Logprob of `token` under the distribution of a row of logits `[vocab]` divided by `temperature`.
    pub(super) fn logprob(&self, logits: &[f32], temperature: f32, token: u32) -> f32 {
        self.operations().logprob(logits, temperature, token)
    }

    fn operations(&self) -> Forward<'_> {
        Forward { context: &self.context, weights: &self.weights, activations: self.activations }
    }
}

fn check_network(snapshot: &Snapshot, network: &Arc<Network>) -> Result<(), PolicyError> {
    let found = snapshot.network();
    if Arc::ptr_eq(found, network) {
        return Ok(());
    }
    let mismatch = |tensor: &str, why: String| Err(PolicyError::TensorMismatch { tensor: tensor.to_owned(), why });
    for (expected, actual) in network.parameters.iter().zip(&found.parameters) {
        if expected != actual {
            let why = format!("the engine's network has `{}` {:?} in its place", expected.name, expected.shape);
            return mismatch(&actual.name, why);
        }
    }
    let (expected, actual) = (network.parameters.len(), found.parameters.len());
    if expected != actual {
        return mismatch("*", format!("{actual} tensors, the engine's network has {expected}"));
    }
    if found.config != network.config {
        return mismatch("*", "the model configuration is not that of the engine's network".to_owned());
    }
    Ok(())
}

fn check_formats(snapshot: &Snapshot, context: &Context) -> Result<()> {
    let network = snapshot.network();
    for id in network.ids() {
        if let PolicyTensor::Quantized(tensor) = snapshot.tensor(id).as_ref()
            && context.quantizer().support(tensor.format()) == Support::Unsupported
        {
            return Err(Error::Unsupported {
                operation: format!("tensor `{}` in format `{}`", network.parameter(id).name, tensor.format()),
                backend: context.quantizer().id().to_owned(),
                why: "no rule of that name is built in or registered".to_owned(),
            });
        }
    }
    Ok(())
}
