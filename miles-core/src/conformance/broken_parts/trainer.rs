//! A trainer with one defect.

use std::path::Path;
use std::sync::Arc;

use super::defects;
use crate::Result;
use crate::format::{QuantizeSpec, Source, SourceDtype};
use crate::network::{Network, ParamId};
use crate::plugin::{
    Backend, BatchTotals, Loss, LossInput, LossTerms, Quantizer, SampleScores, ScoredPolicy, TrainBatch, Trainer,
    TrainerInputs, TrainerOptions, UpdateReport,
};
use crate::policy::{Ledger, PolicyContext, PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
use crate::precision::{Recipe, TensorFormat, resolve};

defects! {
    /// What is wrong with a trainer.
    TrainerDefect {
        /// O3: publishes its first version from the F32 masters and not from their BF16 rounding.
        PublishesFromF32 => "publication/first",
        /// Shows the operands of its first version.
        StaleOperands => "publication/operand",
        /// Leaves the ledger empty.
        SkipsTheLedger => "publication/ledger",
        /// O10: takes batches of any version.
        TakesStaleBatches => "refusals/stale",
        /// Publishes behind the caller's back after an update, and so runs before the version is published.
        RunsUnpublished => "refusals/unpublished",
        /// Takes a gradient that is not finite for 0.
        IgnoresNonFinite => "refusals/non_finite",
        /// Goes on with its own masters after restoring.
        RestoresNothing => "resume/next_step",
        /// O16: divides the gradient by the number of micro-batches.
        DividesByMicroBatches => "update/cut",
        /// O16: gives each loss the totals of its sample alone.
        LocalTotals => "update/loss_input",
        /// Steps up the loss.
        Ascends => "update/direction",
        /// Scores with the newest version where the reference is asked for.
        MovesTheReference => "scores/reference",
        /// Logprobs are one unit in the last place off those of the engine.
        OneUlpOff => "scores/engine",
        /// O15: logprobs depend on the number of samples.
        BatchDependent => "scores/batch",
        /// Logprobs are one unit in the last place off from the thirteenth token of a completion on.
        OneUlpOffLate => "scores/engine",
        /// Entropies are one percent high.
        EntropiesOnePercentHigh => "scores/entropy",
        /// The learning rate is one percent high.
        RateOnePercentHigh => "optimizer/rate",
        /// The decay of the second moment is that of the first, and the other way round.
        SwapsTheBetas => "optimizer/moments",
        /// `eps` is one percent high.
        EpsOnePercentHigh => "optimizer/norms",
        /// Clips no gradient.
        IgnoresTheLimit => "optimizer/clip",
        /// Weights do not decay.
        IgnoresTheDecay => "optimizer/decay",
        /// Trains routers that are to stay as they are.
        TrainsEveryRouter => "optimizer/router",
        /// Gradients, and with them their norms, are half of what they are.
        HalvesTheGradient => "optimizer/gradient",
        /// Trains in BF16 where it does not do a format.
        TrainsInBf16 => "recipes/conformance-undeclared",
    }
}

/// The backend with a defect in its trainers.
#[must_use]
pub fn with_broken_trainer(backend: &Backend, defect: TrainerDefect) -> Backend {
    let make = Arc::clone(&backend.trainer);
    let trainer = move |inputs: TrainerInputs<'_>| {
        let micro_batch_tokens = inputs.options.micro_batch_tokens;
        let unrounded = match defect {
            TrainerDefect::PublishesFromF32 => Some(Unrounded::read(&inputs)?),
            _ => None,
        };
        let inputs = match defect {
            TrainerDefect::TrainsInBf16 => in_bf16_where_unsupported(inputs)?,
            _ => inputs,
        };
        let inputs = TrainerInputs { options: options(defect, inputs.options), ..inputs };
        let inner = make(inputs)?;
        Ok(Box::new(BrokenTrainer { inner, defect, micro_batch_tokens, unrounded, live: None, first: None })
            as Box<dyn Trainer>)
    };
    Backend { trainer: Arc::new(trainer), ..backend.clone() }
}

