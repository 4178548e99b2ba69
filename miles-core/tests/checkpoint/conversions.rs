//! From every layout into every other: the values that the stored codes stand for, rounded to BF16, quantized again.

use std::path::{Path, PathBuf};

use miles_core::checkpoint::{CheckpointError, Mxfp8Layout, WriteOptions, write_checkpoint};
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source, SourceDtype, builtin_rule};
use miles_core::network::Role;
use miles_core::policy::{PolicyTensor, PolicyVersion, Snapshot};
use miles_core::precision::{PrecisionError, Recipe, Rule, resolve};
use safetensors::Dtype;
use serde_json::json;
use tempfile::TempDir;

use crate::files::{digests, edit, edit_json, fixture, load, open, quantized, refused};

const ROLES: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
/// One format per layout that the rows of the fixture fit.
const FORMATS: [&str; 9] = [
    "fp8-block",
    "fp8-block/power-of-two",
    "mxfp8",
    "nvfp4",
    "fp8-channel",
    "fp8-tensor",
    "int8-channel",
    "int4-group/32",
    "int4-group/64",
];

fn in_format(dir: &Path, format: &str) -> Snapshot {
    quantized(&open(dir), Recipe::Bf16, &[Rule::roles(&ROLES, format.parse().unwrap())])
}

fn written(dir: &Path, format: &str, options: &WriteOptions) -> (TempDir, PathBuf) {
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    write_checkpoint(&in_format(dir, format), &open(dir).template(), &target, options).unwrap();
    (out, target)
}

/// What the tensors of a pair become, without a file, a network or a policy: by the rules alone.
fn requantized(held: [&QuantizedTensor; 2], format: &FormatId) -> Vec<QuantizedTensor> {
    let values = held.map(|tensor| -> Vec<f32> {
        let mut parts = tensor.to_parts();
        // A directory does not hold it.
        parts.amax.clear();
        let rule = builtin_rule(tensor.format()).unwrap();
        let values = rule.dequantize(&QuantizedTensor::from_parts(rule, None, parts).unwrap()).unwrap();
        values.into_iter().map(|value| half::bf16::from_f32(value).to_f32()).collect()
    });
    let sources =
        [0, 1].map(|at| Source::new(&values[at], held[at].rows(), held[at].cols(), SourceDtype::Bf16, None).unwrap());
    builtin_rule(format).unwrap().quantize_joint(&sources, &QuantizeSpec::weight(format.clone())).unwrap()
}

#[test]
fn every_layout_converts_into_every_other() {
    const PAIR: [&str; 2] =
        ["model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.1.mlp.experts.2.up_proj.weight"];
    let original = fixture("qwen3-moe");
    for from in FORMATS {
        let (_out, source) = written(&original, from, &WriteOptions::default());
        let held = in_format(&original, from);
        for to in FORMATS {
            let (_out, target) = written(&source, to, &WriteOptions::default());
            let back = open(&target);
            let network = back.network();
            let tensors = PAIR.map(|name| match held.tensor(network.find(name).unwrap()).as_ref() {
                PolicyTensor::Quantized(tensor) => tensor.clone(),
                PolicyTensor::Dense(_) => panic!("{name} is dense"),
            });
            for (name, expected) in PAIR.iter().zip(requantized([&tensors[0], &tensors[1]], &to.parse().unwrap())) {
                let PolicyTensor::Quantized(found) = back.read_stored(network.find(name).unwrap()).unwrap() else {
                    panic!("{name} is dense")
                };
                assert_eq!(found.digest(), expected.digest(), "{from} to {to}: {name}");
            }
        }
    }
}

/// Both layouts of MXFP8 hold the same bytes under other names, and say so in other words.
#[test]
fn mxfp8_in_the_layout_of_modelopt_is_the_same_policy() {
    let original = fixture("qwen3-moe");
    let options = WriteOptions { mxfp8: Mxfp8Layout::ModelOpt, ..WriteOptions::default() };
    let (_out, own) = written(&original, "mxfp8", &WriteOptions::default());
    let (_out, modelopt) = written(&original, "mxfp8", &options);
    let stored = |dir: &Path| digests(&open(dir).snapshot_as_stored(PolicyVersion(0)).unwrap());
    assert_eq!(stored(&own), stored(&modelopt));
    let tensors = load(&modelopt.join("model.safetensors"));
    let module = "model.layers.1.mlp.experts.2.up_proj";
    let scale = &tensors[&format!("{module}.weight_scale")];
    assert_eq!((scale.dtype, scale.shape.as_slice()), (Dtype::U8, &[64, 2][..]));
    assert_eq!(scale.bytes, load(&own.join("model.safetensors"))[&format!("{module}.weight_scale_inv")].bytes);
    assert!(modelopt.join("hf_quant_config.json").exists() && !own.join("hf_quant_config.json").exists());
    // Either file alone tells the layout, and the names of the other layout are not taken for it.
    std::fs::remove_file(modelopt.join("hf_quant_config.json")).unwrap();
    assert_eq!(stored(&own), stored(&modelopt));
    for (key, value, named) in [
        ("quant_algo", json!("FP8"), "quant_algo"),
        ("group_size", json!(16), "group_size"),
        ("config_groups", json!({ "group_0": { "weights": { "num_bits": 4 } } }), "num_bits"),
    ] {
        let (_out, dir) = written(&original, "mxfp8", &options);
        edit_json(&dir.join("config.json"), |config| config["quantization_config"][key] = value.clone());
        let error = refused(&dir).to_string();
        assert!(error.contains("quantization_config") && error.contains(named), "{error}");
    }
    edit_json(&modelopt.join("config.json"), |config| {
        config["quantization_config"] = json!({ "quant_method": "mxfp8" });
    });
    let error = refused(&modelopt);
    assert!(
        matches!(&error, CheckpointError::MissingScale { scale, .. } if scale.ends_with("weight_scale_inv")),
        "{error}"
    );
}

