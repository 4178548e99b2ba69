//! From a Hugging Face `config.json` to a [`ModelConfig`], and back.
//!
//! Both generations of keys are understood: `rope_theta` and `rope_scaling` or `rope_parameters`; `num_experts`,
//! `num_local_experts` or `n_routed_experts`; `torch_dtype` or `dtype`. Where both are present they have to agree.
//! What the library does not compute (another rotary rule, a sliding window in use, another activation, another
//! quantization method) is refused by key: a model that loads is the model that the file describes.
//!
//! The JSON itself is kept as loaded, so that writing it back changes the storage keys and nothing else.

mod eos;
mod families;
pub(crate) mod keys;
pub(crate) mod quantization;
mod rope;

pub use quantization::StoredLayout;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Architecture, ModelConfig, ModelError};
use crate::checkpoint::limits::MAX_JSON_BYTES;
use crate::registry::nearest;
use crate::tensor::Dtype;
use keys::Keys;

/// A parsed `config.json` with what was read from it.
#[derive(Clone, Debug)]
pub struct HuggingFaceConfig {
    path: PathBuf,
    json: Map<String, Value>,
    model: ModelConfig,
    layout: Option<StoredLayout>,
    predicted_layers: usize,
}

impl HuggingFaceConfig {
    /// Reads `config.json` and, where it exists, `generation_config.json` of a checkpoint directory.
    ///
    /// # Errors
    /// [`ModelError`] when a file cannot be read or does not describe a supported model.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let json = read_object(&path)?;
        let generation_path = dir.join("generation_config.json");
        let generation = match read_object(&generation_path) {
            Ok(object) => Some(object),
            Err(ModelError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Self::parse(path, json, generation.as_ref().map(|object| (generation_path.as_path(), object)))
    }

    /// Takes a `config.json` as a value; `path` names it in errors.
    ///
    /// # Errors
    /// [`ModelError`] when it does not describe a supported model.
    pub fn from_json(path: &Path, json: Map<String, Value>) -> Result<Self, ModelError> {
        Self::parse(path.to_owned(), json, None)
    }

    fn parse(
        path: PathBuf,
        json: Map<String, Value>,
        generation: Option<(&Path, &Map<String, Value>)>,
    ) -> Result<Self, ModelError> {
        let keys = Keys::new(&path, &json);
        let architecture = architecture(keys, &path)?;
        let mut model = families::model(architecture, keys)?;
        model.eos_token_ids =
            eos::ids(keys, generation.map(|(path, object)| Keys::new(path, object)), model.vocab_size)?;
        let layout = quantization::stored_layout(keys)?;
        let predicted_layers = match architecture {
            Architecture::DeepseekV3 => keys.count("num_nextn_predict_layers")?.unwrap_or(1),
            _ => 0,
        };
        Ok(HuggingFaceConfig { model, layout, predicted_layers, path, json })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// The file it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The JSON as loaded.
    #[must_use]
    pub fn json(&self) -> &Map<String, Value> {
        &self.json
    }

    /// How quantized tensors are stored; `None` when the file declares no quantization.
    #[must_use]
    pub fn layout(&self) -> Option<StoredLayout> {
        self.layout
    }

    /// Layers behind the model's own that predict further tokens (DeepSeek's MTP); they are not part of the network.
    #[must_use]
    pub fn predicted_layers(&self) -> usize {
        self.predicted_layers
    }

    /// The JSON with other storage keys: `quantization_config` and the dtype. Everything else stays as loaded.
    #[must_use]
    pub fn stored_as(&self, dtype: Dtype, quantization_config: Option<Value>) -> Map<String, Value> {
        let mut json = self.json.clone();
        match quantization_config {
            Some(value) => {
                json.insert("quantization_config".to_owned(), value);
            }
            None => {
                json.shift_remove("quantization_config");
            }
        }
        let name = match dtype {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
        };
        let present: Vec<&str> = ["dtype", "torch_dtype"].into_iter().filter(|key| json.contains_key(*key)).collect();
        // Every version of transformers, SGLang and vLLM reads the older key.
        for key in if present.is_empty() { vec!["torch_dtype"] } else { present } {
            json.insert(key.to_owned(), Value::from(name));
        }
        json
    }
}

fn architecture(keys: Keys<'_>, path: &Path) -> Result<Architecture, ModelError> {
    let names = keys.texts("architectures")?.ok_or_else(|| keys.missing("architectures"))?;
    let [found] = names.as_slice() else {
        return Err(keys.wrong("architectures", "a list of one name"));
    };
    Architecture::ALL.iter().find(|(name, _)| name == found).map(|(_, architecture)| *architecture).ok_or_else(|| {
        let known: Vec<&'static str> = Architecture::ALL.iter().map(|(name, _)| *name).collect();
        let nearest = nearest(found, known.iter().copied());
        ModelError::UnknownArchitecture { path: path.to_owned(), found: found.clone(), nearest, known }
    })
}

pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let bytes = File::open(path).and_then(|file| file.metadata()).map_err(io)?.len();
    if bytes > MAX_JSON_BYTES {
        return Err(ModelError::TooLarge { path: path.to_owned(), bytes, limit_bytes: MAX_JSON_BYTES });
    }
    let text = fs::read(path).map_err(io)?;
    crate::json::from_slice(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
