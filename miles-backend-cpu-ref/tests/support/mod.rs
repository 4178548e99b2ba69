//! What the integration tests share: tiny models, a plain quantizer, batches and losses.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miles_backend_cpu_ref::kernel::{Compute, Isa};
use miles_backend_cpu_ref::ops::Context;
use miles_backend_cpu_ref::trainer::CpuTrainer;
use miles_core::Result;
use miles_core::checkpoint::Checkpoint;
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source, builtin_rule};
use miles_core::network::Network;
use miles_core::plugin::{
    ActivationDtype, AdamW, BatchTotals, Loss, LossInput, LossTerms, MasterDtype, Quantizer, Support, TrainBatch,
    TrainSample, Trainer, TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyStamp, PolicyVersion, Snapshot, WeightSource};
use miles_core::precision::PrecisionMap;
use miles_core::random::{Coordinates, Stream, uniform};

/// Every fixture model.
pub const FAMILIES: [&str; 7] =
    ["llama-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3", "qwen3-moe", "qwen3-moe-sharded", "deepseek-v3"];

/// A file under `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

/// The format rules, one after the other.
pub struct RuleQuantizer;

impl Quantizer for RuleQuantizer {
    fn id(&self) -> &str {
        "test/rules"
    }

    fn support(&self, format: &FormatId) -> Support {
        if builtin_rule(format).is_some() { Support::Native } else { Support::Unsupported }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        Ok(builtin_rule(&spec.format).expect("a built-in format").quantize_joint(sources, spec)?)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Ok(builtin_rule(tensor.format()).expect("a built-in format").dequantize(tensor)?)
    }
}

/// A context with its own packed weights.
pub fn context(isa: Isa, threads: usize) -> Context {
    let compute = Compute::new(NonZeroUsize::new(threads).expect("threads")).expect("a pool");
    Context::new(Compute::from_parts(isa, Arc::clone(compute.pool())), Arc::new(RuleQuantizer))
}

/// Options that most tests start from.
pub fn options(activations: ActivationDtype) -> TrainerOptions {
    TrainerOptions {
        activations,
        optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        max_grad_norm: Some(1.0),
        micro_batch_tokens: 1 << 20,
        train_router: true,
        masters: MasterDtype::F32,
        seed: 0,
        threads: None,
    }
}

/// A trainer whose version 0 is published.
pub fn published(
    context: &Context,
    network: &Arc<Network>,
    map: PrecisionMap,
    weights: &dyn WeightSource,
    options: TrainerOptions,
) -> (CpuTrainer, Arc<Snapshot>) {
    let inputs = TrainerInputs {
        network: Arc::clone(network),
        map: Arc::new(map),
        weights,
        quantizer: Arc::new(RuleQuantizer),
        options,
        scratch: None,
    };
    let mut trainer = CpuTrainer::new(inputs, context).expect("a trainer");
    let snapshot = publish(&mut trainer, 0);
    (trainer, snapshot)
}

/// Publishes a version without a ledger.
pub fn publish(trainer: &mut CpuTrainer, version: u64) -> Arc<Snapshot> {
    let ledger = Ledger::discard();
    let version = PolicyVersion(version);
    let context = PolicyContext { run: "test", step: version.0, version, ledger: &ledger };
    trainer.publish(context).expect("publication")
}

/// Opens a fixture.
pub fn fixture(family: &str) -> Checkpoint {
    Checkpoint::open(&data(&format!("fixtures/{family}"))).expect("a fixture")
}

/// `loss = sum of w * logprob`, where w is carried in the place of the rollout logprobs.
pub struct WeightedSum;

impl Loss for WeightedSum {
    fn evaluate(&self, input: &LossInput<'_>, _totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        gradient.copy_from_slice(input.rollout_logprobs);
        let terms = input.logprobs.iter().zip(input.rollout_logprobs);
        LossTerms { loss: terms.map(|(&p, &w)| f64::from(p) * f64::from(w)).sum(), clipped_tokens: 0 }
    }
}

