//! Layouts of compressed-tensors: bytes unchanged through a file, strict reading, refusals by name.

use std::fs;
use std::path::{Path, PathBuf};

use miles_core::checkpoint::{CheckpointError, StoredError, WriteOptions, write_checkpoint};
use miles_core::format::FormatError;
use miles_core::model::ModelError;
use miles_core::network::Role;
use miles_core::policy::{PolicyTensor, PolicyVersion};
use miles_core::precision::{Recipe, Rule, TensorFormat};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::files::{FIXTURES, bf16, digests, edit, edit_json, fixture, load, open, quantized, refused};

/// Matrices of attention and of experts.
const ROLES: [Role; 8] = [
    Role::AttentionQ,
    Role::AttentionK,
    Role::AttentionV,
    Role::MlpGate,
    Role::MlpUp,
    Role::ExpertGate,
    Role::ExpertUp,
    Role::ExpertDown,
];
const FORMATS: [&str; 5] = ["fp8-channel", "fp8-tensor", "int8-channel", "int4-group/32", "int4-group/64"];
const MODULE: &str = "model.layers.1.mlp.experts.2.up_proj";

/// A fixture with the matrices of some roles in `format`, written; those whose rows the groups of INT4 do not divide are
/// left out.
fn written(name: &str, format: &str, roles: &[Role]) -> (TempDir, PathBuf) {
    let checkpoint = open(&fixture(name));
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let group: usize = format.strip_prefix("int4-group/").map_or(1, |size| size.parse().unwrap());
    let fits = |role: &Role| {
        let mut own = checkpoint.network().parameters.iter().filter(|parameter| parameter.role == *role).peekable();
        own.peek().is_some() && own.all(|parameter| parameter.shape[1].is_multiple_of(group))
    };
    let roles: Vec<Role> = roles.iter().copied().filter(fits).collect();
    let snapshot = quantized(&checkpoint, Recipe::Bf16, &[Rule::roles(&roles, format.parse().unwrap())]);
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    let back = open(&target).snapshot_as_stored(PolicyVersion(0)).unwrap();
    assert_eq!(digests(&back), digests(&snapshot), "{name}, {format}");
    let codes = back.map().entries().iter().filter(|entry| matches!(entry.format, TensorFormat::Quantized(_))).count();
    assert!(codes > 0, "{name}, {format}");
    (out, target)
}

fn quantization(dir: &Path) -> Value {
    let config: Value = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
    config["quantization_config"].clone()
}

#[test]
fn every_format_on_every_fixture_comes_back_with_equal_digests() {
    for name in FIXTURES {
        for format in FORMATS {
            written(name, format, &ROLES);
        }
    }
    written("qwen3-moe", "int4-group/128", &[Role::AttentionO]);
}

#[test]
fn names_types_and_config_are_those_of_compressed_tensors() {
    let described = |format: &str| -> (Vec<String>, Value) {
        let (_out, dir) = written("qwen3-moe", format, &ROLES);
        let tensors = load(&dir.join("model.safetensors"));
        let own = tensors.iter().filter(|(name, _)| name.starts_with(MODULE));
        let text = own.map(|(name, tensor)| format!("{} {} {:?}", &name[MODULE.len()..], tensor.dtype, tensor.shape));
        (text.collect(), quantization(&dir))
    };
    let group = |config: &Value| config["config_groups"]["group_0"].clone();
    let (tensors, config) = described("fp8-channel");
    assert_eq!(tensors, [".weight F8_E4M3 [64, 64]", ".weight_scale F32 [64, 1]"]);
    assert_eq!((&config["quant_method"], &config["format"]), (&"compressed-tensors".into(), &"float-quantized".into()));
    assert_eq!(group(&config)["weights"]["strategy"], "channel");
    assert_eq!(group(&config)["input_activations"]["dynamic"], true);
    let (tensors, config) = described("fp8-tensor");
    assert_eq!(tensors, [".weight F8_E4M3 [64, 64]", ".weight_scale F32 [1]"]);
    assert_eq!(group(&config)["weights"]["strategy"], "tensor");
    let (tensors, config) = described("int8-channel");
    assert_eq!(tensors, [".weight I8 [64, 64]", ".weight_scale F32 [64, 1]"]);
    assert_eq!(config["format"], "int-quantized");
    let (tensors, config) = described("int4-group/32");
    assert_eq!(tensors, [".weight_packed I32 [64, 8]", ".weight_scale F32 [64, 2]", ".weight_shape I64 [2]"]);
    assert_eq!((&config["format"], &group(&config)["weights"]["group_size"]), (&"pack-quantized".into(), &32.into()));
    assert!(group(&config)["input_activations"].is_null());
    let ignored: Vec<String> = serde_json::from_value(config["ignore"].clone()).unwrap();
    assert!(ignored.contains(&"lm_head".to_owned()) && ignored.contains(&"model.layers.0.mlp.gate".to_owned()));
}

