//! Every way in which a directory can be wrong, each with the error that names the culprit.

use std::fs::{self, File};
use std::path::Path;

use miles_core::checkpoint::limits::{MAX_HEADER_BYTES, MAX_JSON_BYTES, MAX_RANK};
use miles_core::checkpoint::{Checkpoint, CheckpointError};
use miles_core::policy::PolicyVersion;
use serde_json::json;

use crate::files::{Tensor, copy, edit, edit_json, load, open, raw, refused, store};

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00005.safetensors";
const SECOND: &str = "model-00002-of-00005.safetensors";

fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("model.safetensors")
}

#[test]
fn no_weights() {
    let dir = copy("qwen3");
    fs::remove_file(file(dir.path())).unwrap();
    assert!(matches!(refused(dir.path()), CheckpointError::NoWeights { dir: named } if named == dir.path()));
    let nowhere = Checkpoint::open(&dir.path().join("nowhere")).unwrap_err();
    assert!(matches!(nowhere, CheckpointError::Model(_)) && nowhere.to_string().contains("nowhere/config.json"));
}

#[test]
fn missing_shard() {
    let dir = copy("qwen3-moe-sharded");
    fs::remove_file(dir.path().join(SECOND)).unwrap();
    let error = refused(dir.path());
    let CheckpointError::MissingShard { shard, tensor, .. } = &error else { panic!("{error}") };
    assert_eq!((shard.as_str(), tensor.as_str()), (SECOND, "model.layers.0.self_attn.o_proj.weight"));
    let dir = copy("qwen3-moe-sharded");
    edit_json(&dir.path().join(INDEX), |index| index["weight_map"]["lm_head.weight"] = json!("gone.safetensors"));
    let error = refused(dir.path());
    assert!(matches!(&error, CheckpointError::MissingShard { shard, .. } if shard == "gone.safetensors"), "{error}");
}

#[test]
fn bad_index() {
    let dir = copy("qwen3-moe-sharded");
    edit_json(&dir.path().join(INDEX), |index| index["weight_map"]["lm_head.weight"] = json!("../x.safetensors"));
    assert!(matches!(refused(dir.path()), CheckpointError::BadIndex { why, .. } if why.contains("../x.safetensors")));
    fs::write(dir.path().join(INDEX), "{\"metadata\": {}}").unwrap();
    assert!(matches!(refused(dir.path()), CheckpointError::BadIndex { why, .. } if why.contains("weight_map")));
}

#[test]
fn rejects_an_index_above_the_limit() {
    let dir = copy("qwen3-moe-sharded");
    File::create(dir.path().join(INDEX)).unwrap().set_len(MAX_JSON_BYTES + 1).unwrap();
    assert!(matches!(refused(dir.path()), CheckpointError::OverLimit { limit: MAX_JSON_BYTES, .. }));
}

#[test]
fn index_and_shards_disagree() {
    let dir = copy("qwen3-moe-sharded");
    edit_json(&dir.path().join(INDEX), |index| index["weight_map"]["extra.weight"] = json!(FIRST));
    let error = refused(dir.path());
    assert!(matches!(&error, CheckpointError::IndexMismatch { tensor, .. } if tensor == "extra.weight"), "{error}");
    let dir = copy("qwen3-moe-sharded");
    edit_json(&dir.path().join(INDEX), |index| {
        index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
    });
    let error = refused(dir.path());
    assert!(matches!(&error, CheckpointError::IndexMismatch { tensor, path, .. }
        if tensor == "lm_head.weight" && path.ends_with(FIRST)));
}

