//! Quantized layouts: bytes unchanged through a file, strictness both ways (O6), two outer scales honoured (O5).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use miles_core::checkpoint::{Checkpoint, CheckpointError, StoredForm, WriteOptions, write_checkpoint};
use miles_core::format::FormatError;
use miles_core::network::Role;
use miles_core::policy::{PolicyTensor, PolicyVersion};
use miles_core::precision::{Recipe, Rule, TensorFormat};
use miles_core::tensor::Dtype;
use serde_json::Value;
use tempfile::TempDir;

use crate::files::{FIXTURES, bf16, digests, edit, edit_json, fixture, load, open, quantized, refused};

/// A fixture quantized by a recipe and written; the last layer stays BF16.
fn written(name: &str, recipe: Recipe) -> (TempDir, PathBuf) {
    let checkpoint = open(&fixture(name));
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let snapshot = quantized(&checkpoint, recipe, &[]);
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    (out, target)
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
}

#[test]
fn every_recipe_on_every_fixture_comes_back_with_equal_digests() {
    for name in FIXTURES {
        let checkpoint = open(&fixture(name));
        for recipe in Recipe::ALL {
            let snapshot = quantized(&checkpoint, recipe, &[]);
            let out = tempfile::tempdir().unwrap();
            let target = out.path().join("policy");
            // Small files, so that codes and scales part company.
            let options = WriteOptions { max_shard_bytes: 40_000, ..WriteOptions::default() };
            write_checkpoint(&snapshot, &checkpoint.template(), &target, &options).unwrap();
            let back = open(&target).snapshot_as_stored(PolicyVersion(0)).unwrap();
            assert_eq!(digests(&back), digests(&snapshot), "{name}, {recipe}");
            let formats = |map: &miles_core::precision::PrecisionMap| -> Vec<String> {
                map.entries().iter().map(|entry| entry.format.to_string()).collect()
            };
            assert_eq!(formats(back.map()), formats(snapshot.map()), "{name}, {recipe}");
        }
    }
}

#[test]
fn values_are_the_dequantized_codes() {
    let checkpoint = open(&fixture("qwen3-moe"));
    for recipe in [Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
        let (_out, dir) = written("qwen3-moe", recipe);
        let back = open(&dir);
        let network = checkpoint.network();
        let (mut original, mut values) = (Vec::new(), Vec::new());
        let mut codes = 0;
        for id in network.ids() {
            checkpoint.read_f32(id, &mut original).unwrap();
            back.read_f32(id, &mut values).unwrap();
            match back.read_stored(id).unwrap() {
                PolicyTensor::Dense(_) => assert_eq!(values, original),
                PolicyTensor::Quantized(tensor) => {
                    codes += 1;
                    assert_eq!(values, tensor.dequantize_f32().unwrap());
                    let error: f32 = values.iter().zip(&original).map(|(a, b)| (a - b).powi(2)).sum();
                    let size: f32 = original.iter().map(|value| value * value).sum();
                    assert!(error < 0.02 * size && error > 0.0, "{recipe}: {error} of {size}");
                }
            }
        }
        assert!(codes > 0);
    }
}

#[test]
fn names_types_and_config_are_those_that_engines_read() {
    let base = "model.layers.0.mlp.experts.0.gate_proj";
    let described = |dir: &Path| -> Vec<String> {
        let tensors = load(&dir.join("model.safetensors"));
        let own = tensors.iter().filter(|(name, _)| name.starts_with(base));
        own.map(|(name, tensor)| format!("{} {} {:?}", &name[base.len()..], tensor.dtype, tensor.shape)).collect()
    };
    let (_out, dir) = written("qwen3-moe", Recipe::Fp8Block);
    assert_eq!(described(&dir), [".weight F8_E4M3 [64, 64]", ".weight_scale_inv F32 [1, 1]"]);
    let quantization = &config(&dir)["quantization_config"];
    assert_eq!(quantization["quant_method"], "fp8");
    assert_eq!(quantization["weight_block_size"], serde_json::json!([128, 128]));
    let (_out, dir) = written("qwen3-moe", Recipe::Mxfp8);
    assert_eq!(described(&dir), [".weight F8_E4M3 [64, 64]", ".weight_scale_inv U8 [64, 2]"]);
    assert_eq!(config(&dir)["quantization_config"]["quant_method"], "mxfp8");
    assert!(!dir.join("hf_quant_config.json").exists());
    let (_out, dir) = written("qwen3-moe", Recipe::Nvfp4Dequantized);
    let expected =
        [".input_scale F32 []", ".weight U8 [64, 32]", ".weight_scale F8_E4M3 [64, 4]", ".weight_scale_2 F32 []"];
    assert_eq!(described(&dir), expected);
    let quantization = &config(&dir)["quantization_config"];
    assert_eq!((&quantization["quant_method"], &quantization["quant_algo"]), (&"modelopt".into(), &"NVFP4".into()));
    let beside: Value = serde_json::from_slice(&fs::read(dir.join("hf_quant_config.json")).unwrap()).unwrap();
    assert_eq!(beside["quantization"]["exclude_modules"], quantization["ignore"]);
    let (_out, dir) = written("qwen3-moe", Recipe::Bf16);
    assert_eq!(config(&dir), config(&fixture("qwen3-moe")));
}