/// Scales of other checkpoints are BF16 or F16: widened, never rounded.
#[test]
fn scales_in_other_number_types_are_widened() {
    for (dtype, encode) in [
        (Dtype::BF16, bf16 as fn(&[f32]) -> Vec<u8>),
        (Dtype::F16, |values| values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()),
    ] {
        for format in FORMATS {
            let (_out, dir) = written("qwen3-moe", format, &ROLES);
            let mut rounded = Vec::new();
            edit(&dir, |tensors| {
                let scale = tensors.get_mut(&format!("{MODULE}.weight_scale")).unwrap();
                let values = scale.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                (scale.dtype, scale.bytes) = (dtype, encode(&values.collect::<Vec<_>>()));
                let widen = |bytes: &[u8; 2]| match dtype {
                    Dtype::BF16 => half::bf16::from_le_bytes(*bytes).to_f32(),
                    _ => half::f16::from_le_bytes(*bytes).to_f32(),
                };
                rounded = scale.bytes.as_chunks().0.iter().map(widen).collect();
            });
            let back = open(&dir);
            let id = back.network().find(&format!("{MODULE}.weight")).unwrap();
            let PolicyTensor::Quantized(tensor) = back.read_stored(id).unwrap() else { panic!("{format}") };
            let scales = if format == "fp8-tensor" { tensor.outer() } else { tensor.scales().as_f32().unwrap() };
            assert_eq!(scales, rounded, "{format}");
        }
    }
}

#[test]
fn o6_parts_that_are_missing_or_left_over_are_named() {
    for format in FORMATS {
        let codes = if format.starts_with("int4") { "weight_packed" } else { "weight" };
        let (_out, dir) = written("qwen3-moe", format, &ROLES);
        let scale = format!("{MODULE}.weight_scale");
        edit(&dir, |tensors| drop(tensors.remove(&scale).unwrap()));
        let error = refused(&dir);
        assert!(matches!(&error, CheckpointError::MissingScale { scale: named, .. } if *named == scale), "{error}");
        let (_out, dir) = written("qwen3-moe", format, &ROLES);
        edit(&dir, |tensors| drop(tensors.remove(&format!("{MODULE}.{codes}")).unwrap()));
        let error = refused(&dir);
        let CheckpointError::OrphanScale { tensor, state: "missing", .. } = &error else { panic!("{error}") };
        assert_eq!(*tensor, format!("{MODULE}.weight"));
    }
    let (_out, dir) = written("qwen3-moe", "int4-group/32", &ROLES);
    edit(&dir, |tensors| drop(tensors.remove(&format!("{MODULE}.weight_shape")).unwrap()));
    let error = refused(&dir);
    assert!(
        matches!(&error, CheckpointError::MissingScale { scale, .. } if scale.ends_with("weight_shape")),
        "{error}"
    );
}

/// Zero points and reordered columns change what codes mean: never ignored.
#[test]
fn zero_points_and_column_orders_are_refused_by_name() {
    for (part, dtype, shape, bytes) in [
        ("weight_zero_point", Dtype::I32, vec![8, 2], vec![0; 64]),
        ("weight_g_idx", Dtype::I32, vec![64], vec![0; 256]),
    ] {
        let (_out, dir) = written("qwen3-moe", "int4-group/32", &ROLES);
        let name = format!("{MODULE}.{part}");
        edit(&dir, |tensors| drop(tensors.insert(name.clone(), crate::files::Tensor { dtype, shape, bytes })));
        let error = refused(&dir);
        assert!(matches!(&error, CheckpointError::UnexpectedTensors { tensors, .. } if *tensors == [name]), "{error}");
    }
}

