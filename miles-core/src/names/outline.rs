//! [`Outline`]: what the names of a model depend on beside its family.

use std::path::Path;

use serde_json::{Map, Value};

use super::Family;
use super::tables::Predicted;
use crate::checkpoint::limits::{MAX_LAYERS, MAX_TENSORS};
use crate::model::ModelError;
use crate::model::huggingface::{StoredLayout, keys::Keys, quantization, read_object};
use crate::registry::nearest;

/// Family and sizes of a model, from its `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Family.
    pub family: Family,
    /// Decoder layers.
    pub layers: usize,
    /// Most predicted layers that may be stored behind them.
    pub predicted_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Routed experts of a layer that has some; 0 where the family has none.
    pub experts: usize,
    /// Inner width of a routed expert; 0 where the family has none.
    pub expert_size: usize,
    /// Whether the head is the embedding table itself.
    pub tie_word_embeddings: bool,
    /// How quantized tensors are stored; `None` when the file declares no quantization.
    pub layout: Option<StoredLayout>,
}

const EXPERT_COUNT: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];
const PREDICTED_COUNT: [&str; 2] = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];

impl Outline {
    /// Reads the `config.json` of a directory.
    ///
    /// # Errors
    /// [`ModelError`] when it cannot be read, names no known family, or lacks a size.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        Self::from_json(&path, &read_object(&path)?)
    }

    /// Takes a `config.json` as a value; `path` names it in errors.
    ///
    /// # Errors
    /// [`ModelError`] when it names no known family, or lacks a size.
    pub fn from_json(path: &Path, json: &Map<String, Value>) -> Result<Self, ModelError> {
        let outer = Keys::new(path, json);
        let family = family(outer, path)?;
        // A multimodal wrapper describes its text model in an object of its own.
        let keys = match outer.object("text_config")? {
            Some(object) => outer.nested("text_config.", object),
            None => outer,
        };
        let layers = keys.required_size("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(keys.wrong("num_hidden_layers", &format!("at most {MAX_LAYERS}")));
        }
        let predicted_layers = match family.table().predicted {
            Predicted::None => 0,
            Predicted::Behind(_) | Predicted::Apart(_) => keys.count(keys.alias(&PREDICTED_COUNT)?)?.unwrap_or(1),
        };
        if predicted_layers > MAX_LAYERS {
            return Err(keys.wrong(keys.alias(&PREDICTED_COUNT)?, &format!("at most {MAX_LAYERS}")));
        }
        let (mut experts, mut expert_size) = (0, 0);
        if family.has_routed_experts() {
            let key = keys.alias(&EXPERT_COUNT)?;
            experts = keys.required_size(key)?;
            if experts.saturating_mul(6).saturating_mul(layers + predicted_layers) > MAX_TENSORS {
                return Err(keys.wrong(key, &format!("at most {MAX_TENSORS} tensors in all experts together")));
            }
            // Every layer of gpt-oss has experts, so it needs no second width.
            let width = if family == Family::GptOss { "intermediate_size" } else { "moe_intermediate_size" };
            expert_size = keys.required_size(width)?;
        }
        let tied = keys.flag("tie_word_embeddings")?.or(outer.flag("tie_word_embeddings")?);
        Ok(Outline {
            family,
            layers,
            predicted_layers,
            hidden_size: keys.required_size("hidden_size")?,
            experts,
            expert_size,
            tie_word_embeddings: tied.unwrap_or(false),
            layout: quantization::declared(outer)?.map(|declared| declared.layout),
        })
    }
}

fn family(keys: Keys<'_>, path: &Path) -> Result<Family, ModelError> {
    let names = keys.texts("architectures")?.ok_or_else(|| keys.missing("architectures"))?;
    let [found] = names.as_slice() else {
        return Err(keys.wrong("architectures", "a list of one name"));
    };
    let known = Family::ARCHITECTURES.map(|(name, _)| name);
    Family::ARCHITECTURES.iter().find(|(name, _)| name == found).map(|(_, family)| *family).ok_or_else(|| {
        let nearest = nearest(found, known);
        ModelError::UnknownArchitecture { path: path.to_owned(), found: found.clone(), nearest, known: known.to_vec() }
    })
}
