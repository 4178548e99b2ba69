//! Where ModelOpt describes a checkpoint: beside `config.json`, in it, in old words and new ones.

use std::fs;
use std::path::{Path, PathBuf};

use miles_core::checkpoint::{CheckpointError, WriteOptions, write_checkpoint};
use miles_core::model::ModelError;
use miles_core::policy::PolicyVersion;
use miles_core::precision::Recipe;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::files::{digests, edit_json, fixture, open, quantized, refused};

const BESIDE: &str = "hf_quant_config.json";

fn written() -> (TempDir, PathBuf) {
    let checkpoint = open(&fixture("qwen3-moe"));
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let snapshot = quantized(&checkpoint, Recipe::Nvfp4Dequantized, &[]);
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    (out, target)
}

fn set(dir: &Path, quantization: Value) {
    edit_json(&dir.join("config.json"), |config| config["quantization_config"] = quantization);
}

/// Key and file of a refusal.
fn refusal(dir: &Path) -> (String, String) {
    match refused(dir) {
        CheckpointError::Model(
            ModelError::Unsupported { key, path, .. }
            | ModelError::Contradiction { key, path, .. }
            | ModelError::MissingKey { key, path },
        ) => (key, path.file_name().unwrap().to_str().unwrap().to_owned()),
        other => panic!("{other}"),
    }
}

#[test]
fn every_way_to_say_nvfp4_is_understood() {
    let (_out, dir) = written();
    let expected = digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap());
    let read =
        |what: &str| assert_eq!(digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap()), expected, "{what}");
    edit_json(&dir.join("config.json"), |config| drop(config.as_object_mut().unwrap().remove("quantization_config")));
    read("hf_quant_config.json alone");
    assert!(!open(&dir).config().kept_modules().is_empty());
    let excluded = json!(["lm_head", "model.layers.3*", "*.self_attn.*", "*.mlp.gate"]);
    set(
        &dir,
        json!({
            "quant_method": "modelopt", "producer": { "name": "modelopt", "version": "0.31.0" },
            "quantization": {
                "quant_algo": "NVFP4", "kv_cache_quant_algo": null, "group_size": 16, "exclude_modules": excluded,
            },
        }),
    );
    read("both, the older style in config.json");
    fs::remove_file(dir.join(BESIDE)).unwrap();
    read("the older style alone");
    let arguments = json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 });
    set(
        &dir,
        json!({
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": excluded,
            "config_groups": {
                "group_0": { "weights": arguments, "input_activations": arguments, "targets": ["Linear"] },
            },
        }),
    );
    read("the newer style");
    set(&dir, json!({ "quant_method": "modelopt_fp4", "quant_algo": "NVFP4" }));
    read("no list");
}

#[test]
fn wildcards_of_the_list_are_held_against_the_codes() {
    for pattern in ["model.layers.0*", "*.experts.*", "*mlp*"] {
        let (_out, dir) = written();
        edit_json(&dir.join(BESIDE), |beside| beside["quantization"]["exclude_modules"] = json!(["lm_head", pattern]));
        let error = refused(&dir).to_string();
        assert!(error.contains(pattern) && error.contains("holds codes"), "{error}");
    }
}

/// O12: scales of a quantized cache are calibrated; a directory that has them is not read as if they were 1.
#[test]
fn o12_a_quantized_cache_is_refused_by_key() {
    let (_out, dir) = written();
    edit_json(&dir.join(BESIDE), |beside| beside["quantization"]["kv_cache_quant_algo"] = json!("FP8"));
    assert_eq!(refusal(&dir), ("quantization.kv_cache_quant_algo".into(), BESIDE.into()));
    let (_out, dir) = written();
    edit_json(&dir.join("config.json"), |config| {
        config["quantization_config"]["kv_cache_scheme"] = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
    });
    assert_eq!(refusal(&dir), ("quantization_config.kv_cache_scheme".into(), "config.json".into()));
}

#[test]
fn two_descriptions_that_differ_are_refused() {
    let (_out, dir) = written();
    set(&dir, json!({ "quant_method": "mxfp8" }));
    assert_eq!(refusal(&dir), ("quantization.quant_algo".into(), BESIDE.into()));
    let (_out, dir) = written();
    edit_json(&dir.join(BESIDE), |beside| beside["quantization"]["quant_algo"] = Value::Null);
    assert_eq!(refusal(&dir), ("quantization.quant_algo".into(), BESIDE.into()));
    let (_out, dir) = written();
    edit_json(&dir.join(BESIDE), |beside| beside["quantization"]["quant_algo"] = json!("FP8"));
    assert_eq!(refusal(&dir), ("quantization.quant_algo".into(), BESIDE.into()));
    let (_out, dir) = written();
    fs::write(dir.join(BESIDE), "{}").unwrap();
    assert_eq!(refusal(&dir), ("quantization".into(), BESIDE.into()));
    let (_out, dir) = written();
    edit_json(&dir.join("config.json"), |config| {
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = json!(8);
    });
    assert_eq!(refusal(&dir), ("quantization_config.config_groups.*.weights.num_bits".into(), "config.json".into()));
}
