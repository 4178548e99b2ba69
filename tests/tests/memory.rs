//! Loading never holds more than one high-precision copy of the model besides its result: every allocation is counted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_lite::future::block_on;
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::{Checkpoint, Template, WriteOptions, write_values};
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, ParamId};
use miles_core::plugin::{
    ActivationDtype, AdamW, EngineOptions, MasterDtype, PublicationMode, TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, WeightSource, quantize_policy};
use miles_core::precision::{Recipe, resolve};
use serde_json::json;

/// The system's allocator, counted.
struct Counted;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is handed to `System` unchanged; counting touches nothing but two atomics.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The old block may live until the new one is filled.
        grow(new_size);
        // SAFETY: the pointer came from `System` with this layout.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// One measurement at a time.
static MEASURING: Mutex<()> = Mutex::new(());

/// What was allocated while something was made.
#[derive(Clone, Copy, Debug)]
struct Allocated {
    /// Bytes that the result holds.
    kept: usize,
    /// Bytes beyond those at the worst moment.
    passing: usize,
}

fn measured<T>(make: impl FnOnce() -> T) -> (T, Allocated) {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(before, Ordering::Relaxed);
    let made = make();
    let (live, peak) = (LIVE_BYTES.load(Ordering::Relaxed), PEAK_BYTES.load(Ordering::Relaxed));
    (made, Allocated { kept: live.saturating_sub(before), passing: peak - live })
}

/// Values that repeat from a place of each tensor's own: quick to make in any number, and no two tensors are equal
/// (equal ones would be packed once).
struct Repeating {
    network: Network,
    block: Vec<f32>,
}

impl WeightSource for Repeating {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        let elements = self.network.parameter(id).elements();
        let first = (id.index() * 7_919) % self.block.len();
        into.clear();
        into.extend_from_slice(&self.block[first..first + elements.min(self.block.len() - first)]);
        while into.len() < elements {
            let taken = self.block.len().min(elements - into.len());
            into.extend_from_slice(&self.block[..taken]);
        }
        Ok(())
    }
}

const MIB: usize = 1 << 20;

/// A model of about 60 MiB in BF16, in four layers, whose largest tensor is a small part of it.
fn write_model(dir: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 2048, "hidden_size": 768, "intermediate_size": 2560,
        "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128, "rope_theta": 10000.0, "eos_token_id": 0, "hidden_act": "silu",
        "tie_word_embeddings": false
    });
    let config = HuggingFaceConfig::from_json(Path::new("config.json"), config.as_object().unwrap().clone()).unwrap();
    let block = (0..65_521u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 16) as f32 - 32_768.0) * 1e-6).collect();
    let source = Repeating { network: Network::new(config.model()), block };
    write_values(&source, &Template { config, sidecar_dir: None }, dir, &WriteOptions::default()).unwrap();
}

/// Bytes of the model's values in BF16: one high-precision copy.
fn bf16_bytes(network: &Network) -> usize {
    network.parameters.iter().map(|parameter| 2 * parameter.elements()).sum()
}

fn options() -> TrainerOptions {
    TrainerOptions {
        activations: ActivationDtype::Bf16,
        optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
        max_grad_norm: None,
        micro_batch_tokens: 512,
        train_router: true,
        masters: MasterDtype::F32,
        seed: 0,
        threads: None,
    }
}

#[test]
fn loading_holds_at_most_one_high_precision_copy_besides_the_result() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    write_model(&model);

    let (checkpoint, opened) = measured(|| Checkpoint::open(&model).unwrap());
    let network = Arc::clone(checkpoint.network());
    let copy = bf16_bytes(&network);
    assert!(copy > 50 * MIB, "the model has only {copy} bytes");
    assert!(opened.kept + opened.passing < MIB, "opening reads headers only: {opened:?}");

    let (stored, as_stored) = measured(|| checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap());
    println!("{} MiB in BF16; as stored: {as_stored:?}", copy / MIB);
    assert!(as_stored.kept < copy + MIB && as_stored.passing < copy / 2, "{as_stored:?}");
    drop(stored);

    for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
        let backend = CpuRef::new().with_threads(2.try_into().unwrap()).backend().unwrap();
        let map = Arc::new(resolve(&network, recipe, &[]).unwrap());
        let ledger = Ledger::discard();
        let context = PolicyContext { run: "memory", step: 0, version: PolicyVersion(0), ledger: &ledger };

        let quantizer = Arc::clone(&backend.quantizer);
        let (snapshot, converted) =
            measured(|| quantize_policy(&network, &map, quantizer.as_ref(), &checkpoint, context).unwrap());
        println!("{recipe}: converted {converted:?}");
        assert!(converted.kept < snapshot.bytes() + MIB, "{recipe}: a version holds its tensors and no more");
        assert!(converted.passing < copy, "{recipe}: {converted:?}");
        let version_bytes = snapshot.bytes();
        drop(snapshot);

        let inputs = || TrainerInputs {
            network: Arc::clone(&network),
            map: Arc::clone(&map),
            weights: &checkpoint,
            quantizer: Arc::clone(&backend.quantizer),
            options: options(),
            scratch: None,
        };
        let (mut trainer, loaded) = measured(|| (backend.trainer)(inputs()).unwrap());
        println!("{recipe}: trainer {loaded:?}");
        // F32 masters and two F32 moments, 12 bytes per weight. No version yet, so no codes.
        assert!((6 * copy..6 * copy + MIB).contains(&loaded.kept), "{recipe}: {loaded:?}");
        assert!(loaded.passing < copy, "{recipe}: {loaded:?}");

        let (half, loaded_half) = measured(|| {
            let options = TrainerOptions { masters: MasterDtype::Bf16, ..options() };
            let inputs = TrainerInputs { options, ..inputs() };
            (backend.trainer)(inputs).unwrap()
        });
        println!("{recipe}: trainer with BF16 masters {loaded_half:?}");
        assert!((5 * copy..5 * copy + MIB).contains(&loaded_half.kept), "{recipe}: {loaded_half:?}");
        drop(half);

        let (published, publication) = measured(|| trainer.publish(context).unwrap());
        println!("{recipe}: publication {publication:?}");
        // The version's codes and exceptions as they are published and once more as the kernels read them: nothing that is
        // quantized is held in high precision beside its master.
        assert!(publication.kept < 2 * version_bytes + 2 * MIB, "{recipe}: {publication:?} of {version_bytes}");
        assert!(publication.passing < copy, "{recipe}: {publication:?}");

        let engine_options = EngineOptions {
            network: Arc::clone(&network),
            activations: ActivationDtype::Bf16,
            max_running: 8,
            context_tokens: 128,
            threads: None,
            partition: map.plan(),
            publication: PublicationMode::Finish,
        };
        let (_engine, delivery) = measured(|| {
            let engine = (backend.engine)(engine_options.clone()).unwrap();
            block_on(engine.load(Arc::clone(&published))).unwrap();
            engine
        });
        println!("{recipe}: engine of the same process {delivery:?}");
        assert!(delivery.kept + delivery.passing < copy / 8, "{recipe}: the packed weights are shared: {delivery:?}");

        let elsewhere = CpuRef::new().with_threads(2.try_into().unwrap()).backend().unwrap();
        let (_alone, alone) = measured(|| {
            let engine = (elsewhere.engine)(engine_options).unwrap();
            block_on(engine.load(Arc::clone(&published))).unwrap();
            engine
        });
        println!("{recipe}: engine of its own {alone:?}");
        assert!(alone.kept < copy + copy / 4 && alone.passing < copy, "{recipe}: {alone:?}");
    }
}
