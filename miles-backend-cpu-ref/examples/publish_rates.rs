//! What a publication in one process costs: trainer -> quantize once -> store -> engine, beside a plain memcpy.
//!
//! ```text
//! cargo run --release -p miles-backend-cpu-ref --example publish_rates -- MODEL_DIR [RECIPE ..]
//! ```
//!
//! A publication reads every master weight and writes every byte of the new version. The memcpy beside it, on as many
//! threads, moves as many bytes: it copies the masters once and a version once. `ratio` is the whole publication over the
//! memcpy. All figures are medians of runs that take turns in one process.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use futures_lite::future::block_on;
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::Checkpoint;
use miles_core::plugin::{
    ActivationDtype, AdamW, Backend, EngineOptions, MasterDtype, PublicationMode, TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, MemoryStore, PolicyContext, PolicyStore, PolicyVersion};
use miles_core::precision::{Recipe, resolve};

const RUNS: usize = 7;
const RECIPES: [&str; 4] = ["bf16", "mxfp8-dequantized", "nvfp4-dequantized", "fp8-block-dequantized"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, recipes) = arguments.split_first().ok_or("usage: publish_rates MODEL_DIR [RECIPE ..]")?;
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let backend = CpuRef::new().backend()?;
    println!("{}; medians of {RUNS} publications, milliseconds", backend.device);
    println!(
        "{:<24}{:>12}{:>12}{:>10}{:>8}{:>8}{:>8}{:>10}{:>8}",
        "", "masters MB", "version MB", "quantize", "store", "swap", "all", "memcpy", "ratio"
    );
    let recipes = if recipes.is_empty() { RECIPES.map(str::to_owned).to_vec() } else { recipes.to_vec() };
    recipes.iter().try_for_each(|recipe| publish(&backend, &checkpoint, recipe))
}

fn publish(backend: &Backend, checkpoint: &Checkpoint, recipe: &str) -> Result<(), Box<dyn Error>> {
    let network = checkpoint.network();
    let map = Arc::new(resolve(network, recipe.parse::<Recipe>()?, &[])?);
    let mut trainer = (backend.trainer)(TrainerInputs {
        network: Arc::clone(network),
        map: Arc::clone(&map),
        weights: checkpoint,
        quantizer: Arc::clone(&backend.quantizer),
        options: TrainerOptions {
            activations: ActivationDtype::Bf16,
            optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
            max_grad_norm: None,
            micro_batch_tokens: 1024,
            train_router: true,
            masters: MasterDtype::F32,
            seed: 0,
            threads: None,
        },
        scratch: None,
    })?;
    let engine = (backend.engine)(EngineOptions {
        network: Arc::clone(network),
        activations: ActivationDtype::Bf16,
        max_running: 32,
        context_tokens: network.config.context_tokens,
        threads: None,
        partition: map.plan(),
        publication: PublicationMode::Continue,
    })?;
    let store = MemoryStore::new(1);
    let ledger = Ledger::discard();
    let masters: usize = network.parameters.iter().map(|parameter| 4 * parameter.elements()).sum();
    let (mut version_bytes, mut times) = (0, [const { Vec::new() }; 4]);
    // The first run is not counted: it fills the caches and the allocator.
    for run in 0..=RUNS as u64 {
        let context = PolicyContext { run: "rates", step: run, version: PolicyVersion(run), ledger: &ledger };
        let start = Instant::now();
        let snapshot = trainer.publish(context)?;
        let quantized = start.elapsed();
        version_bytes = snapshot.bytes();
        block_on(store.publish(snapshot))?;
        let stored = start.elapsed();
        let latest = block_on(store.latest())?.ok_or("the store is empty")?;
        block_on(engine.load(latest))?;
        let all = start.elapsed();
        let copied = memcpy_seconds(&[masters, version_bytes]);
        if run > 0 {
            let parts = [quantized, stored - quantized, all - stored, all].map(|time| time.as_secs_f64());
            times.iter_mut().zip([parts[0], parts[1], parts[2], copied]).for_each(|(all, time)| all.push(time));
        }
    }
    let [quantize, stored, swap, copied] = times.map(median);
    let all = quantize + stored + swap;
    println!(
        "{recipe:<24}{:>12.1}{:>12.1}{:>10.1}{:>8.2}{:>8.2}{:>8.1}{:>10.1}{:>8.2}",
        masters as f64 / 1e6,
        version_bytes as f64 / 1e6,
        quantize * 1e3,
        stored * 1e3,
        swap * 1e3,
        all * 1e3,
        copied * 1e3,
        all / copied
    );
    Ok(())
}

/// Seconds that all cores together need to copy buffers of these sizes.
fn memcpy_seconds(sizes: &[usize]) -> f64 {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let buffers: Vec<(Vec<u8>, Vec<u8>)> = sizes.iter().map(|&bytes| (vec![1; bytes], vec![2; bytes])).collect();
    let mut seconds = 0.0;
    for (from, mut to) in buffers {
        let piece = from.len().div_ceil(threads).max(1);
        let start = Instant::now();
        thread::scope(|scope| {
            for (from, to) in from.chunks(piece).zip(to.chunks_mut(piece)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        seconds += start.elapsed().as_secs_f64();
        std::hint::black_box(&to);
    }
    seconds
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