/// O6: scales follow their codes and are never a tensor of their own. A rule for one decides nothing and is refused; a
/// rule that takes a tensor out of a format takes its scales with it, so no directory is left with one of the two.
#[test]
fn o6_no_rule_parts_a_tensor_from_its_scale() {
    let original = fixture("qwen3-moe");
    for (format, suffix) in
        [("fp8-block", "weight_scale_inv"), ("nvfp4", "weight_scale_2"), ("int8-channel", "weight_scale")]
    {
        let (_out, source) = written(&original, format, &WriteOptions::default());
        let rules = [Rule::name(&format!("*.{suffix}"), "f32".parse().unwrap())];
        let error = resolve(open(&source).network(), Recipe::Bf16, &rules).unwrap_err();
        assert!(matches!(error, PrecisionError::RuleWithoutEffect { .. }), "{error}");
        let kept = [
            Rule::name("model.layers.1.mlp.experts.2.*", "bf16".parse().unwrap()),
            Rule::roles(&ROLES, format.parse().unwrap()),
        ];
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join("policy");
        let checkpoint = open(&source);
        let snapshot = quantized(&checkpoint, Recipe::Bf16, &kept);
        write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
        let names: Vec<String> = load(&target.join("model.safetensors")).into_keys().collect();
        let of = |module: &str| names.iter().filter(|name| name.starts_with(module)).count();
        assert_eq!(of("model.layers.1.mlp.experts.2.up_proj."), 1, "{format}");
        assert!(of("model.layers.1.mlp.experts.3.up_proj.") > 1, "{format}");
        open(&target);
    }
}

/// Scales that a conversion would have to change are refused, not rounded: a checkpoint that declares powers of two and
/// holds another scale, codes of another layout than the declared one, a block size that the format does not have.
#[test]
fn what_cannot_be_honoured_exactly_is_refused() {
    let original = fixture("qwen3-moe");
    let (_out, dir) = written(&original, "fp8-block", &WriteOptions::default());
    edit_json(&dir.join("config.json"), |config| config["quantization_config"]["scale_fmt"] = json!("ue8m0"));
    let error = open(&dir).snapshot_as_stored(PolicyVersion(0)).unwrap_err();
    assert!(error.to_string().contains("no power of two"), "{error}");
    let (_out, dir) = written(&original, "fp8-block", &WriteOptions::default());
    edit_json(&dir.join("config.json"), |config| {
        config["quantization_config"] = json!({ "quant_method": "mxfp8" });
    });
    assert!(matches!(refused(&dir), CheckpointError::WrongShape { .. } | CheckpointError::WrongDtype { .. }));
    // Packed codes of all experts: their scales have no place in these layouts.
    let (_out, dir) = written(&original, "fp8-block", &WriteOptions::default());
    edit(&dir, |tensors| {
        for expert in 0..8 {
            for part in ["weight", "weight_scale_inv"] {
                let name = |matrix: &str| format!("model.layers.0.mlp.experts.{expert}.{matrix}.{part}");
                for matrix in ["gate_proj", "up_proj", "down_proj"] {
                    tensors.remove(&name(matrix)).unwrap();
                }
            }
        }
        for (name, rows) in [("gate_up_proj", 128), ("down_proj", 64)] {
            let shape = vec![8, rows, 64];
            let bytes = vec![0; 8 * rows * 64];
            let name = format!("model.layers.0.mlp.experts.{name}");
            tensors.insert(name, crate::files::Tensor { dtype: Dtype::F8_E4M3, shape, bytes });
        }
    });
    let error = refused(&dir);
    assert!(
        matches!(&error, CheckpointError::WrongDtype { tensor, .. } if tensor.ends_with("gate_up_proj")),
        "{error}"
    );
}
