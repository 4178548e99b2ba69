//! The trainer: forward, backward and optimizer, explicit per operation.
//!
//! ```text
//! masters --publish--> snapshot --> packed weights
//!                               |              |
//! batch --micro_batches--> Packed --Tape--> hidden --ScoringHead--> logprobs --Loss--> gradients --AdamW--> masters
//! ```
//!
//! A version's weights are quantized once, when it is published; every forward pass until the next publication multiplies
//! those bytes. There is no other high-precision copy than the masters: what a backward mode needs of it is rounded
//! on the fly.

mod backward;
mod batch;
mod counts;
mod gradients;
mod head;
mod masters;
mod optimizer;
mod state;
mod tape;

use std::path::Path;
use std::sync::Arc;

use miles_core::Result;
use miles_core::format::{FormatId, QuantizeSpec, builtin_rule};
use miles_core::network::{Network, ParamId, forward};
use miles_core::plugin::{
    BatchTotals, Loss, LossInput, Quantizer, SampleScores, ScoredPolicy, TrainBatch, TrainError, Trainer,
    TrainerInputs, TrainerOptions, UpdateReport,
};
use miles_core::policy::{PolicyContext, PolicyError, PolicyTensor, Snapshot, quantize_policy};
use miles_core::precision::{PrecisionMap, TensorFormat};

pub use backward::BackwardPass;
pub use batch::{Packed, micro_batches};
pub use gradients::Gradients;
pub use head::{Judge, LOGITS_BUDGET_BYTES, ScoringHead};
pub use masters::Masters;
pub use optimizer::Optimizer;
pub use tape::{Node, Tape, Tracked, TrackedRouting};

use counts::ActivationCounts;

use crate::ops::linear_backward::check_backward_mode;
use crate::ops::weights::refuse_scales;
use crate::ops::{Context, Forward, PolicyWeights};

/// The CPU trainer of one policy.
pub struct CpuTrainer {
    context: Context,
    network: Arc<Network>,
    map: Arc<PrecisionMap>,
    quantizer: Arc<dyn Quantizer>,
    options: TrainerOptions,
    masters: Masters,
    optimizer: Optimizer,
    /// The version that was published for the present masters.
    current: Option<Arc<PolicyWeights>>,
    /// The first version.
    reference: Option<Arc<PolicyWeights>>,
}

impl CpuTrainer {
    /// Loads the masters, one tensor at a time. `context` shares packed weights with an engine of the same process;
    /// quantizer and thread count are those of `inputs`.
    ///
    /// # Errors
    /// If a weight cannot be read, a backward mode is unsupported, routed experts are cut into shards with outer scales of
    /// their own, or threads are refused.
    pub fn new(inputs: TrainerInputs<'_>, context: &Context) -> Result<Self> {
        for id in inputs.network.ids() {
            let entry = inputs.map.entry(id);
            if let TensorFormat::Quantized(format) = &entry.format {
                check_backward_mode(format, entry.backward)?;
                check_cut(&inputs, id, format)?;
            }
        }
        let context = context.with_quantizer(Arc::clone(&inputs.quantizer));
        let context = match inputs.options.threads {
            None => context,
            Some(threads) => context.with_threads(threads)?,
        };
        let options = &inputs.options;
        let optimizer = Optimizer::new(options.optimizer.clone(), &inputs.network, options.train_router, options.seed);
        Ok(CpuTrainer {
            masters: Masters::load(&inputs.network, inputs.weights, options.masters)?,
            optimizer,
            context,
            network: inputs.network,
            map: inputs.map,
            quantizer: inputs.quantizer,
            options: inputs.options,
            current: None,
            reference: None,
        })
    }

    /// The master weights.
    #[must_use]
    pub fn masters(&self) -> &Masters {
        &self.masters
    }

    /// The packed weights of the current version, if one is published.
    #[must_use]
    pub fn current_weights(&self) -> Option<&Arc<PolicyWeights>> {
        self.current.as_ref()
    }

    /// Forward and backward over the whole batch, without an optimizer step: the gradients of every trained parameter,
    /// and the report as far as it does not need their norms.
    ///
    /// # Errors
    /// As [`Trainer::update`], except for gradients that are not finite.
    pub fn gradients(&self, batch: &TrainBatch, loss: &dyn Loss) -> Result<(Gradients, UpdateReport)> {
        let weights = self.weights_for("update", batch)?;
        let samples = batch.samples();
        let totals = BatchTotals { samples: samples.len(), tokens: batch.completion_tokens() };
        let mut gradients = Gradients::zeroed(&self.network, self.options.train_router);
        let mut report = UpdateReport::default();
        let mut counts = ActivationCounts::default();
        for cut in micro_batches(samples, self.options.micro_batch_tokens) {
            report.micro_batches += 1;
            let samples = &samples[cut];
            let packed = Packed::new(samples);
            let forward_ops = self.forward(&weights);
            let mut tape = Tape::recording(forward_ops, &packed);
            let hidden = forward(&self.network, &mut tape)?;
            counts.add_tape(&tape)?;
            counts.add_head(&forward_ops, &hidden.value)?;
            let mut pass = BackwardPass { forward: forward_ops, masters: &self.masters, gradients: &mut gradients };
            let mut judge = |index: usize, logprobs: &[f32], gradient: &mut [f32]| {
                let sample = &samples[index];
                let input = LossInput {
                    logprobs,
                    rollout_logprobs: &sample.rollout_logprobs,
                    reference_logprobs: sample.reference_logprobs.as_deref(),
                    advantage: sample.advantage,
                };
                let terms = loss.evaluate(&input, &totals, gradient);
                report.loss += terms.loss;
                report.clipped_tokens += terms.clipped_tokens;
            };
            let head = ScoringHead::new(forward_ops, batch.temperature());
            let (scores, seed) =
                head.score_and_backward(&hidden.value, &packed.targets, &packed.scored, &mut judge, &mut pass)?;
            report.scores.extend(scores);
            pass.run(tape, hidden.node, seed)?;
        }
        gradients.join_tied();
        report.activation_counts = counts.into_report();
        Ok((gradients, report))
    }

