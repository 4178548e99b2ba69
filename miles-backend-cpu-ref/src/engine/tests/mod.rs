//! What the engine promises, on the tiny checkpoints of every family.

mod batching;
mod families;
mod lifecycle;
mod logprobs;
mod publication;
mod refused_loads;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_lite::future::block_on;
use miles_core::checkpoint::Checkpoint;
use miles_core::network::{ParamId, Role};
use miles_core::plugin::{
    ActivationDtype, CancelToken, Completion, EngineOptions, GenerateRequest, PromptRequest, PublicationMode, Rollout,
    RolloutEngine, Sampling,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, Snapshot, WeightSource, quantize_policy};
use miles_core::precision::{Recipe, resolve};

use super::*;
use crate::backend::CpuRef;
use crate::kernel::Isa;

const FAMILIES: [&str; 7] =
    ["deepseek-v3", "llama-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3", "qwen3-moe", "qwen3-moe-sharded"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/fixtures").join(name)
}

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&fixture(name)).unwrap()
}

fn as_stored(name: &str) -> Arc<Snapshot> {
    Arc::new(checkpoint(name).snapshot_as_stored(PolicyVersion(0)).unwrap())
}

/// The checkpoint's weights, those of some roles times a factor: another policy of the same network.
struct Scaled<'a>(&'a Checkpoint, f32, fn(Role) -> bool);

impl WeightSource for Scaled<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        self.0.read(id, into)?;
        if self.2(self.0.network().parameter(id).role) {
            into.iter_mut().for_each(|value| *value *= self.1);
        }
        Ok(())
    }
}

fn quantized(name: &str, recipe: Recipe) -> Arc<Snapshot> {
    scaled(name, recipe, 0, 1.0, |_| false)
}

fn scaled(name: &str, recipe: Recipe, version: u64, factor: f32, roles: fn(Role) -> bool) -> Arc<Snapshot> {
    let checkpoint = checkpoint(name);
    let network = checkpoint.network();
    let map = Arc::new(resolve(network, recipe, &[]).unwrap());
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "test", step: 0, version: PolicyVersion(version), ledger: &ledger };
    let quantizer = CpuRef::new().quantizer().unwrap();
    Arc::new(quantize_policy(network, &map, &quantizer, &Scaled(&checkpoint, factor, roles), context).unwrap())
}

struct Setup {
    activations: ActivationDtype,
    max_running: usize,
    prefill_tokens: usize,
    threads: usize,
    isa: Isa,
    publication: PublicationMode,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            activations: ActivationDtype::Bf16,
            max_running: 8,
            prefill_tokens: PREFILL_TOKENS,
            threads: 2,
            isa: Isa::detect(),
            publication: PublicationMode::Finish,
        }
    }
}

/// An engine of the snapshot's network with nothing loaded.
fn unloaded(snapshot: &Snapshot, setup: &Setup) -> CpuEngine {
    let network = Arc::clone(snapshot.network());
    let backend = CpuRef::new().with_threads(NonZeroUsize::new(setup.threads).unwrap()).with_isa(setup.isa);
    let options = EngineOptions {
        context_tokens: network.config.context_tokens,
        network,
        activations: setup.activations,
        max_running: setup.max_running,
        threads: None,
        partition: snapshot.map().plan(),
        publication: setup.publication,
    };
    let mut engine = backend.engine(options).unwrap();
    engine.limits.prefill_tokens = setup.prefill_tokens;
    engine
}

fn loaded(snapshot: &Arc<Snapshot>, setup: &Setup) -> CpuEngine {
    let engine = unloaded(snapshot, setup);
    block_on(engine.load(Arc::clone(snapshot))).unwrap();
    engine
}

fn sampling(temperature: f32, max_new_tokens: usize) -> Sampling {
    Sampling { temperature, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens, eos_token_ids: vec![] }
}

/// Three prompts of different lengths, with 3, 1 and 4 completions.
fn request(temperature: f32, max_new_tokens: usize) -> GenerateRequest {
    let prompt = |key: u64, length: u64, completions| PromptRequest {
        key,
        tokens: (0..length).map(|index| ((index * 7 + key * 13) % 60) as u32).collect(),
        completions,
    };
    GenerateRequest {
        prompts: vec![prompt(4, 5, 3), prompt(9, 1, 1), prompt(2, 11, 4)],
        sampling: sampling(temperature, max_new_tokens),
        seed: 77,
        step: 3,
    }
}

fn generate(engine: &CpuEngine, request: &GenerateRequest) -> Rollout {
    block_on(engine.generate(request, &CancelToken::default())).unwrap()
}

/// Generates while versions are loaded: each before the forward of its number, on the thread of the request. The request
/// is cancelled before forward `stop`, if there is one.
fn generate_while_loading(
    engine: &Arc<CpuEngine>,
    request: &GenerateRequest,
    loads: &[(usize, Arc<Snapshot>)],
    stop: Option<usize>,
) -> Rollout {
    let (loader, loads, forwards) = (Arc::clone(engine), loads.to_vec(), AtomicUsize::new(0));
    let cancel = CancelToken::when(move || {
        let forward = forwards.fetch_add(1, Ordering::Relaxed);
        for (_, snapshot) in loads.iter().filter(|(at, _)| *at == forward) {
            block_on(loader.load(Arc::clone(snapshot))).unwrap();
        }
        stop == Some(forward)
    });
    let rollout = block_on(engine.generate(request, &cancel)).unwrap();
    rollout.check_versions().unwrap();
    rollout
}

fn completions(rollout: &Rollout) -> Vec<&Completion> {
    rollout.groups.iter().flat_map(|group| &group.completions).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Tokens and logprob bits of every completion.
fn drawn(rollout: &Rollout) -> Vec<(Vec<u32>, Vec<u32>)> {
    completions(rollout).iter().map(|completion| (completion.tokens.clone(), bits(&completion.logprobs))).collect()
}