/// The options that a trainer with a defect works with.
fn options(defect: TrainerDefect, mut options: TrainerOptions) -> TrainerOptions {
    let rule = &mut options.optimizer;
    match defect {
        TrainerDefect::SwapsTheBetas => std::mem::swap(&mut rule.beta1, &mut rule.beta2),
        TrainerDefect::EpsOnePercentHigh => rule.eps *= 1.01,
        TrainerDefect::IgnoresTheDecay => rule.weight_decay = 0.0,
        TrainerDefect::IgnoresTheLimit => options.max_grad_norm = None,
        TrainerDefect::TrainsEveryRouter => options.train_router = true,
        _ => {}
    }
    options
}

/// The same inputs with the BF16 recipe in place of a map that the quantizer does not do.
fn in_bf16_where_unsupported(inputs: TrainerInputs<'_>) -> Result<TrainerInputs<'_>> {
    let unsupported = inputs.map.entries().iter().any(|entry| match &entry.format {
        TensorFormat::Quantized(format) => inputs.quantizer.support(format) == crate::plugin::Support::Unsupported,
        TensorFormat::Dense(_) => false,
    });
    if !unsupported {
        return Ok(inputs);
    }
    let map = Arc::new(resolve(&inputs.network, Recipe::Bf16, &[])?);
    Ok(TrainerInputs { map, ..inputs })
}

/// The initial weights, and how to quantize them without rounding them first.
struct Unrounded {
    quantizer: Arc<dyn Quantizer>,
    values: Vec<Vec<f32>>,
}

impl Unrounded {
    fn read(inputs: &TrainerInputs<'_>) -> Result<Self> {
        let read = |id| {
            let mut values = Vec::new();
            inputs.weights.read(id, &mut values)?;
            Ok(values)
        };
        let values = inputs.network.ids().map(read).collect::<Result<_>>()?;
        Ok(Unrounded { quantizer: Arc::clone(&inputs.quantizer), values })
    }

    /// The snapshot with its codes made from the F32 values.
    fn published(&self, honest: &Snapshot) -> Result<Arc<Snapshot>> {
        let network: &Network = honest.network();
        let tensor = |id: crate::network::ParamId| -> Result<Arc<PolicyTensor>> {
            let PolicyTensor::Quantized(tensor) = honest.tensor(id).as_ref() else {
                return Ok(Arc::clone(honest.tensor(id)));
            };
            let source = Source::new(&self.values[id.index()], tensor.rows(), tensor.cols(), SourceDtype::F32, None)?;
            let spec = QuantizeSpec::weight(tensor.format().clone());
            let made = self.quantizer.quantize(&[source], &spec)?;
            Ok(made
                .into_iter()
                .next()
                .map_or_else(|| Arc::clone(honest.tensor(id)), |t| Arc::new(PolicyTensor::Quantized(t))))
        };
        let tensors = network.ids().map(tensor).collect::<Result<_>>()?;
        let version = honest.stamp().version;
        Ok(Arc::new(Snapshot::new(version, Arc::clone(honest.network()), Arc::clone(honest.map()), tensors)?))
    }
}

struct BrokenTrainer {
    inner: Box<dyn Trainer>,
    defect: TrainerDefect,
    micro_batch_tokens: usize,
    unrounded: Option<Unrounded>,
    live: Option<PolicyStamp>,
    first: Option<Arc<Snapshot>>,
}

impl BrokenTrainer {
    /// The batch under the live stamp.
    fn restamped(&self, batch: &TrainBatch) -> Result<TrainBatch> {
        let stamp = self.live.unwrap_or(batch.stamp());
        Ok(TrainBatch::new(batch.samples().to_vec(), stamp, batch.temperature())?)
    }

    fn restamps(&self) -> bool {
        matches!(self.defect, TrainerDefect::TakesStaleBatches | TrainerDefect::RunsUnpublished)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Trainer for BrokenTrainer {
    fn score(&mut self, policy: ScoredPolicy, batch: &TrainBatch) -> Result<Vec<SampleScores>> {
        let mut scores = match (self.defect, policy) {
            (TrainerDefect::MovesTheReference, _) => {
                let batch = self.restamped(batch)?;
                self.inner.score(ScoredPolicy::Current, &batch)?
            }
            _ if self.restamps() => {
                let batch = self.restamped(batch)?;
                self.inner.score(policy, &batch)?
            }
            _ => self.inner.score(policy, batch)?,
        };
        let (off, from) = match self.defect {
            TrainerDefect::OneUlpOff => (1, 0),
            TrainerDefect::OneUlpOffLate => (1, 12),
            TrainerDefect::BatchDependent => (batch.samples().len() as u32, 0),
            _ => (0, 0),
        };
        for scores in &mut scores {
            scores
                .logprobs
                .iter_mut()
                .skip(from)
                .for_each(|logprob| *logprob = f32::from_bits(logprob.to_bits() + off));
            if self.defect == TrainerDefect::EntropiesOnePercentHigh {
                scores.entropies.iter_mut().for_each(|entropy| *entropy *= 1.01);
            }
        }
        Ok(scores)
    }

    fn update(&mut self, batch: &TrainBatch, loss: &dyn Loss, learning_rate: f64) -> Result<UpdateReport> {
        let tokens: usize = batch.samples().iter().map(|sample| sample.tokens.len()).sum();
        let micro_batches = tokens.div_ceil(self.micro_batch_tokens);
        let broken = BrokenLoss { inner: loss, defect: self.defect, micro_batches };
        let restamped = if self.restamps() { Some(self.restamped(batch)?) } else { None };
        let rate = if self.defect == TrainerDefect::RateOnePercentHigh { 1.01 } else { 1.0 };
        let report = self.inner.update(restamped.as_ref().unwrap_or(batch), &broken, learning_rate * rate)?;
        if self.defect == TrainerDefect::RunsUnpublished {
            let (ledger, version) = (Ledger::discard(), PolicyVersion(u64::MAX));
            let hidden = self.inner.publish(PolicyContext { run: "", step: 0, version, ledger: &ledger })?;
            self.live = Some(hidden.stamp());
        }
        Ok(report)
    }

    fn publish(&mut self, context: PolicyContext<'_>) -> Result<Arc<Snapshot>> {
        let ledger = Ledger::discard();
        let context = match self.defect {
            TrainerDefect::SkipsTheLedger => PolicyContext { ledger: &ledger, ..context },
            _ => context,
        };
        let published = self.inner.publish(context)?;
        self.live = Some(published.stamp());
        self.first.get_or_insert_with(|| Arc::clone(&published));
        match &self.unrounded {
            Some(unrounded) if published.stamp().version == PolicyVersion(0) => unrounded.published(&published),
            _ => Ok(published),
        }
    }

    fn save(&self, directory: &Path) -> Result<()> {
        self.inner.save(directory)
    }

    fn restore(&mut self, directory: &Path) -> Result<()> {
        match self.defect {
            TrainerDefect::RestoresNothing => Ok(()),
            _ => self.inner.restore(directory),
        }
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        match (&self.first, self.inner.operand(id)) {
            (Some(first), Ok(_)) if self.defect == TrainerDefect::StaleOperands => {
                Ok(first.tensor(id).as_ref().clone())
            }
            (_, shown) => shown,
        }
    }
}

/// A loss that a broken trainer evaluates in its own way.
struct BrokenLoss<'a> {
    inner: &'a dyn Loss,
    defect: TrainerDefect,
    micro_batches: usize,
}

impl Loss for BrokenLoss<'_> {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        let totals = match self.defect {
            TrainerDefect::LocalTotals => BatchTotals { samples: 1, tokens: input.logprobs.len() },
            _ => *totals,
        };
        let terms = self.inner.evaluate(input, &totals, gradient);
        for slope in gradient.iter_mut() {
            match self.defect {
                TrainerDefect::Ascends => *slope = -*slope,
                TrainerDefect::HalvesTheGradient => *slope /= 2.0,
                TrainerDefect::DividesByMicroBatches => *slope /= self.micro_batches as f32,
                TrainerDefect::IgnoresNonFinite if !slope.is_finite() => *slope = 0.0,
                _ => {}
            }
        }
        terms
    }
}
