//! The checkpoint of a run, of any content: `loop.json`, and the digests of the trainer's files.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::digest::Digest;
use miles_fuzz::{Archive, Scratch};
use miles_grpo::RunConfig;
use miles_grpo::checkpoint::{LoopState, SavedLoop};
use miles_grpo::config::ConfigFingerprint;

const NAMES: [&str; 5] = [
    "step-00000012/loop.json",
    "step-00000012/trainer.json",
    "step-00000012/trainer/state.json",
    "step-00000012/trainer/masters.safetensors",
    "step-00000003/loop.json",
];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("saved-loop"));
static CONFIG: LazyLock<ConfigFingerprint> = LazyLock::new(|| ConfigFingerprint::of(&RunConfig::default()));

fuzz_target!(|bytes: &[u8]| {
    let checkpoints = SCRATCH.fill(&Archive::parse(bytes, &NAMES).files);
    let Ok(saved) = SavedLoop::newest(checkpoints) else { return };
    let text = serde_json::to_vec(&saved.state).unwrap();
    assert_eq!(serde_json::from_slice::<LoopState>(&text).unwrap(), saved.state);
    let _ = saved.check_config(&CONFIG);
    let Ok(trainer) = saved.trainer_dir() else { return };
    // Accepted: then every file that the trainer will read has the digest that was saved for it.
    let listed = fs::read(trainer.with_file_name("trainer.json")).unwrap();
    let listed: BTreeMap<String, Digest> = serde_json::from_slice(&listed).unwrap();
    for entry in fs::read_dir(&trainer).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(listed.get(name), Some(&Digest::of(&fs::read(&path).unwrap())), "{name} was not checked");
    }
});