#[test]
fn extents_and_scales_that_contradict_the_codes_are_refused() {
    let (_out, dir) = written("qwen3-moe", "int4-group/32", &ROLES);
    edit(&dir, |tensors| tensors.get_mut(&format!("{MODULE}.weight_shape")).unwrap().bytes[8] = 63);
    let error = refused(&dir);
    let CheckpointError::Stored { source: StoredError::Extents { tensor, expected, found }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        (tensor.as_str(), *expected, found.as_slice()),
        (&*format!("{MODULE}.weight_shape"), [64, 64], &[64, 63][..])
    );
    for format in FORMATS {
        for value in [f32::NAN, f32::INFINITY, -0.5] {
            let (_out, dir) = written("qwen3-moe", format, &ROLES);
            edit(&dir, |tensors| {
                let bytes = &mut tensors.get_mut(&format!("{MODULE}.weight_scale")).unwrap().bytes;
                let at = bytes.len() - 4;
                bytes[at..].copy_from_slice(&value.to_le_bytes());
            });
            let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
            assert!(error.to_string().contains(MODULE), "{format}: {error}");
            match &error {
                CheckpointError::Stored { source: StoredError::Scale { row, block, .. }, .. } => {
                    let last = match format {
                        "fp8-tensor" => (0, 0),
                        "int4-group/32" => (63, 1),
                        _ => (63, 0),
                    };
                    assert_eq!(((*row, *block), value), (last, -0.5), "{format}");
                }
                CheckpointError::Format { source, .. } => assert!(
                    matches!(**source, FormatError::NonFiniteScale { row: 63, .. } | FormatError::BadOuter { .. })
                        && !value.is_finite(),
                    "{format}: {error}"
                ),
                _ => panic!("{format}: {error}"),
            }
        }
    }
    let (_out, dir) = written("qwen3-moe", "fp8-channel", &ROLES);
    edit(&dir, |tensors| tensors.get_mut(&format!("{MODULE}.weight_scale")).unwrap().shape = vec![64]);
    let error = refused(&dir);
    assert!(
        matches!(&error, CheckpointError::WrongShape { expected, found, .. } if expected == &[64, 1] && found == &[64])
    );
}

#[test]
fn what_has_no_place_in_a_layout_is_not_written() {
    let checkpoint = open(&fixture("qwen3-moe"));
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let write = |format: &str, roles: &[Role]| {
        let snapshot = quantized(&checkpoint, Recipe::Bf16, &[Rule::roles(roles, format.parse().unwrap())]);
        write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap_err()
    };
    let error = write("nvfp4/hadamard", &[Role::ExpertGate, Role::ExpertUp]);
    assert!(matches!(&error, CheckpointError::NoLayout { .. }) && error.to_string().contains("rotated"), "{error}");
    let error = write("int4-group/128", &[Role::ExpertGate, Role::ExpertUp]);
    let CheckpointError::Quantized { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(**source, FormatError::PartialGroup { cols: 64, .. }), "{error}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn keys_that_change_what_codes_mean_are_refused_by_name() {
    let weights = "config_groups/group_0/weights";
    let activations = "config_groups/group_0/input_activations";
    for (format, place, key, value) in [
        ("int4-group/32", weights, "symmetric", json!(false)),
        ("int4-group/32", weights, "actorder", json!("group")),
        ("int4-group/32", weights, "group_size", json!(16)),
        ("int4-group/32", weights, "num_bits", json!(3)),
        ("int4-group/32", weights, "dynamic", json!(true)),
        ("fp8-channel", weights, "strategy", json!("block")),
        ("fp8-channel", weights, "type", json!("posit")),
        ("fp8-channel", activations, "dynamic", json!(false)),
        ("fp8-channel", activations, "dynamic", json!("local")),
        ("fp8-channel", "", "format", json!("nvfp4-pack-quantized")),
        ("fp8-channel", "", "quantization_status", json!("frozen")),
        ("fp8-channel", "", "kv_cache_scheme", json!({ "num_bits": 8, "type": "float", "dynamic": false })),
        ("fp8-channel", "", "transform_config", json!({ "config_groups": { "R1": {} } })),
        ("fp8-channel", "", "sparsity_config", json!({ "format": "sparse-24-bitmask" })),
        ("fp8-channel", "config_groups/group_0", "output_activations", json!({ "num_bits": 8 })),
        ("int4-group/32", "config_groups/group_0", "input_activations", json!({ "num_bits": 8, "dynamic": true })),
        ("fp8-channel", "config_groups", "group_1", json!({})),
    ] {
        let (_out, dir) = written("qwen3-moe", format, &ROLES);
        edit_json(&dir.join("config.json"), |config| {
            let mut object = &mut config["quantization_config"];
            for part in place.split('/').filter(|part| !part.is_empty()) {
                object = &mut object[part];
            }
            object[key] = value.clone();
        });
        let error = refused(&dir);
        let named = if key == "group_1" { "config_groups" } else { key };
        let CheckpointError::Model(ModelError::Unsupported { key: found, .. }) = &error else {
            panic!("{key}: {error}")
        };
        assert!(found.starts_with("quantization_config.") && found.ends_with(named), "{key}: {error}");
    }
    // Columns in their own order, and keys that other releases leave out.
    let (_out, dir) = written("qwen3-moe", "int4-group/32", &ROLES);
    edit_json(&dir.join("config.json"), |config| {
        let quantization = config["quantization_config"].as_object_mut().unwrap();
        for key in ["quantization_status", "kv_cache_scheme", "global_compression_ratio", "ignore", "format"] {
            quantization.remove(key).unwrap();
        }
        quantization["config_groups"]["group_0"]["weights"]["actorder"] = json!("static");
    });
    open(&dir);
}
