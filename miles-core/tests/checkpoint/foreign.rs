//! Checkpoints as other programs write them: variants of the numbers, of their storage, and what is refused.

use std::fs;
use std::path::PathBuf;

use miles_core::checkpoint::{CheckpointError, StoredError, WriteOptions, write_checkpoint};
use miles_core::format::FormatError;
use miles_core::model::huggingface::StoredLayout;
use miles_core::network::Role;
use miles_core::policy::{PolicyTensor, PolicyVersion};
use miles_core::precision::{Recipe, Rule, TensorFormat};
use safetensors::Dtype;
use serde_json::json;
use tempfile::TempDir;

use crate::files::{Tensor, bf16, digests, edit, edit_json, fixture, load, open, quantized, refused};

const ROLES: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
const MODULE: &str = "model.layers.1.mlp.experts.2.up_proj";
const WEIGHT: &str = "model.layers.1.mlp.experts.2.up_proj.weight";

/// The MoE fixture with its routed experts in `format`, written.
fn written(format: &str) -> (TempDir, PathBuf) {
    let checkpoint = open(&fixture("qwen3-moe"));
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    let snapshot = quantized(&checkpoint, Recipe::Bf16, &[Rule::roles(&ROLES, format.parse().unwrap())]);
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    (out, target)
}

fn values(dir: &std::path::Path, name: &str) -> Vec<f32> {
    let checkpoint = open(dir);
    let mut values = Vec::new();
    checkpoint.read_f32(checkpoint.network().find(name).unwrap(), &mut values).unwrap();
    values
}

/// A variant has the layout of its format: the same codes, scales and values come back, under the layout's format.
#[test]
fn variants_are_stored_and_mean_the_same_when_read() {
    let checkpoint = open(&fixture("qwen3-moe"));
    for rule in miles_core::format::builtin_rules() {
        let Some(layout) = StoredLayout::of(&rule.id()) else { continue };
        // Groups of 128 are longer than the rows of this model.
        if layout == StoredLayout::Int4Group128 {
            continue;
        }
        let format = TensorFormat::Quantized(rule.id());
        let snapshot = quantized(&checkpoint, Recipe::Bf16, &[Rule::roles(&ROLES, format)]);
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join("policy");
        write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
        let back = open(&target);
        let id = back.network().find(WEIGHT).unwrap();
        assert_eq!(back.stored_format(id), TensorFormat::Quantized(layout.format()), "{}", rule.id());
        let PolicyTensor::Quantized(read) = back.read_stored(id).unwrap() else { panic!() };
        let PolicyTensor::Quantized(held) = snapshot.tensor(id).as_ref() else { panic!() };
        assert_eq!(read.codes(), held.codes(), "{}", rule.id());
        assert_eq!((read.scales(), read.outer()), (held.scales(), held.outer()), "{}", rule.id());
    }
}

/// DeepSeek and Qwen store some block scales as BF16, newer ones E8M0; both widen exactly.
#[test]
fn block_scales_in_other_number_types_are_widened() {
    let (_out, dir) = written("fp8-block");
    edit(&dir, |tensors| {
        let scale = tensors.get_mut(&format!("{MODULE}.weight_scale_inv")).unwrap();
        (scale.dtype, scale.bytes) = (Dtype::BF16, bf16(&[0.0078125]));
    });
    let from_bf16 = values(&dir, WEIGHT);
    let (_out, dir) = written("fp8-block/power-of-two");
    edit(&dir, |tensors| {
        let scale = tensors.get_mut(&format!("{MODULE}.weight_scale_inv")).unwrap();
        (scale.dtype, scale.bytes) = (Dtype::F8_E8M0, vec![120]);
    });
    let back = open(&dir);
    let PolicyTensor::Quantized(tensor) = back.read_stored(back.network().find(WEIGHT).unwrap()).unwrap() else {
        panic!()
    };
    assert_eq!(tensor.scales().as_f32(), Some([0.0078125].as_slice()));
    assert_eq!(from_bf16.len(), 64 * 64);
    // NaN in E8M0, and a scale that is no power of two although the file says so.
    edit(&dir, |tensors| tensors.get_mut(&format!("{MODULE}.weight_scale_inv")).unwrap().bytes = vec![255]);
    let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
    let CheckpointError::Format { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(&**source, FormatError::NonFiniteScale { tensor, row: 0, block: 0, .. } if tensor == WEIGHT));
    edit(&dir, |tensors| {
        let scale = tensors.get_mut(&format!("{MODULE}.weight_scale_inv")).unwrap();
        (scale.dtype, scale.bytes) = (Dtype::F32, 0.01_f32.to_le_bytes().to_vec());
    });
    let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Stored { source: StoredError::Scale { tensor, value: 0.01, .. }, .. }
        if tensor == WEIGHT),
        "{error}"
    );
    // A scale type of powers of two is none of a checkpoint that does not declare them.
    let (_out, dir) = written("fp8-block");
    edit(&dir, |tensors| {
        let scale = tensors.get_mut(&format!("{MODULE}.weight_scale_inv")).unwrap();
        (scale.dtype, scale.bytes) = (Dtype::F8_E8M0, vec![120]);
    });
    assert!(matches!(refused(&dir), CheckpointError::WrongDtype { expected: "F32", .. }));
}

