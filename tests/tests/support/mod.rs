//! What the promises share: tiny models of every family, a directory to run in, parts to put together by hand.

pub mod files;
pub mod parts;
pub mod spy;
pub mod workspace;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::Checkpoint;
use miles_core::plugin::Backend;

/// Every fixture model.
pub const FAMILIES: [&str; 7] =
    ["deepseek-v3", "llama-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3", "qwen3-moe", "qwen3-moe-sharded"];

/// The directory of a fixture model.
pub fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/fixtures").join(family)
}

/// A fixture model, opened.
pub fn checkpoint(family: &str) -> Checkpoint {
    Checkpoint::open(&fixture(family)).unwrap()
}

/// The CPU backend with a thread pool and packed weights of its own.
pub fn cpu(threads: usize) -> CpuRef {
    CpuRef::new().with_threads(NonZeroUsize::new(threads).unwrap())
}

/// The same as a backend value.
pub fn backend(threads: usize) -> Backend {
    cpu(threads).backend().unwrap()
}

/// The bits of some values: what is compared where equal means equal to the bit.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
