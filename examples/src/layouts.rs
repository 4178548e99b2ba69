//! A checkpoint stored in a layout and read back: what the example `layouts` does for each of them.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::{
    Checkpoint, CheckpointError, Mxfp8Layout, StoredForm, WriteOptions, write_checkpoint, write_values,
};
use miles_core::format::{FormatId, QuantizedTensor};
use miles_core::model::huggingface::StoredLayout;
use miles_core::network::{Network, ParamId, Role};
use miles_core::plugin::{ActivationDtype, EngineOptions, PublicationMode, RolloutEngine};
use miles_core::policy::{
    Ledger, PolicyContext, PolicyTensor, PolicyVersion, RuleQuantizer, Snapshot, WeightSource, quantize_policy,
};
use miles_core::precision::{PartitionPlan, Recipe, Rule, TensorFormat, resolve};
use miles_core::tensor::Dtype;

use crate::{OutputTensor, write_safetensors};

/// Every layout: its name here, the format stored in it, and the words of MXFP8.
pub const LAYOUTS: [(&str, &str, Mxfp8Layout); 11] = [
    ("fp8-block", "fp8-block", Mxfp8Layout::ScaleInv),
    ("fp8-block-power-of-two", "fp8-block/power-of-two", Mxfp8Layout::ScaleInv),
    ("mxfp8", "mxfp8", Mxfp8Layout::ScaleInv),
    ("mxfp8-modelopt", "mxfp8", Mxfp8Layout::ModelOpt),
    ("nvfp4", "nvfp4", Mxfp8Layout::ScaleInv),
    ("fp8-channel", "fp8-channel", Mxfp8Layout::ScaleInv),
    ("fp8-tensor", "fp8-tensor", Mxfp8Layout::ScaleInv),
    ("int8-channel", "int8-channel", Mxfp8Layout::ScaleInv),
    ("int4-group-32", "int4-group/32", Mxfp8Layout::ScaleInv),
    ("int4-group-64", "int4-group/64", Mxfp8Layout::ScaleInv),
    ("int4-group-128", "int4-group/128", Mxfp8Layout::ScaleInv),
];

/// What to store.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Name of the directory.
    pub name: &'static str,
    /// Format of the linear layers.
    pub format: FormatId,
    /// Words of MXFP8.
    pub mxfp8: Mxfp8Layout,
    /// Whether the dequantized weights are left as well.
    pub values: bool,
}

/// What a directory holds, and whether it came back as it was.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Tensors stored as codes.
    pub tensors: usize,
    /// Bytes of all tensors as they are held.
    pub bytes: usize,
    /// Whether every tensor has the digest of the one that was stored.
    pub same_digests: bool,
    /// Whether the forward over codes gives the same bits.
    pub same_logits_of_codes: bool,
    /// Whether the forward over the dequantized values gives the same bits.
    pub same_logits: bool,
}

/// Stores a checkpoint below `output`, reads it back and compares; `None` when the format fits no layer.
///
/// # Errors
/// If reading, quantizing or writing fails.
pub fn store(checkpoint: &Checkpoint, storage: &Storage, output: &Path) -> Result<Option<Stored>, Box<dyn Error>> {
    let network = checkpoint.network();
    let rules = rules(network, &storage.format);
    if rules.is_empty() {
        return Ok(None);
    }
    let map = Arc::new(resolve(network, Recipe::Bf16, &rules)?);
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "layouts", step: 0, version: PolicyVersion(0), ledger: &ledger };
    let snapshot = Arc::new(quantize_policy(network, &map, &RuleQuantizer, checkpoint, context)?);
    let dir = output.join(storage.name);
    let options = WriteOptions { mxfp8: storage.mxfp8, replace: true, ..WriteOptions::default() };
    write_checkpoint(&snapshot, &checkpoint.template(), &dir, &options)?;

    let stored = Checkpoint::open(&dir)?;
    let back = Arc::new(stored.snapshot_as_stored(PolicyVersion(0))?);
    let same_digests = network.ids().all(|id| back.tensor_digest(id) == snapshot.tensor_digest(id));
    let tokens = tokens(network.config.vocab_size);
    let of_codes = logits(&back, &tokens)?;
    let same_logits_of_codes = bits(&of_codes) == bits(&logits(&snapshot, &tokens)?);
    let values_dir = output.join(format!("{}.values", storage.name));
    let values = logits(&in_f32(checkpoint, &stored, &values_dir)?, &tokens)?;
    if !storage.values {
        fs::remove_dir_all(&values_dir)?;
    }
    let held_dir = output.join(format!("{}.held", storage.name));
    let held = logits(&in_f32(checkpoint, &Held(&snapshot), &held_dir)?, &tokens)?;
    fs::remove_dir_all(&held_dir)?;

    let shape = vec![ROWS, TOKENS, network.config.vocab_size];
    let ids: Vec<i32> = tokens.iter().flatten().map(|id| *id as i32).collect();
    let outputs = [
        ("input_ids".to_owned(), OutputTensor::i32(vec![ROWS, TOKENS], &ids)),
        ("logits".to_owned(), OutputTensor::f32(shape.clone(), &values)),
        ("logits_of_codes".to_owned(), OutputTensor::f32(shape, &of_codes)),
    ];
    write_safetensors(&output.join(format!("{}.logits.safetensors", storage.name)), &outputs)?;
    Ok(Some(Stored {
        tensors: rules.len(),
        bytes: network.ids().map(|id| snapshot.tensor(id).bytes()).sum(),
        same_digests,
        same_logits_of_codes,
        same_logits: bits(&values) == bits(&held),
    }))
}

