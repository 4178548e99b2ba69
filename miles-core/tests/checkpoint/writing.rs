//! Writing is all or nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use miles_core::checkpoint::{
    Checkpoint, CheckpointError, SIDECARS, StoredForm, WriteOptions, write_checkpoint, write_values,
};
use miles_core::network::{Network, ParamId};
use miles_core::policy::{PolicyVersion, WeightSource};
use miles_core::precision::Recipe;
use miles_core::tensor::Dtype;

use crate::files::{digests, fixture, load, open, quantized};

/// A source that counts, and fails or lies at one parameter.
struct Counting<'a> {
    checkpoint: &'a Checkpoint,
    asked: Mutex<Vec<ParamId>>,
    fails_at: Option<ParamId>,
    short_at: Option<ParamId>,
}

impl<'a> Counting<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        Counting { checkpoint, asked: Mutex::default(), fails_at: None, short_at: None }
    }
}

impl WeightSource for Counting<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        self.asked.lock().unwrap().push(id);
        if self.fails_at == Some(id) {
            let source = "the source is gone".into();
            return Err(miles_core::Error::Plugin { plugin: "counting".into(), source });
        }
        self.checkpoint.read_f32(id, into)?;
        if self.short_at == Some(id) {
            into.pop();
        }
        Ok(())
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn values_are_asked_for_once_each_and_come_back() {
    let checkpoint = open(&fixture("deepseek-v3"));
    let source = Counting::new(&checkpoint);
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("a/b/model");
    write_values(&source, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    let mut asked = std::mem::take(&mut *source.asked.lock().unwrap());
    asked.sort_unstable();
    assert_eq!(asked, checkpoint.network().ids().collect::<Vec<_>>());
    let back = open(&target);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for id in checkpoint.network().ids() {
        checkpoint.read_f32(id, &mut a).unwrap();
        back.read_f32(id, &mut b).unwrap();
        assert_eq!(a, b);
    }
    let bias = back.network().find("model.layers.1.mlp.gate.e_score_correction_bias").unwrap();
    assert_eq!(back.dtype(bias), Some(Dtype::F32), "the selection bias stays F32");
    let options = WriteOptions { form: StoredForm::Dense(Dtype::F32), replace: true, ..WriteOptions::default() };
    write_values(&source, &checkpoint.template(), &target, &options).unwrap();
    assert_eq!(open(&target).dtype(ParamId(0)), Some(Dtype::F32));
    assert_eq!(open(&target).config_json()["dtype"], "float32");
}

#[test]
fn shards_have_an_index_and_stay_below_the_limit() {
    let checkpoint = open(&fixture("qwen3-moe"));
    let snapshot = checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap();
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let options = WriteOptions { max_shard_bytes: 100_000, ..WriteOptions::default() };
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &options).unwrap();
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(target.join("model.safetensors.index.json")).unwrap()).unwrap();
    let files: std::collections::BTreeSet<&str> =
        index["weight_map"].as_object().unwrap().values().map(|file| file.as_str().unwrap()).collect();
    assert!(files.len() > 5);
    let mut total = 0;
    for file in files {
        let bytes: usize = load(&target.join(file)).values().map(|tensor| tensor.bytes.len()).sum();
        assert!(bytes <= 100_000);
        total += bytes;
    }
    assert_eq!(index["metadata"]["total_size"], total);
    assert!(!target.join("model.safetensors").exists());
    assert_eq!(open(&target).snapshot_as_stored(PolicyVersion(0)).unwrap().stamp(), snapshot.stamp());
}

#[test]
fn sidecars_travel_and_stale_quantization_files_do_not() {
    let checkpoint = open(&fixture("qwen3-moe"));
    let out = tempfile::tempdir().unwrap();
    let first = out.path().join("first");
    let snapshot = quantized(&checkpoint, Recipe::Nvfp4Dequantized, &[]);
    write_checkpoint(&snapshot, &checkpoint.template(), &first, &WriteOptions::default()).unwrap();
    for name in SIDECARS.iter().filter(|name| **name != "generation_config.json") {
        fs::write(first.join(name), name.as_bytes()).unwrap();
    }
    fs::write(first.join("training_args.bin"), "x").unwrap();
    let written = open(&first);
    let second = out.path().join("second");
    let snapshot = written.snapshot_as_stored(PolicyVersion(0)).unwrap();
    let options = WriteOptions { form: StoredForm::Dense(Dtype::Bf16), ..WriteOptions::default() };
    write_checkpoint(&snapshot, &written.template(), &second, &options).unwrap();
    for name in SIDECARS {
        assert_eq!(fs::read(second.join(name)).unwrap(), fs::read(first.join(name)).unwrap(), "{name}");
    }
    assert!(!second.join("training_args.bin").exists() && !second.join("hf_quant_config.json").exists());
}

