//! Writing a Hugging Face directory, tensor by tensor, all or nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::declare::{hf_quant_config, quantization_config};
use super::error::{CheckpointError, io};
use super::header::Metadata;
use super::input_scales;
use super::kept::{self, kept_modules};
use super::layout::{layout_of, part_bytes, stored_parts};
use super::plan::{self, Piece, PlannedTensor};
use super::sidecar;
use super::staging::StagedDir;
use super::tensors::TensorWriter;
use crate::format::{FormatError, QuantizedTensor, builtin_rule};
use crate::model::huggingface::{HuggingFaceConfig, MODELOPT_CONFIG, StoredLayout};
use crate::network::{Network, ParamId, Role};
use crate::policy::{PolicyTensor, Snapshot, WeightSource};
use crate::registry;
use crate::tensor::{DenseTensor, Dtype};

/// Everything of a directory but its weights.
#[derive(Clone, Debug)]
pub struct Template {
    /// Configuration; written back with other storage keys.
    pub config: HuggingFaceConfig,
    /// Where the files of [`SIDECARS`](super::SIDECARS) are copied from.
    pub sidecar_dir: Option<PathBuf>,
}

/// How a directory is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Precision of the stored tensors.
    pub form: StoredForm,
    /// One tensor per expert, or packed.
    pub experts: ExpertLayout,
    /// Names and description of MXFP8.
    pub mxfp8: Mxfp8Layout,
    /// Largest file, unless one tensor alone is larger.
    pub max_shard_bytes: u64,
    /// Whether a target directory that holds something is replaced; otherwise it is refused.
    pub replace: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions {
            form: StoredForm::AsHeld,
            experts: ExpertLayout::PerExpert,
            mxfp8: Mxfp8Layout::ScaleInv,
            max_shard_bytes: 5_000_000_000,
            replace: false,
        }
    }
}

/// Precision of the stored tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredForm {
    /// The bytes of the policy version: codes and scales where it has them. Values from a [`WeightSource`] are BF16.
    AsHeld,
    /// High precision everywhere, codes dequantized. The router's selection bias keeps its own number type.
    Dense(Dtype),
}

/// Layout of routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `experts.N.gate_proj.weight` and so on.
    PerExpert,
    /// `experts.gate_up_proj` `[E, 2 I, H]` and `experts.down_proj` `[E, H, I]` (transformers 5); high precision only.
    Packed,
}

/// Two layouts of MXFP8 that hold the same bytes: engines know one or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mxfp8Layout {
    /// [`StoredLayout::Mxfp8`]: SGLang and transformers read it.
    #[default]
    ScaleInv,
    /// [`StoredLayout::Mxfp8ModelOpt`]: vLLM reads it.
    ModelOpt,
}

impl Mxfp8Layout {
    /// The layout under which tensors of a canonical layout are written.
    #[must_use]
    pub fn named(self, layout: StoredLayout) -> StoredLayout {
        match (layout, self) {
            (StoredLayout::Mxfp8, Mxfp8Layout::ModelOpt) => StoredLayout::Mxfp8ModelOpt,
            (layout, _) => layout,
        }
    }
}

/// Writes a policy version as a checkpoint directory. The directory appears whole or not at all; the head of a tied
/// model is never stored.
///
/// # Errors
/// [`CheckpointError`] when the target holds something, the formats have no common layout, or writing fails.
pub fn write_checkpoint(
    snapshot: &Snapshot,
    template: &Template,
    dir: &Path,
    options: &WriteOptions,
) -> Result<(), CheckpointError> {
    let network = snapshot.network();
    let held = |id: ParamId| snapshot.tensor(id).as_ref();
    let stored_dtype = |id: ParamId| match (options.form, held(id)) {
        (StoredForm::Dense(dtype), _) if network.parameter(id).role != Role::RouterBias => Some(dtype),
        (_, PolicyTensor::Dense(tensor)) => Some(tensor.dtype()),
        (_, PolicyTensor::Quantized(_)) => None,
    };
    let layout = common_layout(network, snapshot, &stored_dtype)?.map(|layout| options.mxfp8.named(layout));
    let tensors = planned(network, options.experts, layout, &stored_dtype)?;
    let beside = kept::Beside {
        tied_head: network.config.tie_word_embeddings,
        predicted_layers: template.config.predicted_layers(),
    };
    let kept = kept_modules(network, beside, |id| stored_dtype(id).is_some());
    let description = Description {
        dtype: stored_dtype(network.embedding).unwrap_or(Dtype::Bf16),
        layout: layout.map(|layout| (layout, kept)),
    };
    let input_scales = match (&template.sidecar_dir, layout) {
        (Some(source), Some(StoredLayout::Nvfp4)) => input_scales::read(source)?,
        _ => BTreeMap::new(),
    };
    let input_scale =
        |id: ParamId| input_scales.get(&network.parameter(id).name).copied().unwrap_or(input_scales::NEUTRAL);
    let mut bytes_of = |piece: &Piece| match piece {
        Piece::Dense(id, dtype) => dense_bytes(network, *id, held(*id), *dtype),
        Piece::Part(id, part) => match held(*id) {
            PolicyTensor::Quantized(tensor) => Ok(part_bytes(tensor, part, input_scale(*id))),
            PolicyTensor::Dense(tensor) => Ok(Cow::Borrowed(tensor.bytes())),
        },
    };
    write_directory(network, template, dir, options, tensors, &description, &mut bytes_of)
}