#[test]
fn the_list_of_modules_kept_is_complete() {
    for (recipe, key) in [(Recipe::Nvfp4Dequantized, "ignore"), (Recipe::Mxfp8, "modules_to_not_convert")] {
        let (_out, dir) = written("deepseek-v3", recipe);
        let kept: BTreeSet<String> = serde_json::from_value(config(&dir)["quantization_config"][key].clone()).unwrap();
        let checkpoint = open(&dir);
        let network = checkpoint.network();
        for id in network.ids() {
            let parameter = network.parameter(id);
            if matches!(parameter.role, Role::Norm | Role::Bias | Role::RouterBias) {
                continue;
            }
            let module = parameter.name.strip_suffix(".weight").unwrap();
            let is_dense = matches!(checkpoint.stored_format(id), TensorFormat::Dense(_));
            assert_eq!(kept.contains(module), is_dense, "{recipe}: {module}");
        }
        assert!(kept.contains("model.layers.2.mlp.experts") && !kept.contains("model.layers.1.mlp.experts"));
        assert!(kept.contains("lm_head") && kept.contains("model.layers.1.mlp.gate"));
        // The layer that predicts further tokens, for readers of patterns and for those of names.
        let is_pattern = kept.contains("model.layers.3.*");
        assert!(kept.contains("model.layers.3") && is_pattern == (key == "ignore"), "{recipe}: {kept:?}");
    }
}

#[test]
fn power_of_two_scales_keep_their_own_format() {
    let checkpoint = open(&fixture("qwen3"));
    let pow2: TensorFormat = "fp8-block/power-of-two".parse().unwrap();
    let snapshot = quantized(&checkpoint, Recipe::Bf16, &[Rule::roles(&[Role::MlpDown], pow2.clone())]);
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    let back = open(&target);
    let id = back.network().find("model.layers.0.mlp.down_proj.weight").unwrap();
    assert_eq!(back.stored_format(id), pow2);
    assert_eq!(digests(&back.snapshot_as_stored(PolicyVersion(0)).unwrap()), digests(&snapshot));
}

/// A tensor of layer 0 that every recipe but `bf16` quantizes in this model.
const CODES: &str = "model.layers.0.mlp.experts.1.down_proj.weight";

fn scale_of(recipe: Recipe) -> &'static str {
    match recipe {
        Recipe::Nvfp4Dequantized => "model.layers.0.mlp.experts.1.down_proj.weight_scale",
        _ => "model.layers.0.mlp.experts.1.down_proj.weight_scale_inv",
    }
}

#[test]
fn o6_codes_without_their_scale_are_refused() {
    for recipe in [Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
        let (_out, dir) = written("qwen3-moe", recipe);
        edit(&dir, |tensors| drop(tensors.remove(scale_of(recipe)).unwrap()));
        let error = refused(&dir);
        assert!(
            matches!(&error, CheckpointError::MissingScale { tensor, scale, .. }
            if tensor == CODES && scale == scale_of(recipe)),
            "{error}"
        );
    }
    let (_out, dir) = written("qwen3-moe", Recipe::Nvfp4Dequantized);
    let outer = "model.layers.0.mlp.experts.1.down_proj.weight_scale_2";
    edit(&dir, |tensors| drop(tensors.remove(outer).unwrap()));
    assert!(matches!(refused(&dir), CheckpointError::MissingScale { scale, .. } if scale == outer));
}

#[test]
fn o6_a_scale_without_codes_is_refused() {
    for recipe in [Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
        let (_out, dir) = written("qwen3-moe", recipe);
        edit(&dir, |tensors| drop(tensors.remove(CODES).unwrap()));
        let error = refused(&dir);
        assert!(
            matches!(&error, CheckpointError::OrphanScale { tensor, state: "missing", .. } if tensor == CODES),
            "{error}"
        );
        let (_out, dir) = written("qwen3-moe", recipe);
        edit(&dir, |tensors| {
            let tensor = tensors.get_mut(CODES).unwrap();
            (tensor.dtype, tensor.shape) = (safetensors::Dtype::BF16, vec![64, 64]);
            tensor.bytes = bf16(&[0.25; 64 * 64]);
        });
        let error = refused(&dir);
        assert!(
            matches!(&error, CheckpointError::OrphanScale { tensor, state: "in high precision", .. }
            if tensor == CODES),
            "{error}"
        );
    }
}