#[test]
fn mxfp8_scales_are_read_as_bytes_and_as_e8m0() {
    let (_out, dir) = written("mxfp8");
    let expected = digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap());
    edit(&dir, |tensors| {
        let scales = tensors.iter_mut().filter(|(name, _)| name.ends_with("weight_scale_inv"));
        scales.for_each(|(_, tensor)| tensor.dtype = Dtype::F8_E8M0);
    });
    assert_eq!(digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap()), expected);
}

/// A scale that no quantizer emits stops the reading of its tensor and names tensor, row and block.
#[test]
fn scales_that_are_no_scales_are_named_with_their_place() {
    for (format, scale, width, bytes) in [
        ("mxfp8", "weight_scale_inv", 2, vec![0xFF]),
        ("nvfp4", "weight_scale", 4, vec![0x7F]),
        ("nvfp4", "weight_scale", 4, vec![0xFF]),
        ("nvfp4", "weight_scale", 4, vec![0xB8]),
        ("fp8-block", "weight_scale_inv", 1, f32::NAN.to_le_bytes().to_vec()),
        ("fp8-block", "weight_scale_inv", 1, f32::INFINITY.to_le_bytes().to_vec()),
        ("fp8-block", "weight_scale_inv", 1, (-1.0_f32).to_le_bytes().to_vec()),
    ] {
        let (_out, dir) = written(format);
        // The last block of the last row of scales.
        let mut place = (0, 0);
        edit(&dir, |tensors| {
            let tensor = tensors.get_mut(&format!("{MODULE}.{scale}")).unwrap();
            assert_eq!(tensor.shape[1], width);
            place = (tensor.shape[0] - 1, width - 1);
            let at = tensor.bytes.len() - bytes.len();
            tensor.bytes[at..].copy_from_slice(&bytes);
        });
        let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
        let (tensor, row, block) = match &error {
            CheckpointError::Format { source, .. } => match &**source {
                FormatError::NanScale { tensor, row, block, .. }
                | FormatError::NonFiniteScale { tensor, row, block, .. } => (tensor, row, block),
                other => panic!("{other}"),
            },
            CheckpointError::Stored { source: StoredError::Scale { tensor, row, block, .. }, .. } => {
                (tensor, row, block)
            }
            other => panic!("{other}"),
        };
        assert_eq!((tensor.as_str(), (*row, *block)), (WEIGHT, place), "{format}: {error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
    for value in [f32::NAN, f32::INFINITY, -1.0] {
        let (_out, dir) = written("nvfp4");
        edit(&dir, |tensors| {
            tensors.get_mut(&format!("{MODULE}.weight_scale_2")).unwrap().bytes = value.to_le_bytes().to_vec();
        });
        let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
        let CheckpointError::Format { source, .. } = &error else { panic!("{error}") };
        assert!(
            matches!(&**source, FormatError::BadOuter { tensor, part: "outer", .. } if tensor == WEIGHT),
            "{error}"
        );
    }
}

#[test]
fn scale_shapes_that_are_not_those_of_the_blocks_are_refused_with_both_shapes() {
    let (_out, dir) = written("fp8-block");
    // As if the file had blocks of 64 rows or columns.
    for shape in [[2, 1], [1, 2]] {
        edit(&dir, |tensors| {
            let tensor = tensors.get_mut(&format!("{MODULE}.weight_scale_inv")).unwrap();
            (tensor.shape, tensor.bytes) = (shape.to_vec(), [1.0_f32.to_le_bytes(); 2].concat());
        });
        let error = refused(&dir);
        let CheckpointError::WrongShape { tensor, expected, found, .. } = &error else { panic!("{error}") };
        assert_eq!(
            (tensor.as_str(), &expected[..], &found[..]),
            (&*format!("{MODULE}.weight_scale_inv"), &[1, 1][..], &shape[..])
        );
    }
    for block in [json!([64, 64]), json!([128, 64]), json!([1, 128])] {
        edit_json(&dir.join("config.json"), |config| config["quantization_config"]["weight_block_size"] = block);
        assert!(refused(&dir).to_string().contains("quantization_config.weight_block_size"));
    }
}

/// O12: a calibrated activation scale is carried into what is made from a checkpoint; one that scales nothing is refused,
/// and so are scales of a quantized cache, which nothing here would apply.
#[test]
fn o12_calibrated_scales_are_carried_or_refused() {
    let (_out, dir) = written("nvfp4");
    let name = format!("{MODULE}.input_scale");
    assert_eq!(load(&dir.join("model.safetensors"))[&name].bytes, 1.0_f32.to_le_bytes());
    edit(&dir, |tensors| tensors.get_mut(&name).unwrap().bytes = 0.0123_f32.to_le_bytes().to_vec());
    edit(&dir, |tensors| {
        // Others have none: weight-only checkpoints.
        let gate = MODULE.replace("up_proj", "gate_proj");
        tensors.remove(&format!("{gate}.input_scale")).unwrap();
    });
    let back = open(&dir);
    let out = tempfile::tempdir().unwrap();
    let again = out.path().join("again");
    let snapshot = back.snapshot_as_stored(PolicyVersion(1)).unwrap();
    write_checkpoint(&snapshot, &back.template(), &again, &WriteOptions::default()).unwrap();
    assert_eq!(load(&again.join("model.safetensors"))[&name].bytes, 0.0123_f32.to_le_bytes());

    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        edit(&dir, |tensors| tensors.get_mut(&name).unwrap().bytes = f32::to_le_bytes(value).to_vec());
        let error = refused(&dir);
        assert!(
            matches!(&error, CheckpointError::Stored { source: StoredError::InputScale { tensor, .. }, .. }
            if *tensor == name),
            "{error}"
        );
    }
    let (_out, dir) = written("nvfp4");
    let cache_scale = "model.layers.0.self_attn.k_proj.k_scale";
    edit(&dir, |tensors| {
        let scale = Tensor { dtype: Dtype::F32, shape: Vec::new(), bytes: 0.5_f32.to_le_bytes().to_vec() };
        tensors.insert(cache_scale.to_owned(), scale);
    });
    let error = refused(&dir);
    assert!(
        matches!(&error, CheckpointError::UnexpectedTensors { tensors, .. } if tensors == &[cache_scale]),
        "{error}"
    );
}

/// What a file says is in high precision and holds codes is refused: an engine would take codes for weights. What it
/// does not list and holds in high precision is what it is.
#[test]
fn lists_of_kept_modules_are_held_against_what_is_stored() {
    for (format, key) in [("fp8-block", "modules_to_not_convert"), ("nvfp4", "ignore"), ("int8-channel", "ignore")] {
        for entry in [MODULE, "model.layers.1.mlp", "model.language_model.layers.1.mlp.experts", "*.experts.2.*"] {
            let (_out, dir) = written(format);
            edit_json(&dir.join("config.json"), |config| {
                config["quantization_config"][key].as_array_mut().unwrap().push(json!(entry));
            });
            if entry.contains('*') || entry == MODULE {
                let error = refused(&dir);
                let CheckpointError::Stored {
                    source: StoredError::KeptModuleHasCodes { tensor, entry: named }, ..
                } = &error
                else {
                    panic!("{error}")
                };
                assert!(named == entry && tensor.contains(".experts.2."), "{error}");
            } else {
                assert!(refused(&dir).to_string().contains(entry));
            }
        }
        let (_out, dir) = written(format);
        let expected = digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap());
        edit_json(&dir.join("config.json"), |config| config["quantization_config"][key] = json!([]));
        if format == "nvfp4" {
            fs::remove_file(dir.join("hf_quant_config.json")).unwrap();
        }
        assert_eq!(digests(&open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap()), expected, "{format}");
    }
}
