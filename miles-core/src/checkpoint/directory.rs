//! What a directory will hold, file by file, decided before a byte of a weight is read. Every writer of directories
//! takes its files from here, so that they cannot differ in names, headers or configuration.

use std::collections::BTreeMap;

use safetensors::Dtype as StoredDtype;
use serde_json::{Map, Value, json};

use super::declare::{hf_quant_config, quantization_config};
use super::error::CheckpointError;
use super::header::{self, Metadata};
use super::layout::stored_parts;
use super::plan::{self, PlannedTensor};
use crate::format::FormatError;
use crate::model::huggingface::{MODELOPT_CONFIG, StoredLayout, stored_as};
use crate::network::{Inventory, ParamId};
use crate::tensor::Dtype;

/// Every file of a directory but those that are copied from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryPlan {
    /// Files of weights, in order.
    pub(crate) shards: Vec<PlannedShard>,
    /// The other files: name and text.
    pub(crate) texts: Vec<(&'static str, String)>,
}

/// One file of weights.
#[derive(Clone, Debug)]
pub(crate) struct PlannedShard {
    pub(crate) name: String,
    /// The bytes before the data.
    pub(crate) header: Vec<u8>,
    /// In the order of their bytes.
    pub(crate) tensors: Vec<PlannedTensor>,
}

/// What `config.json` says about the weights.
pub(crate) struct Description {
    /// Number type of what is stored in high precision.
    pub(crate) dtype: Dtype,
    /// Layout of codes, with the modules kept in high precision.
    pub(crate) layout: Option<(StoredLayout, Vec<String>)>,
}

impl PlannedShard {
    /// Length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.header.len() as u64 + self.tensors.iter().map(PlannedTensor::bytes).sum::<u64>()
    }
}

impl DirectoryPlan {
    /// Cuts `tensors`, in order, into files; `config` is the configuration as it was loaded.
    pub(crate) fn new(
        tensors: Vec<PlannedTensor>,
        max_shard_bytes: u64,
        config: &Map<String, Value>,
        description: &Description,
    ) -> Self {
        let shards = plan::shards(tensors, max_shard_bytes);
        let names: Vec<String> = match shards.len() {
            0 | 1 => vec!["model.safetensors".to_owned()],
            count => (1..=count).map(|index| format!("model-{index:05}-of-{count:05}.safetensors")).collect(),
        };
        let mut texts = Vec::new();
        if shards.len() > 1 {
            let mut weight_map = BTreeMap::new();
            for (shard, name) in shards.iter().zip(&names) {
                weight_map.extend(shard.iter().map(|tensor| (tensor.name.as_str(), name.as_str())));
            }
            let total_bytes = shards.iter().flatten().map(PlannedTensor::bytes).sum::<u64>();
            let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
            texts.push(("model.safetensors.index.json", text(&index)));
        }
        let quantization = description.layout.as_ref().map(|(layout, kept)| quantization_config(*layout, kept));
        let config = stored_as(config, description.dtype, quantization);
        texts.push(("config.json", text(&Value::Object(config))));
        if let Some(beside) = description.layout.as_ref().and_then(|(layout, kept)| hf_quant_config(*layout, kept)) {
            texts.push((MODELOPT_CONFIG, text(&beside)));
        }
        let shards = shards.into_iter().zip(names).map(|(tensors, name)| PlannedShard::new(name, tensors)).collect();
        DirectoryPlan { shards, texts }
    }
}

impl PlannedShard {
    fn new(name: String, tensors: Vec<PlannedTensor>) -> Self {
        let announced: Vec<(&str, StoredDtype, &[usize])> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.shape.as_slice())).collect();
        let header = header::encode(&announced, &Metadata::from([("format".to_owned(), "pt".to_owned())]));
        PlannedShard { name, header, tensors }
    }
}

/// The one layout of all parameters that are stored as codes, `layout_of` giving each one's own; `None` for a parameter
/// in high precision.
pub(crate) fn common_layout(
    inventory: &Inventory,
    layout_of: impl Fn(ParamId) -> Option<Result<StoredLayout, CheckpointError>>,
) -> Result<Option<StoredLayout>, CheckpointError> {
    let mut common: Option<(ParamId, StoredLayout)> = None;
    for id in inventory.ids() {
        let Some(layout) = layout_of(id).transpose()? else { continue };
        match common {
            None => common = Some((id, layout)),
            Some((first, first_layout)) if first_layout != layout => {
                return Err(CheckpointError::MixedFormats {
                    first: inventory.parameter(first).name.clone(),
                    first_format: first_layout.format().to_string(),
                    second: inventory.parameter(id).name.clone(),
                    second_format: layout.format().to_string(),
                });
            }
            Some(_) => {}
        }
    }
    Ok(common.map(|(_, layout)| layout))
}

/// The stored tensors of one parameter: one in high precision, or all parts of its layout where `dtype` is `None`.
pub(crate) fn parameter_tensors(
    inventory: &Inventory,
    id: ParamId,
    dtype: Option<Dtype>,
    layout: Option<StoredLayout>,
) -> Result<Vec<PlannedTensor>, CheckpointError> {
    let parameter = inventory.parameter(id);
    match (dtype, layout) {
        (Some(dtype), _) => Ok(vec![plan::dense(parameter, id, dtype)]),
        (None, Some(layout)) => {
            let (rows, cols) = parameter.rows_cols();
            let parts = stored_parts(layout, rows, cols).map_err(|source| quantized(&parameter.name, source))?;
            let all = [Some(parts.codes), Some(parts.scales), parts.outer, parts.input, parts.extents];
            Ok(all.into_iter().flatten().map(|part| plan::part(parameter, id, part)).collect())
        }
        (None, None) => Err(no_packed_layout(inventory, id)),
    }
}

pub(super) fn quantized(tensor: &str, source: FormatError) -> CheckpointError {
    CheckpointError::Quantized { tensor: tensor.to_owned(), source: Box::new(source) }
}

pub(super) fn no_packed_layout(inventory: &Inventory, id: ParamId) -> CheckpointError {
    let tensor = inventory.parameter(id).name.clone();
    CheckpointError::NoLayout { tensor, format: "codes".to_owned(), why: "packed with those of other experts" }
}

/// Indented, as transformers writes it.
fn text(value: &Value) -> String {
    format!("{value:#}\n")
}
