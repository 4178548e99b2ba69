//! Engines and trainers put together by hand, each with threads and packed weights of its own, so that nothing but a
//! snapshot passes from one to the other.

use std::sync::Arc;

use futures_lite::future::block_on;
use miles_backend_cpu_ref::{CpuEngine, CpuRef, CpuTrainer};
use miles_core::checkpoint::Checkpoint;
use miles_core::format::QuantizedTensor;
use miles_core::network::Network;
use miles_core::plugin::{
    ActivationDtype, AdamW, CancelToken, EngineOptions, GenerateRequest, MasterDtype, PromptRequest, PublicationMode,
    Rollout, RolloutEngine, Sampling, TrainBatch, TrainSample, Trainer, TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
use miles_core::precision::{PrecisionMap, Recipe, resolve};
use miles_core::random::{Coordinates, Stream, uniform};

/// Trainer options: BF16 activations, everything trained.
pub fn options(micro_batch_tokens: usize) -> TrainerOptions {
    TrainerOptions {
        activations: ActivationDtype::Bf16,
        optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        max_grad_norm: Some(1.0),
        micro_batch_tokens,
        train_router: true,
        masters: MasterDtype::F32,
        seed: 0,
        threads: None,
    }
}

/// A trainer of a checkpoint with version 0 published.
pub fn trainer(cpu: &CpuRef, checkpoint: &Checkpoint, recipe: Recipe, options: TrainerOptions) -> CpuTrainer {
    let inputs = TrainerInputs {
        network: Arc::clone(checkpoint.network()),
        map: map(checkpoint.network(), recipe),
        weights: checkpoint,
        quantizer: Arc::new(cpu.quantizer().unwrap()),
        options,
        scratch: None,
    };
    let mut trainer = CpuTrainer::new(inputs, &cpu.context().unwrap()).unwrap();
    publish(&mut trainer, 0);
    trainer
}

/// The precision map of a recipe.
pub fn map(network: &Network, recipe: Recipe) -> Arc<PrecisionMap> {
    Arc::new(resolve(network, recipe, &[]).unwrap())
}

/// Publishes a version without a ledger.
pub fn publish(trainer: &mut CpuTrainer, version: u64) -> Arc<Snapshot> {
    let ledger = Ledger::discard();
    let version = PolicyVersion(version);
    trainer.publish(PolicyContext { run: "test", step: version.0, version, ledger: &ledger }).unwrap()
}

/// The version that a trainer's forward pass multiplies.
pub fn current(trainer: &CpuTrainer) -> Arc<Snapshot> {
    Arc::clone(trainer.current_weights().unwrap().snapshot())
}

/// An engine with a version loaded.
pub fn engine(cpu: &CpuRef, snapshot: &Arc<Snapshot>, max_running: usize) -> CpuEngine {
    let options = EngineOptions {
        network: Arc::clone(snapshot.network()),
        activations: ActivationDtype::Bf16,
        max_running,
        context_tokens: 128,
        threads: None,
        partition: snapshot.map().plan(),
        publication: PublicationMode::Finish,
    };
    let engine = cpu.engine(options).unwrap();
    block_on(engine.load(Arc::clone(snapshot))).unwrap();
    engine
}

/// Samples to the end.
pub fn generate(engine: &dyn RolloutEngine, request: &GenerateRequest) -> Rollout {
    block_on(engine.generate(request, &CancelToken::default())).unwrap()
}

/// Five prompts of 1 to 19 tokens, 11 completions in all.
pub fn request(vocab_size: usize, temperature: f32, max_new_tokens: usize, eos_token_ids: &[u32]) -> GenerateRequest {
    let prompt = |key: u64, tokens: usize, completions| PromptRequest {
        key,
        tokens: random_ids(key, tokens, vocab_size),
        completions,
    };
    GenerateRequest {
        prompts: vec![prompt(4, 5, 3), prompt(9, 1, 1), prompt(2, 19, 4), prompt(0, 2, 2), prompt(7, 11, 1)],
        sampling: Sampling {
            temperature,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_new_tokens,
            eos_token_ids: eos_token_ids.to_vec(),
        },
        seed: 77,
        step: 3,
    }
}

/// Token ids that depend on `key` alone.
pub fn random_ids(key: u64, count: usize, vocab_size: usize) -> Vec<u32> {
    let at = |token: usize| Coordinates { prompt: key, token: token as u32, ..Coordinates::default() };
    (0..count).map(|token| (uniform(5, Stream::Data, at(token)) * vocab_size as f64) as u32).collect()
}

/// Every completion of a rollout as a batch of the policy `stamp`, with advantages of both signs.
pub fn batch(rollout: &Rollout, stamp: PolicyStamp) -> TrainBatch {
    let samples = rollout.groups.iter().flat_map(|group| {
        group.completions.iter().map(|completion| TrainSample {
            tokens: [group.prompt_tokens.as_slice(), &completion.tokens].concat(),
            prompt_tokens: group.prompt_tokens.len(),
            rollout_logprobs: completion.logprobs.clone(),
            reference_logprobs: None,
            advantage: 0.0,
        })
    });
    let with_advantage = |(index, sample): (usize, TrainSample)| TrainSample {
        advantage: [1.0, -0.5, 0.25, -1.25][index % 4],
        ..sample
    };
    let samples = samples.enumerate().map(with_advantage).collect();
    TrainBatch::new(samples, stamp, rollout.logprob_temperature).unwrap()
}

/// The version with one bit changed: the sign of the largest code of one quantized tensor.
///
/// The stamp is that of the changed tensors; nothing else differs.
pub fn with_flipped_bit(snapshot: &Snapshot, name: &str) -> Arc<Snapshot> {
    let network = snapshot.network();
    let flipped = network.find(name).unwrap();
    let tensors = network.ids().map(|id| match snapshot.tensor(id).as_ref() {
        PolicyTensor::Quantized(tensor) if id == flipped => Arc::new(PolicyTensor::Quantized(flip(tensor))),
        _ => Arc::clone(snapshot.tensor(id)),
    });
    let tensors = tensors.collect();
    let version = snapshot.stamp().version;
    let changed = Snapshot::new(version, Arc::clone(network), Arc::clone(snapshot.map()), tensors).unwrap();
    assert_ne!(changed.stamp().digest, snapshot.stamp().digest, "`{name}` is not quantized");
    Arc::new(changed)
}

fn flip(tensor: &QuantizedTensor) -> QuantizedTensor {
    let mut parts = tensor.to_parts();
    let magnitude = |code: &u8| code & 0x7F;
    let largest = (0..parts.codes.len()).max_by_key(|&index| magnitude(&parts.codes[index])).unwrap();
    parts.codes[largest] ^= 0x80;
    let rule = miles_core::format::builtin_rule(tensor.format()).unwrap();
    QuantizedTensor::from_parts(rule, None, parts).unwrap()
}