    fn forward<'a>(&'a self, weights: &'a PolicyWeights) -> Forward<'a> {
        Forward { context: &self.context, weights, activations: self.options.activations }
    }

    /// The current version, checked against the one that the batch was sampled from.
    fn weights_for(&self, operation: &'static str, batch: &TrainBatch) -> Result<Arc<PolicyWeights>> {
        let current = self.current.as_ref().ok_or(TrainError::Unpublished { operation })?;
        let (expected, actual) = (current.stamp(), batch.stamp());
        if expected != actual {
            return Err(PolicyError::StaleVersion { operation, expected, actual }.into());
        }
        batch::check_samples(batch.samples(), &self.network)?;
        Ok(Arc::clone(current))
    }
}

impl Trainer for CpuTrainer {
    fn score(&mut self, policy: ScoredPolicy, batch: &TrainBatch) -> Result<Vec<SampleScores>> {
        let weights = match policy {
            ScoredPolicy::Current => self.weights_for("score", batch)?,
            ScoredPolicy::Reference => {
                batch::check_samples(batch.samples(), &self.network)?;
                let published = self.current.as_ref().and(self.reference.as_ref());
                Arc::clone(published.ok_or(TrainError::Unpublished { operation: "score" })?)
            }
        };
        let samples = batch.samples();
        let mut scores = Vec::with_capacity(samples.len());
        for cut in micro_batches(samples, self.options.micro_batch_tokens) {
            let packed = Packed::new(&samples[cut]);
            let forward_ops = self.forward(&weights);
            let hidden = forward(&self.network, &mut Tape::forgetting(forward_ops, &packed))?;
            let all = ScoringHead::new(forward_ops, batch.temperature()).score(&hidden.value, &packed.targets)?;
            scores.extend(packed.scored.iter().map(|rows| SampleScores {
                logprobs: all.logprobs[rows.clone()].to_vec(),
                entropies: all.entropies[rows.clone()].to_vec(),
            }));
        }
        Ok(scores)
    }

    fn update(&mut self, batch: &TrainBatch, loss: &dyn Loss, learning_rate: f64) -> Result<UpdateReport> {
        let (gradients, mut report) = self.gradients(batch, loss)?;
        let compute = self.context.compute();
        let squares = gradients.squares(&self.network, compute)?;
        report.grad_norm = squares.norm();
        report.part_grad_norms = squares.norms();
        let scale = match self.options.max_grad_norm {
            Some(most) if report.grad_norm > most => most / report.grad_norm,
            _ => 1.0,
        };
        self.current = None;
        self.optimizer.step(&self.network, &mut self.masters, &gradients, scale, learning_rate, compute);
        Ok(report)
    }

    fn publish(&mut self, context: PolicyContext<'_>) -> Result<Arc<Snapshot>> {
        let snapshot = quantize_policy(&self.network, &self.map, self.quantizer.as_ref(), &self.masters, context)?;
        let snapshot = Arc::new(snapshot);
        let weights = Arc::new(PolicyWeights::new(&snapshot, &self.context)?);
        self.reference.get_or_insert_with(|| Arc::clone(&weights));
        self.current = Some(weights);
        Ok(snapshot)
    }

    fn save(&self, directory: &Path) -> Result<()> {
        state::save(directory, &self.network, &self.masters, &self.optimizer, self.map.plan())
    }

    fn restore(&mut self, directory: &Path) -> Result<()> {
        let plan = self.map.plan();
        state::restore(directory, &self.network, &mut self.masters, &mut self.optimizer, plan)?;
        self.current = None;
        Ok(())
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        let unpublished = TrainError::Unpublished { operation: "operand" };
        self.current.as_ref().ok_or(unpublished)?.operand(id)
    }
}

/// Refuses, before anything is loaded, shards that the products cannot multiply. A user's own format is looked at when
/// its first version is published.
fn check_cut(inputs: &TrainerInputs<'_>, id: ParamId, format: &FormatId) -> Result<()> {
    let (parameter, partition) = (inputs.network.parameter(id), inputs.map.partition(&inputs.network, id));
    let Some(rule) = builtin_rule(format).filter(|_| !partition.is_whole()) else { return Ok(()) };
    let (rows, cols) = parameter.rows_cols();
    let spec = QuantizeSpec::weight(format.clone()).with_partition(partition);
    let layout = rule.layout(rows, cols, &spec)?;
    refuse_scales(&parameter.name, (rows, cols), spec, &layout)
}
