use std::fs::{self, File};

use miles_core::checkpoint::CheckpointError;
use miles_core::policy::PolicyVersion;
use miles_core::precision::TensorFormat;
use miles_core::tensor::Dtype;

use crate::files::{FIXTURES, copy, edit, fixture, load, open};

#[test]
fn every_fixture_opens_and_gives_its_stored_values() {
    for name in FIXTURES {
        let checkpoint = open(&fixture(name));
        let mut stored = std::collections::BTreeMap::new();
        for entry in fs::read_dir(fixture(name)).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with("model")
                && path.extension().unwrap() == "safetensors"
            {
                stored.extend(load(&path));
            }
        }
        let network = checkpoint.network();
        assert_eq!(network.parameters.len(), stored.len(), "{name}");
        let mut values = Vec::new();
        for id in network.ids() {
            let parameter = network.parameter(id);
            let tensor = &stored[&parameter.name];
            checkpoint.read_f32(id, &mut values).unwrap();
            let expected: Vec<u32> =
                tensor.bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])) << 16).collect();
            assert_eq!(values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected, "{}", parameter.name);
            assert_eq!(checkpoint.dtype(id), Some(Dtype::Bf16));
            assert_eq!(parameter.shape, tensor.shape);
        }
    }
}

#[test]
fn as_stored_keeps_each_number_type() {
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        let wide = tensors.get_mut("model.norm.weight").unwrap();
        let values: Vec<f32> =
            wide.bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32() + 1e-7).collect();
        wide.dtype = safetensors::Dtype::F32;
        wide.bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let half = tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap();
        half.dtype = safetensors::Dtype::F16;
        half.bytes = half.bytes.chunks_exact(2).flat_map(|_| half::f16::from_f32(0.1).to_le_bytes()).collect();
    });
    let checkpoint = open(dir.path());
    let map = checkpoint.stored_map();
    let format = |name: &str| map.entry(checkpoint.network().find(name).unwrap()).format.clone();
    assert_eq!(format("model.norm.weight"), TensorFormat::Dense(Dtype::F32));
    assert_eq!(format("model.layers.0.mlp.up_proj.weight"), TensorFormat::Dense(Dtype::F16));
    assert_eq!(format("model.layers.0.mlp.gate_proj.weight"), TensorFormat::Dense(Dtype::Bf16));
    let snapshot = checkpoint.snapshot_as_stored(PolicyVersion(3)).unwrap();
    assert_eq!(snapshot.stamp().version, PolicyVersion(3));
    let id = checkpoint.network().find("model.norm.weight").unwrap();
    assert_eq!(snapshot.tensor(id).bytes(), 64 * 4);
    let mut values = Vec::new();
    checkpoint.read_f32(checkpoint.network().find("model.layers.0.mlp.up_proj.weight").unwrap(), &mut values).unwrap();
    assert_eq!(values[0], half::f16::from_f32(0.1).to_f32());
}

/// Memory: opening holds headers only, and a read takes the bytes of one tensor. Cutting the file after it was opened
/// leaves the tensors before the cut readable.
#[test]
fn tensors_are_read_one_at_a_time_from_the_file() {
    let dir = copy("qwen3");
    let checkpoint = open(dir.path());
    let network = checkpoint.network();
    let file = dir.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let header: serde_json::Map<String, serde_json::Value> = {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        serde_json::from_slice(&bytes[8..8 + length]).unwrap()
    };
    let data_start =
        bytes.len() as u64 - header.values().filter_map(|entry| entry["data_offsets"][1].as_u64()).max().unwrap();
    let end = |name: &str| header[name]["data_offsets"][1].as_u64().unwrap() + data_start;
    let middle = network.ids().map(|id| end(&network.parameter(id).name)).min().unwrap() + 40_000;
    File::options().write(true).open(&file).unwrap().set_len(middle).unwrap();
    let mut values = Vec::new();
    let (mut read, mut cut) = (0, 0);
    for id in network.ids() {
        let name = &network.parameter(id).name;
        match checkpoint.read_f32(id, &mut values) {
            Ok(()) => {
                assert!(end(name) <= middle);
                read += 1;
            }
            Err(CheckpointError::Truncated { path, tensor, .. }) => {
                assert!(end(name) > middle);
                assert_eq!((path, tensor.as_ref()), (file.clone(), Some(name)));
                cut += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(read > 0 && cut > 0, "{read} read, {cut} cut");
}

#[test]
fn wrapped_names_recomputed_buffers_and_predicted_layers_are_understood() {
    let plain = open(&fixture("deepseek-v3")).snapshot_as_stored(PolicyVersion(0)).unwrap();
    let dir = copy("deepseek-v3");
    edit(dir.path(), |tensors| {
        let wrapped = std::mem::take(tensors).into_iter().map(|(name, tensor)| {
            let name = match name.strip_prefix("model.") {
                Some(rest) => format!("model.language_model.{rest}"),
                None => name,
            };
            (name, tensor)
        });
        tensors.extend(wrapped);
        let extra = || crate::files::Tensor { dtype: safetensors::Dtype::F32, shape: vec![1], bytes: vec![0; 4] };
        tensors.insert("model.language_model.layers.0.self_attn.rotary_emb.inv_freq".into(), extra());
        tensors.insert("model.language_model.layers.3.eh_proj.weight".into(), extra());
    });
    let wrapped = open(dir.path()).snapshot_as_stored(PolicyVersion(0)).unwrap();
    assert_eq!(wrapped.stamp(), plain.stamp());
}
