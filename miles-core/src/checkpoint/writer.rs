//! Writing a Hugging Face directory, tensor by tensor, all or nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::directory::{
    Description, DirectoryPlan, PlannedShard, common_layout, no_packed_layout, parameter_tensors, quantized,
};
use super::error::{CheckpointError, io};
use super::input_scales;
use super::kept::{self, kept_modules};
use super::layout::{layout_of, part_bytes};
use super::plan::{self, Piece, PlannedTensor};
use super::sidecar;
use super::staging::StagedDir;
use super::tensors::TensorWriter;
use crate::format::{FormatError, QuantizedTensor, builtin_rule};
use crate::model::huggingface::{HuggingFaceConfig, StoredLayout};
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
    let layout = common_layout(network, |id| match (stored_dtype(id), held(id)) {
        (None, PolicyTensor::Quantized(tensor)) => Some(layout_of(&network.parameter(id).name, tensor)),
        _ => None,
    })?
    .map(|layout| options.mxfp8.named(layout));
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
        // A snapshot holds parameters only, so this is planned by nobody.
        Piece::Other(_) => Ok(Cow::Borrowed([].as_slice())),
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
        let Piece::Dense(id, dtype) = piece else {
            return Ok(Cow::Borrowed([].as_slice()));
        };
        let parameter = network.parameter(*id);
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

type BytesOf<'a, 'b> = &'a mut dyn FnMut(&Piece) -> Result<Cow<'b, [u8]>, CheckpointError>;

fn planned(
    network: &Network,
    experts: ExpertLayout,
    layout: Option<StoredLayout>,
    stored_dtype: &dyn Fn(ParamId) -> Option<Dtype>,
) -> Result<Vec<PlannedTensor>, CheckpointError> {
    let mut tensors = Vec::new();
    let packed = experts == ExpertLayout::Packed;
    for (id, parameter) in network.ids().zip(&network.parameters) {
        if !packed || parameter.expert.is_none() {
            tensors.extend(parameter_tensors(network, id, stored_dtype(id), layout)?);
        }
    }
    if packed {
        tensors
            .extend(plan::packed_experts(network, |id| stored_dtype(id).ok_or_else(|| no_packed_layout(network, id)))?);
    }
    Ok(tensors)
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
    let plan = DirectoryPlan::new(tensors, options.max_shard_bytes, template.config.json(), description);
    for shard in &plan.shards {
        write_shard(&staged.path().join(&shard.name), &dir.join(&shard.name), shard, bytes_of)?;
    }
    if let Some(source) = &template.sidecar_dir {
        sidecar::copy(source, staged.path())?;
    }
    for (name, text) in &plan.texts {
        fs::write(staged.path().join(name), text).map_err(io(&dir.join(name)))?;
    }
    staged.commit()
}

fn write_shard(
    path: &Path,
    shown: &Path,
    shard: &PlannedShard,
    bytes_of: BytesOf<'_, '_>,
) -> Result<(), CheckpointError> {
    let sizes = shard.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.bytes())).collect();
    let mut writer = TensorWriter::create(path, shown, &shard.header, sizes)?;
    for tensor in &shard.tensors {
        for piece in &tensor.pieces {
            writer.write(&tensor.name, &bytes_of(piece)?)?;
        }
    }
    writer.finish()
}
