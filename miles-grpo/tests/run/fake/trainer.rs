//! Trains the fake model with momentum, so that there is optimizer state to lose.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use miles_core::Result;
use miles_core::network::{Network, ParamId};
use miles_core::plugin::{
    BatchTotals, Loss, LossInput, Quantizer, SampleScores, ScoredPolicy, TrainBatch, TrainError, TrainSample, Trainer,
    TrainerInputs, UpdateReport,
};
use miles_core::policy::{PolicyContext, PolicyError, PolicyStamp, Snapshot, WeightSource, quantize_policy};
use miles_core::precision::PrecisionMap;

use super::Probe;
use super::policy::FakePolicy;

const MOMENTUM: f32 = 0.5;

pub struct FakeTrainer {
    network: Arc<Network>,
    map: Arc<PrecisionMap>,
    quantizer: Arc<dyn Quantizer>,
    masters: Vec<Vec<f32>>,
    momentum: FakePolicy,
    reference: Option<FakePolicy>,
    current: Option<(PolicyStamp, FakePolicy)>,
    probe: Probe,
}

impl FakeTrainer {
    pub fn new(inputs: TrainerInputs<'_>, probe: Probe) -> Result<Self> {
        let mut masters = Vec::new();
        for id in inputs.network.ids() {
            let mut values = Vec::new();
            inputs.weights.read(id, &mut values)?;
            masters.push(values);
        }
        let momentum = FakePolicy::zeros(&inputs.network);
        let TrainerInputs { network, map, quantizer, .. } = inputs;
        Ok(FakeTrainer { network, map, quantizer, masters, momentum, reference: None, current: None, probe })
    }

    fn scores(&self, policy: &FakePolicy, batch: &TrainBatch) -> Vec<SampleScores> {
        batch.samples().iter().map(|sample| self.score_sample(policy, sample, batch.temperature())).collect()
    }

    fn score_sample(&self, policy: &FakePolicy, sample: &TrainSample, temperature: f32) -> SampleScores {
        let mut scores = SampleScores::default();
        let off = if self.probe.trainer_is_off.load(Ordering::Relaxed) { 1e-3 } else { 0.0 };
        for at in sample.prompt_tokens..sample.tokens.len() {
            let logprobs = policy.logprobs(&sample.tokens[..at], temperature);
            scores.logprobs.push(logprobs[sample.tokens[at] as usize] + off);
            scores.entropies.push(logprobs.iter().map(|logprob| -logprob.exp() * logprob).sum());
        }
        scores
    }

    fn current(&self, operation: &'static str, stamp: PolicyStamp) -> Result<&FakePolicy> {
        let (current, policy) = self.current.as_ref().ok_or(TrainError::Unpublished { operation })?;
        if *current != stamp {
            return Err(PolicyError::StaleVersion { operation, expected: *current, actual: stamp }.into());
        }
        Ok(policy)
    }
}

struct Masters<'a>(&'a [Vec<f32>]);

impl WeightSource for Masters<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        into.clone_from(&self.0[id.index()]);
        Ok(())
    }
}

impl Trainer for FakeTrainer {
    fn score(&mut self, policy: ScoredPolicy, batch: &TrainBatch) -> Result<Vec<SampleScores>> {
        let policy = match policy {
            ScoredPolicy::Current => self.current("score", batch.stamp())?,
            ScoredPolicy::Reference => self.reference.as_ref().ok_or(TrainError::Unpublished { operation: "score" })?,
        };
        Ok(self.scores(policy, batch))
    }

    fn update(&mut self, batch: &TrainBatch, loss: &dyn Loss, learning_rate: f64) -> Result<UpdateReport> {
        let policy = self.current("update", batch.stamp())?.clone();
        self.probe.trained.lock().unwrap().extend(batch.samples().iter().cloned());
        let totals = BatchTotals { samples: batch.samples().len(), tokens: batch.completion_tokens() };
        let mut gradient = FakePolicy::zeros(&self.network);
        let mut report = UpdateReport { scores: self.scores(&policy, batch), micro_batches: 1, ..Default::default() };
        for (sample, scores) in batch.samples().iter().zip(&report.scores) {
            let input = LossInput {
                logprobs: &scores.logprobs,
                rollout_logprobs: &sample.rollout_logprobs,
                reference_logprobs: sample.reference_logprobs.as_deref(),
                advantage: sample.advantage,
            };
            let mut d_logprobs = vec![0.0; scores.logprobs.len()];
            let terms = loss.evaluate(&input, &totals, &mut d_logprobs);
            report.loss += terms.loss;
            report.clipped_tokens += terms.clipped_tokens;
            for (token, &scale) in d_logprobs.iter().enumerate() {
                let at = sample.prompt_tokens + token;
                policy.backward(&sample.tokens[..at], sample.tokens[at], batch.temperature(), scale, &mut gradient);
            }
        }
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let norms = [norm(&gradient.embedding), norm(&gradient.head)];
        report.grad_norm = norms[0].hypot(norms[1]);
        report.part_grad_norms = vec![("embedding".to_owned(), norms[0]), ("head".to_owned(), norms[1])];
        let ids = [self.network.embedding, self.network.head.weight];
        let moved = [(&gradient.embedding, &mut self.momentum.embedding), (&gradient.head, &mut self.momentum.head)];
        for (id, (gradient, momentum)) in ids.into_iter().zip(moved) {
            for ((master, m), g) in self.masters[id.index()].iter_mut().zip(momentum).zip(gradient) {
                *m = MOMENTUM * *m + g;
                *master -= learning_rate as f32 * *m;
            }
        }
        self.current = None;
        Ok(report)
    }

    fn publish(&mut self, context: PolicyContext<'_>) -> Result<Arc<Snapshot>> {
        let source = Masters(&self.masters);
        let snapshot = quantize_policy(&self.network, &self.map, self.quantizer.as_ref(), &source, context)?;
        let policy = FakePolicy::of(&snapshot);
        self.reference.get_or_insert_with(|| policy.clone());
        self.current = Some((snapshot.stamp(), policy));
        Ok(Arc::new(snapshot))
    }

    fn save(&self, directory: &Path) -> Result<()> {
        let io = |source| PolicyError::Io { path: directory.display().to_string(), source };
        let masters = serde_json::to_vec(&self.masters).unwrap();
        std::fs::write(directory.join("masters.json"), masters).map_err(io)?;
        if self.probe.disk_is_full.load(Ordering::Relaxed) {
            return Err(io(std::io::ErrorKind::StorageFull.into()).into());
        }
        let momentum = serde_json::to_vec(&(&self.momentum.embedding, &self.momentum.head)).unwrap();
        std::fs::write(directory.join("momentum.json"), momentum).map_err(io)?;
        Ok(())
    }

    fn restore(&mut self, directory: &Path) -> Result<()> {
        let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
        self.masters = serde_json::from_slice(&read("masters.json")).unwrap();
        (self.momentum.embedding, self.momentum.head) = serde_json::from_slice(&read("momentum.json")).unwrap();
        self.current = None;
        Ok(())
    }
}