/// One rule per linear layer that becomes codes.
fn rules(network: &Network, format: &FormatId) -> Vec<Rule> {
    let group = StoredLayout::of(format).and_then(StoredLayout::int4_group).unwrap_or(1);
    let fits = |id: ParamId| network.parameter(id).rows_cols().1.is_multiple_of(group);
    // Engines multiply all experts of a layer by one product.
    let experts_fit = |layer| {
        let is_own = |id: &ParamId| network.parameter(*id).expert.is_some() && network.parameter(*id).layer == layer;
        network.ids().filter(is_own).all(fits)
    };
    let takes = |id: &ParamId| {
        let parameter = network.parameter(*id);
        if parameter.expert.is_some() {
            return experts_fit(parameter.layer);
        }
        let stays = matches!(parameter.role, Role::Head | Role::Embedding | Role::Router | Role::SharedExpertGate);
        parameter.is_linear && !stays && fits(*id) && parameter.pair.is_none_or(fits)
    };
    let rule = |id| Rule::name(&network.parameter(id).name, TensorFormat::Quantized(format.clone()));
    network.ids().filter(takes).map(rule).collect()
}

/// The values that the products of a version multiply.
struct Held<'a>(&'a Snapshot);

impl WeightSource for Held<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        *into = match self.0.tensor(id).as_ref() {
            PolicyTensor::Dense(tensor) => tensor.to_f32(),
            PolicyTensor::Quantized(tensor) => without_amax(tensor)?.dequantize_f32()?,
        };
        Ok(())
    }
}

/// The tensor as a directory holds it: no product reads the amax, and none is stored.
fn without_amax(tensor: &QuantizedTensor) -> miles_core::Result<QuantizedTensor> {
    let mut parts = tensor.to_parts();
    parts.amax.clear();
    let rule = miles_core::format::builtin_rule(tensor.format());
    let rule = rule.ok_or_else(|| miles_core::format::FormatError::UnknownFormat {
        format: tensor.format().clone(),
        known: Vec::new(),
    })?;
    Ok(QuantizedTensor::from_parts(rule, None, parts)?)
}

/// A version in F32, left in `dir`.
fn in_f32(checkpoint: &Checkpoint, source: &dyn WeightSource, dir: &Path) -> Result<Arc<Snapshot>, CheckpointError> {
    let options = WriteOptions { form: StoredForm::Dense(Dtype::F32), replace: true, ..WriteOptions::default() };
    write_values(source, &checkpoint.template(), dir, &options)?;
    Checkpoint::open(dir)?.snapshot_as_stored(PolicyVersion(0)).map(Arc::new)
}

/// Logits `[ROWS, TOKENS, vocabulary]` with F32 activations.
fn logits(snapshot: &Arc<Snapshot>, tokens: &[Vec<u32>]) -> miles_core::Result<Vec<f32>> {
    let engine = CpuRef::new().engine(EngineOptions {
        network: Arc::clone(snapshot.network()),
        activations: ActivationDtype::F32,
        max_running: 1,
        context_tokens: TOKENS,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    })?;
    futures_lite::future::block_on(engine.load(Arc::clone(snapshot)))?;
    let rows = tokens.iter().map(|row| engine.logits(row)).collect::<Result<Vec<_>, _>>()?;
    Ok(rows.concat())
}

/// Token ids spread over the vocabulary.
fn tokens(vocab_size: usize) -> Vec<Vec<u32>> {
    let id = |row: usize, at: usize| ((row * TOKENS + at) * 7919 + 11) % vocab_size;
    (0..ROWS).map(|row| (0..TOKENS).map(|at| id(row, at) as u32).collect()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

const ROWS: usize = 2;
const TOKENS: usize = 23;
