//! Seconds of one training step on a checkpoint directory: `train_step DIR [SAMPLES TOKENS RECIPE]` (defaults 8 128 bf16).
//!
//! Random tokens, the second half of each sample scored. Prints scoring (forward only), the update (forward, backward,
//! AdamW) and the publication of the next version.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use miles_backend_cpu_ref::kernel::Compute;
use miles_backend_cpu_ref::ops::Context;
use miles_backend_cpu_ref::trainer::CpuTrainer;
use miles_core::checkpoint::Checkpoint;
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source, builtin_rule};
use miles_core::plugin::{
    ActivationDtype, AdamW, BatchTotals, Loss, LossInput, LossTerms, Quantizer, ScoredPolicy, Support, TrainBatch,
    TrainSample, Trainer, TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion};
use miles_core::precision::{Recipe, resolve};
use miles_core::random::{Coordinates, Stream, uniform};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("usage: train_step DIR [SAMPLES TOKENS RECIPE]")?;
    let number = |index: usize, default: usize| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (samples, tokens) = (number(1, 8)?, number(2, 128)?);
    let recipe: Recipe = arguments.get(3).map_or("bf16", String::as_str).parse()?;
    let threads = std::thread::available_parallelism()?;
    let checkpoint = Checkpoint::open(Path::new(directory))?;
    let network = checkpoint.network();
    let quantizer: Arc<dyn Quantizer> = Arc::new(Rules);
    let context =
        Context::new(Compute::new(NonZeroUsize::new(threads.get()).unwrap_or(threads))?, Arc::clone(&quantizer));
    let inputs = TrainerInputs {
        network: Arc::clone(network),
        map: Arc::new(resolve(network, recipe, &[])?),
        weights: &checkpoint,
        quantizer,
        options: TrainerOptions {
            activations: ActivationDtype::Bf16,
            optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
            max_grad_norm: Some(1.0),
            micro_batch_tokens: samples * tokens,
            train_router: true,
            threads: None,
        },
        scratch: None,
    };
    let mut trainer = timed("load", || CpuTrainer::new(inputs, &context))?;
    let ledger = Ledger::discard();
    for version in 0..3 {
        let version = PolicyVersion(version);
        let context = PolicyContext { run: "bench", step: version.0, version, ledger: &ledger };
        let snapshot = timed("publish", || trainer.publish(context))?;
        let samples = (0..samples).map(|index| sample(index, tokens, network.config.vocab_size)).collect();
        let batch = TrainBatch::new(samples, snapshot.stamp(), 1.0)?;
        timed("score", || trainer.score(ScoredPolicy::Current, &batch))?;
        timed("update", || trainer.update(&batch, &MeanLogprob, 1e-6))?;
    }
    Ok(())
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what:8} {:.3} s", start.elapsed().as_secs_f64());
    result
}

fn sample(index: usize, tokens: usize, vocab_size: usize) -> TrainSample {
    let draw = |token| {
        let at = Coordinates { prompt: index as u64, token: token as u32, ..Coordinates::default() };
        (uniform(0, Stream::Data, at) * vocab_size as f64) as u32
    };
    let prompt_tokens = (tokens / 2).max(1);
    TrainSample {
        tokens: (0..tokens).map(draw).collect(),
        prompt_tokens,
        rollout_logprobs: vec![0.0; tokens - prompt_tokens],
        reference_logprobs: None,
        advantage: 1.0,
    }
}

/// The mean logprob, made larger.
struct MeanLogprob;

impl Loss for MeanLogprob {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        gradient.fill(-1.0 / totals.tokens as f32);
        let sum: f64 = input.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
        LossTerms { loss: -sum / totals.tokens as f64, clipped_tokens: 0 }
    }
}

/// The format rules on one thread.
struct Rules;

impl Quantizer for Rules {
    fn id(&self) -> &str {
        "rules"
    }

    fn support(&self, format: &FormatId) -> Support {
        if builtin_rule(format).is_some() { Support::Native } else { Support::Unsupported }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> miles_core::Result<Vec<QuantizedTensor>> {
        match builtin_rule(&spec.format) {
            Some(rule) => Ok(rule.quantize_joint(sources, spec)?),
            None => Err(unsupported(&spec.format)),
        }
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> miles_core::Result<Vec<f32>> {
        match builtin_rule(tensor.format()) {
            Some(rule) => Ok(rule.dequantize(tensor)?),
            None => Err(unsupported(tensor.format())),
        }
    }
}

fn unsupported(format: &FormatId) -> miles_core::Error {
    miles_core::Error::Unsupported {
        operation: format.to_string(),
        backend: "rules".to_owned(),
        why: "only built-in formats are measured".to_owned(),
    }
}