/// Writes high-precision values as a checkpoint directory, asking `source` for each parameter once.
///
/// # Errors
/// [`CheckpointError`] when the target holds something, `source` fails or gives another number of values, or writing
/// fails.
pub fn write_values(
    source: &dyn WeightSource,
    template: &Template,
    dir: &Path,
    options: &WriteOptions,
) -> Result<(), CheckpointError> {
    let network = Network::new(template.config.model());
    let dtype = match options.form {
        StoredForm::AsHeld => Dtype::Bf16,
        StoredForm::Dense(dtype) => dtype,
    };
    let stored_dtype =
        |id: ParamId| Some(if network.parameter(id).role == Role::RouterBias { Dtype::F32 } else { dtype });
    let tensors = planned(&network, options.experts, None, &stored_dtype)?;
    let mut values = Vec::new();
    let mut bytes_of = |piece: &Piece| {
        let (Piece::Dense(id, dtype), parameter) = (piece, piece.parameter(&network)) else {
            return Ok(Cow::Borrowed([].as_slice()));
        };
        let failed = |source| CheckpointError::Source { tensor: parameter.name.clone(), source: Box::new(source) };
        source.read(*id, &mut values).map_err(failed)?;
        let tensor = DenseTensor::from_f32(*dtype, parameter.shape.clone(), &values).map_err(|_| {
            let (expected, actual) = (parameter.elements(), values.len());
            CheckpointError::WrongLength { tensor: parameter.name.clone(), expected, actual }
        })?;
        Ok(Cow::Owned(tensor.bytes().to_vec()))
    };
    let description = Description { dtype, layout: None };
    write_directory(&network, template, dir, options, tensors, &description, &mut bytes_of)
}

/// What `config.json` says about the weights.
struct Description {
    dtype: Dtype,
    /// Layout of codes, with the modules kept in high precision.
    layout: Option<(StoredLayout, Vec<String>)>,
}

type BytesOf<'a, 'b> = &'a mut dyn FnMut(&Piece) -> Result<Cow<'b, [u8]>, CheckpointError>;

impl Piece {
    fn parameter<'n>(&self, network: &'n Network) -> &'n crate::network::Parameter {
        match self {
            Piece::Dense(id, _) | Piece::Part(id, _) => network.parameter(*id),
        }
    }
}

/// The one layout of all tensors that are stored as codes.
fn common_layout(
    network: &Network,
    snapshot: &Snapshot,
    stored_dtype: &dyn Fn(ParamId) -> Option<Dtype>,
) -> Result<Option<StoredLayout>, CheckpointError> {
    let mut common: Option<(ParamId, StoredLayout)> = None;
    for id in network.ids().filter(|id| stored_dtype(*id).is_none()) {
        let PolicyTensor::Quantized(tensor) = snapshot.tensor(id).as_ref() else { continue };
        let name = &network.parameter(id).name;
        let layout = layout_of(name, tensor)?;
        match common {
            None => common = Some((id, layout)),
            Some((first, first_layout)) if first_layout != layout => {
                return Err(CheckpointError::MixedFormats {
                    first: network.parameter(first).name.clone(),
                    first_format: first_layout.format().to_string(),
                    second: name.clone(),
                    second_format: layout.format().to_string(),
                });
            }
            Some(_) => {}
        }
    }
    Ok(common.map(|(_, layout)| layout))
}

fn planned(
    network: &Network,
    experts: ExpertLayout,
    layout: Option<StoredLayout>,
    stored_dtype: &dyn Fn(ParamId) -> Option<Dtype>,
) -> Result<Vec<PlannedTensor>, CheckpointError> {
    let mut tensors = Vec::new();
    let packed = experts == ExpertLayout::Packed;
    for (id, parameter) in network.ids().zip(&network.parameters) {
        if packed && parameter.expert.is_some() {
            continue;
        }
        match (stored_dtype(id), layout) {
            (Some(dtype), _) => tensors.push(plan::dense(network, id, dtype)),
            (None, Some(layout)) => {
                let (rows, cols) = parameter.rows_cols();
                let parts = stored_parts(layout, rows, cols).map_err(|source| quantized(&parameter.name, source))?;
                let all = [Some(parts.codes), Some(parts.scales), parts.outer, parts.input, parts.extents];
                tensors.extend(all.into_iter().flatten().map(|part| plan::part(network, id, part)));
            }
            (None, None) => return Err(no_packed_layout(network, id)),
        }
    }
    if packed {
        tensors
            .extend(plan::packed_experts(network, |id| stored_dtype(id).ok_or_else(|| no_packed_layout(network, id)))?);
    }
    Ok(tensors)
}