#[test]
fn o7_absent_optional_keys_have_defaults_and_codes_need_a_declaration() {
    let (_out, dir) = written("qwen3-moe", Recipe::Fp8Block);
    let expected = digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap());
    edit_json(&dir.join("config.json"), |config| {
        let quantization = config["quantization_config"].as_object_mut().unwrap();
        for key in ["fmt", "activation_scheme", "modules_to_not_convert"] {
            quantization.remove(key).unwrap();
        }
    });
    assert_eq!(digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap()), expected);
    edit_json(&dir.join("config.json"), |config| drop(config.as_object_mut().unwrap().remove("quantization_config")));
    let error = refused(&dir);
    assert!(matches!(&error, CheckpointError::UndeclaredLayout { dtype, .. } if dtype == "F8_E4M3"), "{error}");
}

#[test]
fn o5_gate_and_up_with_two_outer_scales_are_each_honoured() {
    let (_out, dir) = written("qwen3-moe", Recipe::Nvfp4Dequantized);
    let (gate, up) = ("model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.mlp.experts.0.up_proj");
    let read = |dir: &Path, name: &str| {
        let checkpoint: Checkpoint = open(dir);
        let mut values = Vec::new();
        checkpoint.read_f32(checkpoint.network().find(&format!("{name}.weight")).unwrap(), &mut values).unwrap();
        values
    };
    let (gate_before, up_before) = (read(&dir, gate), read(&dir, up));
    edit(&dir, |tensors| {
        let scale =
            |name: &str| f32::from_le_bytes(tensors[&format!("{name}.weight_scale_2")].bytes[..].try_into().unwrap());
        assert_eq!(scale(gate), scale(up), "written as one pair");
        let doubled = 2.0 * scale(up);
        tensors.get_mut(&format!("{up}.weight_scale_2")).unwrap().bytes = doubled.to_le_bytes().to_vec();
    });
    assert_eq!(read(&dir, gate), gate_before);
    assert_eq!(read(&dir, up), up_before.iter().map(|value| 2.0 * value).collect::<Vec<_>>());
}

#[test]
fn codes_and_scales_that_no_quantizer_emits_are_refused() {
    let (_out, dir) = written("qwen3-moe", Recipe::Mxfp8);
    edit(&dir, |tensors| tensors.get_mut(CODES).unwrap().bytes[2 * 64 + 5] = 0x7F);
    let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::NonFinite { tensor, row: 2, column: 5, .. } if tensor == CODES),
        "{error}"
    );
    for (recipe, bytes) in [
        (Recipe::Mxfp8, vec![0xFF]),
        (Recipe::Nvfp4Dequantized, vec![0x7F]),
        (Recipe::Fp8Block, f32::NAN.to_le_bytes().to_vec()),
    ] {
        let (_out, dir) = written("qwen3-moe", recipe);
        edit(&dir, |tensors| tensors.get_mut(scale_of(recipe)).unwrap().bytes[..bytes.len()].copy_from_slice(&bytes));
        let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
        let CheckpointError::Format { source, .. } = &error else { panic!("{error}") };
        assert!(matches!(**source, FormatError::NanScale { .. } | FormatError::NonFiniteScale { .. }), "{error}");
        assert!(error.to_string().contains(CODES), "{error}");
    }
}

#[test]
fn scales_of_another_shape_or_type_are_refused() {
    let (_out, dir) = written("qwen3-moe", Recipe::Mxfp8);
    edit(&dir, |tensors| tensors.get_mut(scale_of(Recipe::Mxfp8)).unwrap().shape.reverse());
    let error = refused(&dir);
    assert!(
        matches!(&error, CheckpointError::WrongShape { tensor, .. } if tensor == scale_of(Recipe::Mxfp8)),
        "{error}"
    );
    let (_out, dir) = written("qwen3-moe", Recipe::Fp8Block);
    edit(&dir, |tensors| tensors.get_mut(scale_of(Recipe::Fp8Block)).unwrap().dtype = safetensors::Dtype::I32);
    let error = refused(&dir);
    assert!(matches!(&error, CheckpointError::WrongDtype { expected: "F32", found, .. } if found == "I32"), "{error}");
}

#[test]
fn formats_without_a_common_layout_are_refused_before_anything_is_written() {
    let checkpoint = open(&fixture("qwen3-moe"));
    let overrides = [Rule::roles(&[Role::AttentionO], "mxfp8".parse().unwrap())];
    let snapshot = quantized(&checkpoint, Recipe::Nvfp4Dequantized, &overrides);
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let write = |form| {
        let options = WriteOptions { form, ..WriteOptions::default() };
        write_checkpoint(&snapshot, &checkpoint.template(), &target, &options)
    };
    let error = write(StoredForm::AsHeld).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::MixedFormats { first_format, second_format, .. }
        if first_format == "mxfp8" && second_format == "nvfp4"),
        "{error}"
    );
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    // In high precision the mixture has a layout: the dequantized values.
    write(StoredForm::Dense(Dtype::Bf16)).unwrap();
    let back = open(&target);
    assert!(back.network().ids().all(|id| back.dtype(id) == Some(Dtype::Bf16)));
    assert!(config(&target).get("quantization_config").is_none());
}