#[test]
fn a_target_that_holds_something_is_refused_or_replaced_when_asked() {
    let checkpoint = open(&fixture("qwen3"));
    let snapshot = checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap();
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let write = |options: &WriteOptions| write_checkpoint(&snapshot, &checkpoint.template(), &target, options);
    fs::create_dir(&target).unwrap();
    write(&WriteOptions::default()).unwrap();
    fs::write(target.join("note"), "x").unwrap();
    let error = write(&WriteOptions::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::TargetNotEmpty { dir } if dir == target));
    assert!(target.join("note").exists());
    write(&WriteOptions { replace: true, ..WriteOptions::default() }).unwrap();
    assert!(!target.join("note").exists());
    assert_eq!(digests(&open(&target).snapshot_as_stored(PolicyVersion(0)).unwrap()), digests(&snapshot));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_checkpoint_can_be_written_over_the_one_it_came_from() {
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let original = open(&fixture("llama-tied"));
    write_values(&original, &original.template(), &target, &WriteOptions::default()).unwrap();
    let checkpoint = open(&target);
    let options = WriteOptions { replace: true, ..WriteOptions::default() };
    write_values(&checkpoint, &checkpoint.template(), &target, &options).unwrap();
    assert!(target.join("generation_config.json").exists());
    assert_eq!(
        open(&target).snapshot_as_stored(PolicyVersion(0)).unwrap().stamp(),
        original.snapshot_as_stored(PolicyVersion(0)).unwrap().stamp()
    );
}

#[test]
fn a_source_that_fails_leaves_nothing_and_the_old_directory_as_it_was() {
    let checkpoint = open(&fixture("qwen3"));
    let last = checkpoint.network().ids().last();
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let template = checkpoint.template();
    let failing = Counting { fails_at: last, ..Counting::new(&checkpoint) };
    let error = write_values(&failing, &template, &target, &WriteOptions::default()).unwrap_err();
    assert!(matches!(&error, CheckpointError::Source { tensor, .. } if tensor == "model.norm.weight"), "{error}");
    assert!(is_empty(out.path()));
    let short = Counting { short_at: last, ..Counting::new(&checkpoint) };
    let error = write_values(&short, &template, &target, &WriteOptions::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::WrongLength { expected: 64, actual: 63, .. }));
    assert!(is_empty(out.path()));
    write_values(&checkpoint, &template, &target, &WriteOptions::default()).unwrap();
    let replace = WriteOptions { replace: true, ..WriteOptions::default() };
    assert!(write_values(&failing, &template, &target, &replace).is_err());
    assert_eq!(
        digests(&open(&target).snapshot_as_stored(PolicyVersion(0)).unwrap()).len(),
        checkpoint.network().parameters.len()
    );
}

#[test]
fn another_models_configuration_is_refused() {
    let (tied, other) = (open(&fixture("llama-tied")), open(&fixture("qwen3")));
    let snapshot = tied.snapshot_as_stored(PolicyVersion(0)).unwrap();
    let out = tempfile::tempdir().unwrap();
    let error = write_checkpoint(&snapshot, &other.template(), &out.path().join("x"), &WriteOptions::default());
    assert!(matches!(error, Err(CheckpointError::OtherModel { path }) if path == fixture("qwen3").join("config.json")));
    assert!(is_empty(out.path()));
}

const FULL_DISK_DIR: &str = "MILES_TEST_FULL_DISK_DIR";

/// A disk that takes no more: a shell limits the size of files, and this very test runs again under it.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    if let Some(dir) = std::env::var_os(FULL_DISK_DIR) {
        let dir = Path::new(&dir);
        let checkpoint = open(&fixture("qwen3"));
        let error = write_values(&checkpoint, &checkpoint.template(), &dir.join("policy"), &WriteOptions::default());
        match error.unwrap_err() {
            CheckpointError::Io { path, .. } => assert_eq!(path, dir.join("policy/model.safetensors")),
            other => panic!("{other}"),
        }
        return;
    }
    let out = tempfile::tempdir().unwrap();
    // The output goes through pipes: the limit holds for a log file as well, and this run's may be longer already.
    let ran = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact writing::a_full_disk_leaves_nothing_half_written --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env(FULL_DISK_DIR, out.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(is_empty(out.path()));
}

#[test]
fn the_network_is_that_of_the_template() {
    let checkpoint = open(&fixture("qwen3-moe"));
    let network = Network::new(checkpoint.template().config.model());
    assert_eq!(network.parameters, checkpoint.network().parameters);
}
