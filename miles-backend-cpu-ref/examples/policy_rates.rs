//! Tokens per second of prefill, decode and training on a checkpoint directory, beside other programs on this machine.
//!
//! ```text
//! cargo run --release -p miles-backend-cpu-ref --example policy_rates -- MODEL_DIR [PYTHON [GGUF]]
//! ```
//!
//! With PYTHON (an interpreter with torch and transformers) `benches/peers.py` runs right afterwards on the same cores, and
//! with GGUF (the same model for llama.cpp) llama.cpp too; all figures stand in one table. The work is the same for all:
//!
//! - `prefill`: one prompt of 64 tokens, logits of its last token.
//! - `decode N`: N prompts of 16 tokens (not timed), then 64, 32 or 16 tokens each, one at a time.
//! - `train`: forward, loss on every token but the first, backward and AdamW on 8 samples of 128 tokens; the publication
//!   of the next version is timed apart (`publish`), since other programs have none.
//!
//! Each figure is the median of three runs after one that does not count.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use futures_lite::future::block_on;
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::Checkpoint;
use miles_core::plugin::{
    ActivationDtype, AdamW, Backend, BatchTotals, CancelToken, EngineOptions, GenerateRequest, Loss, LossInput,
    LossTerms, MasterDtype, PromptRequest, PublicationMode, RolloutEngine, Sampling, TrainBatch, TrainSample,
    TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, Snapshot, quantize_policy};
use miles_core::precision::{PrecisionMap, Recipe, resolve};

const RECIPES: [&str; 4] = ["bf16", "mxfp8-dequantized", "nvfp4-dequantized", "fp8-block-dequantized"];
const PREFILL_TOKENS: usize = 64;
const PROMPT_TOKENS: usize = 16;
/// Running completions and new tokens of each.
const DECODES: [(usize, usize); 3] = [(1, 64), (8, 32), (32, 16)];
const TRAIN_SHAPE: (usize, usize) = (8, 128);
const RUNS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = arguments.first().ok_or("usage: policy_rates MODEL_DIR [PYTHON [GGUF]]")?;
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let backend = CpuRef::new().backend()?;
    println!("{}; tokens per second", backend.device);
    println!(
        "{:<24}{:>10}{:>10}{:>10}{:>10}{:>10}  notes",
        "", "prefill", "decode 1", "decode 8", "decode 32", "train"
    );
    for recipe in RECIPES {
        let map = Arc::new(resolve(checkpoint.network(), recipe.parse::<Recipe>()?, &[])?);
        let rollout = rollout_rates(&backend, &checkpoint, &map)?;
        let (train, publish_seconds) = train_rate(&backend, &checkpoint, &map)?;
        let note = format!("policy {:.0} MB, publish {publish_seconds:.2} s", rollout.policy_bytes as f64 / 1e6);
        print_row(&format!("miles {recipe}"), &rollout.tokens_per_s, train, &note);
    }
    if let Some(python) = arguments.get(1) {
        let mut peers = Command::new(python);
        peers.args(["benches/peers.py", "--model", model]);
        if let Some(gguf) = arguments.get(2) {
            peers.args(["--gguf", gguf]);
        }
        let status = peers.status()?;
        if !status.success() {
            return Err(format!("benches/peers.py ended with {status}").into());
        }
    }
    Ok(())
}

struct RolloutRates {
    tokens_per_s: Vec<f64>,
    policy_bytes: usize,
}

fn rollout_rates(
    backend: &Backend,
    checkpoint: &Checkpoint,
    map: &Arc<PrecisionMap>,
) -> Result<RolloutRates, Box<dyn Error>> {
    let network = checkpoint.network();
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "rates", step: 0, version: PolicyVersion(0), ledger: &ledger };
    let snapshot: Arc<Snapshot> =
        Arc::new(quantize_policy(network, map, backend.quantizer.as_ref(), checkpoint, context)?);
    let engine = (backend.engine)(EngineOptions {
        network: Arc::clone(network),
        activations: ActivationDtype::Bf16,
        max_running: 32,
        context_tokens: network.config.context_tokens,
        threads: None,
        partition: map.plan(),
        publication: PublicationMode::Finish,
    })?;
    let policy_bytes = snapshot.bytes();
    block_on(engine.load(snapshot))?;
    let engine = engine.as_ref();

    let mut tokens_per_s = vec![PREFILL_TOKENS as f64 / median(|| generate(engine, 1, PREFILL_TOKENS, 1))?];
    for (running, new_tokens) in DECODES {
        let whole = median(|| generate(engine, running, PROMPT_TOKENS, new_tokens + 1))?;
        let prefill = median(|| generate(engine, running, PROMPT_TOKENS, 1))?;
        tokens_per_s.push((running * new_tokens) as f64 / (whole - prefill));
    }
    Ok(RolloutRates { tokens_per_s, policy_bytes })
}

