//! Directories that say two things at once: each is refused, because programs differ in which of the two they follow.

use std::fs;
use std::path::Path;

use miles_core::checkpoint::{CheckpointError, RawTensors};
use miles_core::policy::PolicyVersion;
use serde_json::{Value, json};

use crate::files::{copy, edit_json, fixture, open, raw, refused};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Writes a key of a JSON object a second time, with its own value.
fn double(file: &Path, key: &str) {
    let text = fs::read_to_string(file).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let first = text.find('{').unwrap() + 1;
    fs::write(file, format!("{{\"{key}\": {}, {}", json[key], &text[first..])).unwrap();
}

#[test]
fn a_key_given_twice_is_named_with_its_file() {
    for (file, key) in [(CONFIG, "hidden_size"), (CONFIG, "quantization_config"), ("generation_config.json", "eos")] {
        let dir = copy("qwen3");
        let path = dir.path().join(file);
        if !path.exists() {
            fs::write(&path, "{}").unwrap();
        }
        edit_json(&path, |json| {
            if json.get(key).is_none() {
                json[key] = json!(7);
            }
        });
        double(&path, key);
        let error = refused(dir.path()).to_string();
        assert!(error.contains(file) && error.contains(&format!("`{key}`")) && error.contains("twice"), "{error}");
    }
    // Inside another object.
    let dir = copy("qwen3");
    let text = fs::read_to_string(dir.path().join(CONFIG)).unwrap();
    let nested = text.replacen('{', "{\"extra\": [{\"kind\": 1, \"kind\": 2}],", 1);
    fs::write(dir.path().join(CONFIG), nested).unwrap();
    let error = refused(dir.path()).to_string();
    assert!(error.contains("`extra[0].kind`"), "{error}");
}

#[test]
fn a_tensor_given_twice_by_the_index_is_named() {
    let dir = copy("qwen3-moe-sharded");
    let path = dir.path().join(INDEX);
    let text = fs::read_to_string(&path).unwrap();
    let at = text.find("\"weight_map\"").unwrap();
    let open = at + text[at..].find('{').unwrap() + 1;
    fs::write(&path, format!("{}\"lm_head.weight\": \"gone.safetensors\",{}", &text[..open], &text[open..])).unwrap();
    let error = refused(dir.path());
    assert!(matches!(&error, CheckpointError::BadIndex { why, .. } if why.contains("`weight_map.lm_head.weight`")));
}

#[test]
fn an_entry_of_a_header_that_gives_a_key_twice_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let header = r#"{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#;
    raw(&path, header, &[0]);
    let error = RawTensors::open(&path).unwrap_err();
    assert!(matches!(&error, CheckpointError::BadHeader { why, .. } if why.contains("`a.shape`")), "{error}");
    raw(&path, r#"{"__metadata__":{"k":"1","k":"2"}}"#, &[]);
    let error = RawTensors::open(&path).unwrap_err();
    assert!(matches!(&error, CheckpointError::BadHeader { why, .. } if why.contains("`__metadata__.k`")), "{error}");
    raw(&path, r#"{"__metadata__":{},"__metadata__":{}}"#, &[]);
    let error = RawTensors::open(&path).unwrap_err();
    assert!(matches!(&error, CheckpointError::DuplicateTensor { tensor, .. } if tensor == "__metadata__"), "{error}");
}

/// transformers reads `model.safetensors` where it is there, vLLM the files that the index names.
#[test]
fn one_file_and_shards_beside_it_are_refused() {
    let dir = copy("qwen3-moe-sharded");
    fs::copy(fixture("qwen3-moe").join(SINGLE), dir.path().join(SINGLE)).unwrap();
    let error = refused(dir.path());
    let CheckpointError::TwoSources { single, index } = &error else { panic!("{error}") };
    assert_eq!((single, index), (&dir.path().join(SINGLE), &dir.path().join(INDEX)));

    // An index that names the one file says the same as the file.
    let dir = copy("qwen3-moe");
    let alone = open(dir.path()).snapshot_as_stored(PolicyVersion(0)).unwrap().stamp();
    let names = RawTensors::open(&dir.path().join(SINGLE)).unwrap();
    let map: serde_json::Map<String, Value> = names.names().map(|name| (name.to_owned(), json!(SINGLE))).collect();
    fs::write(dir.path().join(INDEX), json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
    assert_eq!(open(dir.path()).snapshot_as_stored(PolicyVersion(0)).unwrap().stamp(), alone);
    edit_json(&dir.path().join(INDEX), |index| index["weight_map"]["lm_head.weight"] = json!("other.safetensors"));
    assert!(matches!(refused(dir.path()), CheckpointError::TwoSources { .. }));
}

#[test]
fn a_declared_layout_that_no_tensor_has_is_refused() {
    for (declared, format) in [
        (json!({ "quant_method": "fp8", "weight_block_size": [128, 128] }), "fp8-block"),
        (json!({ "quant_method": "mxfp8" }), "mxfp8"),
        (json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" }), "nvfp4"),
    ] {
        let dir = copy("qwen3");
        edit_json(&dir.path().join(CONFIG), |config| config["quantization_config"] = declared);
        let error = refused(dir.path());
        let CheckpointError::NothingQuantized { path, format: found } = &error else { panic!("{error}") };
        assert_eq!((path, found.as_str()), (&dir.path().join(CONFIG), format));
    }
}