#[test]
fn duplicate_tensor() {
    let dir = copy("qwen3-moe-sharded");
    let (first, second) = (dir.path().join(FIRST), dir.path().join(SECOND));
    let mut tensors = load(&second);
    tensors.insert("lm_head.weight".into(), load(&first).remove("lm_head.weight").unwrap());
    store(&second, &tensors);
    let error = refused(dir.path());
    assert!(
        matches!(&error, CheckpointError::DuplicateTensor { tensor, first: a, second: b }
        if tensor == "lm_head.weight" && *a == first && *b == second),
        "{error}"
    );
    // Two names for one tensor.
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        let Tensor { dtype, shape, bytes } = &tensors["model.norm.weight"];
        let again = Tensor { dtype: *dtype, shape: shape.clone(), bytes: bytes.clone() };
        tensors.insert("model.language_model.norm.weight".into(), again);
    });
    assert!(
        matches!(refused(dir.path()), CheckpointError::DuplicateTensor { tensor, .. } if tensor == "model.norm.weight")
    );
    // One key twice in one header.
    let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    raw(&file(dir.path()), &format!(r#"{{"a":{entry},"a":{entry}}}"#), &[0]);
    assert!(matches!(refused(dir.path()), CheckpointError::DuplicateTensor { tensor, .. } if tensor == "a"));
}

#[test]
fn truncated_file() {
    let dir = copy("qwen3");
    let path = file(dir.path());
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    match refused(dir.path()) {
        CheckpointError::Truncated { path: named, tensor: Some(tensor), expected_bytes, actual_bytes } => {
            assert_eq!(
                (named, expected_bytes, actual_bytes),
                (path.clone(), whole.len() as u64, whole.len() as u64 - 1)
            );
            assert!(tensor.starts_with("model."));
        }
        other => panic!("{other}"),
    }
    for kept in [0, 7, 8, 200] {
        fs::write(&path, &whole[..kept]).unwrap();
        assert!(matches!(refused(dir.path()), CheckpointError::Truncated { tensor: None, .. }), "{kept} bytes");
    }
}

#[test]
fn unclaimed_bytes() {
    let dir = copy("qwen3");
    let path = file(dir.path());
    let mut longer = fs::read(&path).unwrap();
    longer.extend([1, 2, 3]);
    fs::write(&path, longer).unwrap();
    assert!(matches!(refused(dir.path()), CheckpointError::UnclaimedBytes { before: None, bytes: 3, .. }));
    raw(&path, r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#, &[0; 3]);
    assert!(matches!(refused(dir.path()), CheckpointError::UnclaimedBytes { before: Some(_), bytes: 1, .. }));
}

#[test]
fn overlapping_offsets() {
    let dir = copy("qwen3");
    let header =
        r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    raw(&file(dir.path()), header, &[0; 4]);
    let error = refused(dir.path());
    assert!(
        matches!(&error, CheckpointError::Overlap { first, second, .. } if first == "a" && second == "b"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_not_those_of_the_shape() {
    let dir = copy("qwen3");
    for header in [
        r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#.to_owned(),
        format!(r#"{{"a":{{"dtype":"F32","shape":[{0},{0}],"data_offsets":[0,8]}}}}"#, u64::MAX / 2),
        r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#.to_owned(),
    ] {
        raw(&file(dir.path()), &header, &[0; 8]);
        assert!(matches!(refused(dir.path()), CheckpointError::WrongSize { tensor, .. } if tensor == "a"), "{header}");
    }
}

#[test]
fn header_that_is_none() {
    let dir = copy("qwen3");
    for header in [
        "{",
        "[]",
        r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        r#"{"__metadata__":{"a":1}}"#,
    ] {
        raw(&file(dir.path()), header, &[0; 4]);
        assert!(matches!(refused(dir.path()), CheckpointError::BadHeader { .. }), "{header}");
    }
}

#[test]
fn rejects_headers_and_ranks_above_the_limit() {
    let dir = copy("qwen3");
    for length in [MAX_HEADER_BYTES + 1, u64::MAX] {
        fs::write(file(dir.path()), length.to_le_bytes()).unwrap();
        assert!(matches!(refused(dir.path()), CheckpointError::OverLimit { limit: MAX_HEADER_BYTES, .. }));
    }
    let shape = vec![1; MAX_RANK + 1];
    raw(
        &file(dir.path()),
        &json!({ "a": { "dtype": "U8", "shape": shape, "data_offsets": [0, 1] } }).to_string(),
        &[0],
    );
    assert!(matches!(refused(dir.path()), CheckpointError::OverLimit { actual: 9, .. }));
}

#[test]
fn missing_and_unexpected_tensors_are_listed() {
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        tensors.remove("model.norm.weight").unwrap();
        tensors.remove("model.layers.1.self_attn.q_norm.weight").unwrap();
    });
    match refused(dir.path()) {
        CheckpointError::MissingTensors { tensors, .. } => {
            assert_eq!(tensors, ["model.layers.1.self_attn.q_norm.weight", "model.norm.weight"]);
        }
        other => panic!("{other}"),
    }
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        for name in ["vision.patch.weight", "model.layers.3.input_layernorm.weight"] {
            let tensor = Tensor { dtype: safetensors::Dtype::BF16, shape: vec![1], bytes: vec![0; 2] };
            tensors.insert(name.into(), tensor);
        }
    });
    match refused(dir.path()) {
        CheckpointError::UnexpectedTensors { tensors, .. } => {
            assert_eq!(tensors, ["model.layers.3.input_layernorm.weight", "vision.patch.weight"]);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn wrong_shape_and_wrong_dtype() {
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        tensors.get_mut("model.layers.1.mlp.up_proj.weight").unwrap().shape.reverse();
    });
    match refused(dir.path()) {
        CheckpointError::WrongShape { tensor, expected, found, path } => {
            assert_eq!(tensor, "model.layers.1.mlp.up_proj.weight");
            assert_eq!((expected, found, path), (vec![160, 64], vec![64, 160], file(dir.path())));
        }
        other => panic!("{other}"),
    }
    for (dtype, name) in [(safetensors::Dtype::I16, "I16"), (safetensors::Dtype::U16, "U16")] {
        let dir = copy("qwen3");
        edit(dir.path(), |tensors| tensors.get_mut("model.norm.weight").unwrap().dtype = dtype);
        let error = refused(dir.path());
        assert!(
            matches!(&error, CheckpointError::WrongDtype { tensor, found, .. }
            if tensor == "model.norm.weight" && found == name),
            "{error}"
        );
    }
}

#[test]
fn non_finite_weights_are_named_by_row_and_column() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for dtype in [safetensors::Dtype::BF16, safetensors::Dtype::F16, safetensors::Dtype::F32] {
            let dir = copy("qwen3");
            edit(dir.path(), |tensors| {
                let tensor = tensors.get_mut("model.layers.2.mlp.down_proj.weight").unwrap();
                let mut values = vec![0.5; tensor.bytes.len() / 2];
                values[3 * 160 + 7] = value;
                tensor.dtype = dtype;
                tensor.bytes = match dtype {
                    safetensors::Dtype::BF16 => crate::files::bf16(&values),
                    safetensors::Dtype::F16 => {
                        values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
                    }
                    _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                };
            });
            let checkpoint = open(dir.path());
            let id = checkpoint.network().find("model.layers.2.mlp.down_proj.weight").unwrap();
            let values_error = checkpoint.read_f32(id, &mut Vec::new()).unwrap_err();
            let snapshot_error = checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap_err();
            for error in [values_error, snapshot_error] {
                let CheckpointError::NonFinite { path, tensor, row, column, value: found } = error else {
                    panic!("{error}")
                };
                assert_eq!((path, row, column), (file(dir.path()), 3, 7));
                assert_eq!(tensor, "model.layers.2.mlp.down_proj.weight");
                assert!(found.total_cmp(&value).is_eq() || found.is_nan() && value.is_nan());
            }
        }
    }
}