fn quantized(tensor: &str, source: FormatError) -> CheckpointError {
    CheckpointError::Quantized { tensor: tensor.to_owned(), source: Box::new(source) }
}

fn no_packed_layout(network: &Network, id: ParamId) -> CheckpointError {
    let tensor = network.parameter(id).name.clone();
    CheckpointError::NoLayout { tensor, format: "codes".to_owned(), why: "packed with those of other experts" }
}

/// The values of a tensor in a number type.
fn dense_bytes<'t>(
    network: &Network,
    id: ParamId,
    tensor: &'t PolicyTensor,
    dtype: Dtype,
) -> Result<Cow<'t, [u8]>, CheckpointError> {
    let parameter = network.parameter(id);
    let values = match tensor {
        PolicyTensor::Dense(dense) if dense.dtype() == dtype => return Ok(Cow::Borrowed(dense.bytes())),
        PolicyTensor::Dense(dense) => dense.to_f32(),
        PolicyTensor::Quantized(codes) => dequantize(codes).map_err(|source| quantized(&parameter.name, source))?,
    };
    let actual = values.len();
    let converted = DenseTensor::from_f32(dtype, parameter.shape.clone(), &values).map_err(|_| {
        CheckpointError::WrongLength { tensor: parameter.name.clone(), expected: parameter.elements(), actual }
    })?;
    Ok(Cow::Owned(converted.bytes().to_vec()))
}

/// By the built-in arithmetic of the format, or a registered one.
fn dequantize(tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
    match registry::format(tensor.format().as_str(), &Value::Null) {
        Ok(rule) if builtin_rule(tensor.format()).is_none() => rule.dequantize(tensor),
        _ => tensor.dequantize_f32(),
    }
}

fn write_directory(
    network: &Network,
    template: &Template,
    dir: &Path,
    options: &WriteOptions,
    tensors: Vec<PlannedTensor>,
    description: &Description,
    bytes_of: BytesOf<'_, '_>,
) -> Result<(), CheckpointError> {
    if network.config != *template.config.model() {
        return Err(CheckpointError::OtherModel { path: template.config.path().to_owned() });
    }
    let staged = StagedDir::new(dir, options.replace)?;
    let shards = plan::shards(tensors, options.max_shard_bytes);
    let names: Vec<String> = match shards.len() {
        0 | 1 => vec!["model.safetensors".to_owned()],
        count => (1..=count).map(|index| format!("model-{index:05}-of-{count:05}.safetensors")).collect(),
    };
    let mut weight_map = BTreeMap::new();
    let mut total_bytes = 0;
    for (shard, name) in shards.iter().zip(&names) {
        write_shard(&staged.path().join(name), &dir.join(name), shard, bytes_of)?;
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), name.clone())));
        total_bytes += shard.iter().map(PlannedTensor::bytes).sum::<u64>();
    }
    if shards.len() > 1 {
        let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
        write_json(&staged, dir, "model.safetensors.index.json", &index)?;
    }
    if let Some(source) = &template.sidecar_dir {
        sidecar::copy(source, staged.path())?;
    }
    let quantization = description.layout.as_ref().map(|(layout, kept)| quantization_config(*layout, kept));
    let config = template.config.stored_as(description.dtype, quantization);
    write_json(&staged, dir, "config.json", &Value::Object(config))?;
    if let Some(beside) = description.layout.as_ref().and_then(|(layout, kept)| hf_quant_config(*layout, kept)) {
        write_json(&staged, dir, MODELOPT_CONFIG, &beside)?;
    }
    staged.commit()
}

fn write_shard(
    path: &Path,
    shown: &Path,
    tensors: &[PlannedTensor],
    bytes_of: BytesOf<'_, '_>,
) -> Result<(), CheckpointError> {
    let announced: Vec<_> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.shape.as_slice())).collect();
    let metadata = Metadata::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = TensorWriter::create(path, shown, &announced, &metadata)?;
    for tensor in tensors {
        for piece in &tensor.pieces {
            writer.write(&tensor.name, &bytes_of(piece)?)?;
        }
    }
    writer.finish()
}

fn write_json(staged: &StagedDir, dir: &Path, name: &str, value: &Value) -> Result<(), CheckpointError> {
    let path = staged.path().join(name);
    // Alternate form: indented, as transformers writes it.
    fs::write(&path, format!("{value:#}\n")).map_err(io(&dir.join(name)))
}
