//! Tokens per second of the rollout engine: prefill, and decode at several numbers of running completions.
//!
//! ```text
//! cargo run --release -p miles-backend-cpu-ref --example rollout_rates -- MODEL_DIR [RECIPE ...]
//! ```
//!
//! Each figure is the best of three runs. Prefill: one prompt of 512 tokens, one token drawn. Decode: prompts of 32 tokens,
//! 32 new tokens each; the time of the same request with one new token (its prefill) is taken off.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use miles_backend_cpu_ref::{CpuEngine, CpuRef};
use miles_core::checkpoint::Checkpoint;
use miles_core::plugin::{
    ActivationDtype, CancelToken, EngineOptions, GenerateRequest, PromptRequest, RolloutEngine, Sampling,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, quantize_policy};
use miles_core::precision::{Recipe, resolve};

const PREFILL_TOKENS: usize = 512;
const PROMPT_TOKENS: usize = 32;
const NEW_TOKENS: usize = 32;
const RUNS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: rollout_rates MODEL_DIR [RECIPE ...]")?;
    let mut recipes: Vec<String> = arguments.collect();
    if recipes.is_empty() {
        recipes = ["bf16", "mxfp8", "nvfp4-dequantized"].map(str::to_owned).to_vec();
    }
    let checkpoint = Checkpoint::open(Path::new(&model))?;
    println!("{:<24}{:>12}{:>12}{:>12}{:>12}", "tokens per second", "prefill", "decode 1", "decode 8", "decode 32");
    for recipe in recipes {
        let engine = engine(&checkpoint, recipe.parse()?)?;
        let prefill = PREFILL_TOKENS as f64 / best(&engine, &request(1, PREFILL_TOKENS, 1))?.as_secs_f64();
        print!("{recipe:<24}{prefill:>12.1}");
        for running in [1, 8, 32] {
            let whole = best(&engine, &request(running, PROMPT_TOKENS, NEW_TOKENS))?;
            let prefill = best(&engine, &request(running, PROMPT_TOKENS, 1))?;
            let drawn = (running * (NEW_TOKENS - 1)) as f64;
            print!("{:>12.1}", drawn / whole.saturating_sub(prefill).as_secs_f64());
        }
        println!();
    }
    Ok(())
}

fn engine(checkpoint: &Checkpoint, recipe: Recipe) -> miles_core::Result<CpuEngine> {
    let network = checkpoint.network();
    let map = Arc::new(resolve(network, recipe, &[])?);
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "rates", step: 0, version: PolicyVersion(0), ledger: &ledger };
    let backend = CpuRef::new();
    let snapshot = quantize_policy(network, &map, &backend.quantizer()?, checkpoint, context)?;
    let engine = backend.engine(EngineOptions {
        network: Arc::clone(network),
        activations: ActivationDtype::Bf16,
        max_running: 32,
        context_tokens: network.config.context_tokens,
        threads: None,
    })?;
    block_on(engine.load(Arc::new(snapshot)))?;
    Ok(engine)
}

fn request(prompts: usize, prompt_tokens: usize, max_new_tokens: usize) -> GenerateRequest {
    let prompt = |key: usize| PromptRequest {
        key: key as u64,
        tokens: (0..prompt_tokens).map(|index| (1000 + index * 37 + key * 101) as u32).collect(),
        completions: 1,
    };
    let eos_token_ids = Vec::new();
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens, eos_token_ids };
    GenerateRequest { prompts: (0..prompts).map(prompt).collect(), sampling, seed: 0, step: 0 }
}

fn best(engine: &CpuEngine, request: &GenerateRequest) -> miles_core::Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        block_on(engine.generate(request, &CancelToken::default()))?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
