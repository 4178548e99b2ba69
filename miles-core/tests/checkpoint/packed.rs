//! Routed experts in both layouts (field case O9).

use std::path::Path;

use miles_core::checkpoint::{CheckpointError, ExpertLayout, WriteOptions, write_checkpoint};
use miles_core::policy::PolicyVersion;
use miles_core::precision::Recipe;

use crate::files::{Tensor, Tensors, copy, edit, fixture, load, open, quantized, refused};

/// Packs the experts of each layer, rows and columns swapped where `transposed`.
fn pack(tensors: &mut Tensors, layers: usize, transposed: bool) {
    for layer in 0..layers {
        let name = |expert: usize, matrix: &str| format!("model.layers.{layer}.mlp.experts.{expert}.{matrix}.weight");
        let experts = (0..).take_while(|expert| tensors.contains_key(&name(*expert, "gate_proj"))).count();
        if experts == 0 {
            continue;
        }
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        let mut shapes = [[0; 2]; 2];
        for expert in 0..experts {
            let mut take = |matrix| tensors.remove(&name(expert, matrix)).unwrap();
            let (gate, up, down_proj) = (take("gate_proj"), take("up_proj"), take("down_proj"));
            let joined = [gate.bytes, up.bytes].concat();
            shapes = [[2 * gate.shape[0], gate.shape[1]], [down_proj.shape[0], down_proj.shape[1]]];
            for (into, bytes, shape) in [(&mut gate_up, joined, shapes[0]), (&mut down, down_proj.bytes, shapes[1])] {
                into.extend(if transposed { transpose(&bytes, shape) } else { bytes });
            }
        }
        for (suffix, bytes, [rows, cols]) in [("gate_up_proj", gate_up, shapes[0]), ("down_proj", down, shapes[1])] {
            let shape = if transposed { vec![experts, cols, rows] } else { vec![experts, rows, cols] };
            let tensor = Tensor { dtype: safetensors::Dtype::BF16, shape, bytes };
            tensors.insert(format!("model.layers.{layer}.mlp.experts.{suffix}"), tensor);
        }
    }
}

fn transpose(bytes: &[u8], [rows, cols]: [usize; 2]) -> Vec<u8> {
    let element = |row: usize, col: usize| &bytes[(row * cols + col) * 2..][..2];
    (0..cols).flat_map(|col| (0..rows).flat_map(move |row| element(row, col))).copied().collect()
}

fn packed_copy(name: &str, transposed: bool) -> tempfile::TempDir {
    let dir = copy(name);
    edit(dir.path(), |tensors| pack(tensors, 4, transposed));
    assert!(load(&dir.path().join("model.safetensors")).keys().any(|name| name.ends_with("gate_up_proj")));
    dir
}

fn policy_digest(dir: &Path) -> String {
    open(dir).snapshot_as_stored(PolicyVersion(0)).unwrap().stamp().digest.to_string()
}

#[test]
fn o9_same_model_in_both_layouts_gives_equal_policy_digest() {
    for name in ["qwen3-moe", "deepseek-v3"] {
        let expected = policy_digest(&fixture(name));
        for transposed in [false, true] {
            // Both fixtures have square down projections; the gate and up projections decide.
            assert_eq!(policy_digest(packed_copy(name, transposed).path()), expected, "{name}, {transposed}");
        }
    }
}

#[test]
fn o9_quantized_policies_are_equal_too() {
    let per_expert = quantized(&open(&fixture("qwen3-moe")), Recipe::Nvfp4Dequantized, &[]);
    let packed = quantized(&open(packed_copy("qwen3-moe", false).path()), Recipe::Nvfp4Dequantized, &[]);
    assert_eq!(packed.stamp(), per_expert.stamp());
}

#[test]
fn o9_packed_directories_are_written_and_read_back() {
    for name in ["qwen3-moe", "qwen3-moe-sharded", "deepseek-v3"] {
        let checkpoint = open(&fixture(name));
        let snapshot = checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap();
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join("packed");
        let options = WriteOptions { experts: ExpertLayout::Packed, ..WriteOptions::default() };
        write_checkpoint(&snapshot, &checkpoint.template(), &target, &options).unwrap();
        let stored = load(&target.join("model.safetensors"));
        assert!(stored.keys().any(|name| name.ends_with("mlp.experts.gate_up_proj")));
        assert!(!stored.keys().any(|name| name.contains(".experts.0.")));
        assert_eq!(policy_digest(&target), snapshot.stamp().digest.to_string(), "{name}");
    }
}

#[test]
fn codes_are_not_packed() {
    let checkpoint = open(&fixture("qwen3-moe"));
    let snapshot = quantized(&checkpoint, Recipe::Mxfp8, &[]);
    let out = tempfile::tempdir().unwrap();
    let options = WriteOptions { experts: ExpertLayout::Packed, ..WriteOptions::default() };
    let error = write_checkpoint(&snapshot, &checkpoint.template(), &out.path().join("x"), &options).unwrap_err();
    assert!(matches!(error, CheckpointError::NoLayout { tensor, .. } if tensor.contains(".experts.0.")));
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn packed_experts_of_another_shape_or_alone_are_refused() {
    let dir = packed_copy("qwen3-moe", false);
    edit(dir.path(), |tensors| {
        let tensor = tensors.get_mut("model.layers.1.mlp.experts.gate_up_proj").unwrap();
        tensor.shape = vec![tensor.shape[0] / 2, tensor.shape[1] * 2, tensor.shape[2]];
    });
    let error = refused(dir.path());
    assert!(
        matches!(&error, CheckpointError::WrongShape { tensor, expected, .. }
        if tensor == "model.layers.1.mlp.experts.gate_up_proj" && expected.len() == 3),
        "{error}"
    );
    let dir = packed_copy("qwen3-moe", false);
    edit(dir.path(), |tensors| drop(tensors.remove("model.layers.1.mlp.experts.down_proj").unwrap()));
    match refused(dir.path()) {
        CheckpointError::MissingTensors { tensors, .. } => {
            assert!(tensors.iter().all(|name| name.starts_with("model.layers.1.mlp.experts.")));
        }
        other => panic!("{other}"),
    }
}
