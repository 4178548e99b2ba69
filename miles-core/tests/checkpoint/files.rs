//! Copies of the fixtures, opened up for damage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miles_core::checkpoint::{Checkpoint, CheckpointError};
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source, builtin_rule};
use miles_core::network::Network;
use miles_core::plugin::{Quantizer, Support};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, Snapshot, quantize_policy};
use miles_core::precision::{Recipe, Rule, resolve};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

pub const FIXTURES: [&str; 7] =
    ["deepseek-v3", "llama-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3", "qwen3-moe", "qwen3-moe-sharded"];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/fixtures").join(name)
}

/// A writable copy of a fixture.
pub fn copy(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::write(dir.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
    }
    dir
}

pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

pub fn load(file: &Path) -> Tensors {
    let bytes = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let own = |view: TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    tensors.iter().map(|(name, view)| (name.to_owned(), own(view))).collect()
}

pub fn store(file: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, tensor)| (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap()));
    fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Changes the tensors of a directory with one file.
pub fn edit(dir: &Path, change: impl FnOnce(&mut Tensors)) {
    let file = dir.join("model.safetensors");
    let mut tensors = load(&file);
    change(&mut tensors);
    store(&file, &tensors);
}

pub fn edit_json(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// Writes a safetensors file from a header and data, right or wrong.
pub fn raw(file: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    fs::write(file, bytes).unwrap();
}

pub fn open(dir: &Path) -> Checkpoint {
    Checkpoint::open(dir).unwrap()
}

pub fn refused(dir: &Path) -> CheckpointError {
    Checkpoint::open(dir).expect_err("the checkpoint is damaged")
}

/// The built-in arithmetic as a quantizer.
pub struct Builtin;

impl Quantizer for Builtin {
    fn id(&self) -> &str {
        "builtin"
    }

    fn support(&self, _: &FormatId) -> Support {
        Support::Native
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> miles_core::Result<Vec<QuantizedTensor>> {
        Ok(builtin_rule(&spec.format).unwrap().quantize_joint(sources, spec)?)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> miles_core::Result<Vec<f32>> {
        Ok(tensor.dequantize_f32()?)
    }
}

pub fn quantized(checkpoint: &Checkpoint, recipe: Recipe, overrides: &[Rule]) -> Snapshot {
    let network: &Arc<Network> = checkpoint.network();
    let map = Arc::new(resolve(network, recipe, overrides).unwrap());
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "test", step: 0, version: PolicyVersion(0), ledger: &ledger };
    quantize_policy(network, &map, &Builtin, checkpoint, context).unwrap()
}

/// Digest of every tensor, by name.
pub fn digests(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let network = snapshot.network();
    network.ids().map(|id| (network.parameter(id).name.clone(), snapshot.tensor_digest(id).to_string())).collect()
}

pub fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
}