/// Samples of random lengths and tokens, weights in [-1, 1).
pub fn random_samples(seed: u64, count: usize, vocab_size: usize, longest: usize) -> Vec<TrainSample> {
    let draw = |sample: usize, token: usize| {
        uniform(
            seed,
            Stream::Data,
            Coordinates { prompt: sample as u64, token: token as u32, ..Coordinates::default() },
        )
    };
    (0..count)
        .map(|sample| {
            let tokens = 3 + (draw(sample, 0) * (longest - 2) as f64) as usize;
            let prompt_tokens = 1 + (draw(sample, 1) * (tokens - 1) as f64) as usize;
            let id = |token| (draw(sample, 2 + token) * vocab_size as f64) as u32;
            let weight = |token| (draw(sample, 10_000 + token) * 2.0 - 1.0) as f32;
            TrainSample {
                tokens: (0..tokens).map(id).collect(),
                prompt_tokens,
                rollout_logprobs: (0..tokens - prompt_tokens).map(weight).collect(),
                reference_logprobs: None,
                advantage: 1.0,
            }
        })
        .collect()
}

/// A batch at temperature 1.
pub fn batch(samples: &[TrainSample], stamp: PolicyStamp) -> TrainBatch {
    TrainBatch::new(samples.to_vec(), stamp, 1.0).expect("a batch")
}

/// A safetensors file in memory.
pub struct Tensors {
    name: String,
    tensors: HashMap<String, (String, Vec<usize>, Vec<u8>)>,
}

impl Tensors {
    /// Reads a file under `tests/data`.
    pub fn read(path: &str) -> Self {
        let bytes = std::fs::read(data(path)).expect("a data file");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensors = file.tensors().into_iter();
        let owned = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            (name, (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec()))
        };
        Tensors { name: path.to_owned(), tensors: tensors.map(owned).collect() }
    }

    fn get(&self, name: &str) -> &(String, Vec<usize>, Vec<u8>) {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no `{name}`", self.name))
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Shape.
    pub fn shape(&self, name: &str) -> &[usize] {
        &self.get(name).1
    }

    /// F32 or BF16 values.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = self.get(name);
        match dtype.as_str() {
            "F32" => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            "BF16" => {
                bytes.as_chunks().0.iter().map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect()
            }
            other => panic!("`{name}` is {other}"),
        }
    }

    /// F64 values.
    pub fn f64(&self, name: &str) -> Vec<f64> {
        let (dtype, _, bytes) = self.get(name);
        assert_eq!(dtype, "F64", "{name}");
        bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
    }

    /// I32 values.
    pub fn u32(&self, name: &str) -> Vec<u32> {
        let (dtype, _, bytes) = self.get(name);
        assert_eq!(dtype, "I32", "{name}");
        bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as u32).collect()
    }
}

/// Fails at the first element farther than `tolerance` times (the root mean square of `want` plus its own magnitude).
#[track_caller]
pub fn assert_close(what: &str, want: &[f64], got: &[f32], tolerance: f64) {
    assert_eq!(want.len(), got.len(), "{what}: lengths differ");
    let scale = (want.iter().map(|w| w * w).sum::<f64>() / want.len().max(1) as f64).sqrt();
    for (index, (want, &got)) in want.iter().zip(got).enumerate() {
        let error = (want - f64::from(got)).abs();
        assert!(
            error <= tolerance * (scale + want.abs()),
            "{what}[{index}]: want {want:e}, got {got:e} (rms {scale:e})"
        );
    }
}

/// Weights by name; what is not named is drawn from a fixed normal distribution.
pub struct NamedWeights<'a> {
    /// The network.
    pub network: &'a Network,
    /// Values by parameter name.
    pub values: HashMap<String, Vec<f32>>,
}

impl WeightSource for NamedWeights<'_> {
    fn read(&self, id: miles_core::network::ParamId, into: &mut Vec<f32>) -> Result<()> {
        let parameter = self.network.parameter(id);
        into.clear();
        match self.values.get(&parameter.name) {
            Some(values) => into.extend_from_slice(values),
            None => into.extend((0..parameter.elements()).map(|index| {
                let at = Coordinates { prompt: index as u64, sample: id.0, ..Coordinates::default() };
                0.1 * miles_core::random::normal(1, Stream::Weights, at) as f32
            })),
        }
        Ok(())
    }
}

/// Bits, for exact comparisons.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