fn generate(
    engine: &dyn RolloutEngine,
    prompts: usize,
    prompt_tokens: usize,
    max_new_tokens: usize,
) -> Result<f64, Box<dyn Error>> {
    let prompt = |key: usize| PromptRequest {
        key: key as u64,
        tokens: (0..prompt_tokens).map(|index| (1000 + index * 37 + key * 101) as u32).collect(),
        completions: 1,
    };
    let eos_token_ids = Vec::new();
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens, eos_token_ids };
    let request = GenerateRequest { prompts: (0..prompts).map(prompt).collect(), sampling, seed: 0, step: 0 };
    let start = Instant::now();
    block_on(engine.generate(&request, &CancelToken::default()))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Tokens per second of an update, and seconds of a publication.
fn train_rate(
    backend: &Backend,
    checkpoint: &Checkpoint,
    map: &Arc<PrecisionMap>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let network = checkpoint.network();
    let (samples, tokens) = TRAIN_SHAPE;
    let mut trainer = (backend.trainer)(TrainerInputs {
        network: Arc::clone(network),
        map: Arc::clone(map),
        weights: checkpoint,
        quantizer: Arc::clone(&backend.quantizer),
        options: TrainerOptions {
            activations: ActivationDtype::Bf16,
            optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
            max_grad_norm: Some(1.0),
            micro_batch_tokens: samples * tokens,
            train_router: true,
            masters: MasterDtype::F32,
            seed: 0,
            threads: None,
        },
        scratch: None,
    })?;
    let ledger = Ledger::discard();
    let mut publish_seconds = Vec::new();
    let mut version = PolicyVersion(0);
    let update = median(|| {
        let context = PolicyContext { run: "rates", step: version.0, version, ledger: &ledger };
        let start = Instant::now();
        let snapshot = trainer.publish(context)?;
        publish_seconds.push(start.elapsed().as_secs_f64());
        version = version.next();
        let samples = (0..samples).map(|index| sample(index, tokens)).collect();
        let batch = TrainBatch::new(samples, snapshot.stamp(), 1.0)?;
        let start = Instant::now();
        trainer.update(&batch, &MeanLogprob, 1e-6)?;
        Ok(start.elapsed().as_secs_f64())
    })?;
    publish_seconds.sort_by(f64::total_cmp);
    Ok(((samples * tokens) as f64 / update, publish_seconds[publish_seconds.len() / 2]))
}

fn sample(index: usize, tokens: usize) -> TrainSample {
    TrainSample {
        tokens: (0..tokens).map(|token| (1000 + token * 37 + index * 101) as u32).collect(),
        prompt_tokens: 1,
        rollout_logprobs: vec![0.0; tokens - 1],
        reference_logprobs: None,
        advantage: 1.0,
    }
}

/// The mean logprob of the tokens, made larger.
struct MeanLogprob;

impl Loss for MeanLogprob {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        gradient.fill(-1.0 / totals.tokens as f32);
        let sum: f64 = input.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
        LossTerms { loss: -sum / totals.tokens as f64, clipped_tokens: 0 }
    }
}

fn median(mut seconds: impl FnMut() -> Result<f64, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    seconds()?;
    let mut runs = (0..RUNS).map(|_| seconds()).collect::<Result<Vec<f64>, _>>()?;
    runs.sort_by(f64::total_cmp);
    Ok(runs[RUNS / 2])
}

fn print_row(name: &str, rollout: &[f64], train: f64, note: &str) {
    print!("{name:<24}");
    for rate in rollout.iter().chain([&train]) {
        print!("{rate:>10.1}");
    }
    println!("  {note}");
}
