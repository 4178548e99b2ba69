//! A Hugging Face checkpoint directory of any content: opened, then every tensor read.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::checkpoint::Checkpoint;
use miles_core::policy::PolicyVersion;
use miles_fuzz::{Archive, Scratch};

const NAMES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "a.safetensors",
    "generation_config.json",
    "hf_quant_config.json",
];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("checkpoint-files"));

fuzz_target!(|bytes: &[u8]| {
    let dir = SCRATCH.fill(&Archive::parse(bytes, &NAMES).files);
    let Ok(checkpoint) = Checkpoint::open(dir) else { return };
    let mut values = Vec::new();
    for id in checkpoint.network().ids() {
        let parameter = checkpoint.network().parameter(id);
        if checkpoint.read_f32(id, &mut values).is_ok() {
            assert_eq!(values.len(), parameter.elements(), "{}", parameter.name);
            assert!(values.iter().all(|value| value.is_finite()), "{}", parameter.name);
        }
        let _ = checkpoint.read_stored(id);
    }
    if let Ok(snapshot) = checkpoint.snapshot_as_stored(PolicyVersion(0)) {
        let again = checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap();
        assert_eq!(snapshot.stamp(), again.stamp());
    }
});
