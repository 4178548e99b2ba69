//! From a Hugging Face `config.json` to a [`ModelConfig`], and back.
//!
//! Both generations of keys are understood: `rope_theta` and `rope_scaling` or `rope_parameters`; `num_experts`,
//! `num_local_experts` or `n_routed_experts`; `torch_dtype` or `dtype`. Where both are present they have to agree.
//! What the library does not compute (another rotary rule, a sliding window in use, another activation, another
//! quantization method) is refused by key: a model that loads is the model that the file describes.
//!
//! The JSON itself is kept as loaded, so that writing it back changes the storage keys and nothing else.

mod compressed_tensors;
mod eos;
mod families;
pub(crate) mod keys;
mod modelopt;
pub(crate) mod quantization;
mod rope;
mod stored_layout;

pub use stored_layout::StoredLayout;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Architecture, ModelConfig, ModelError};
use crate::checkpoint::limits::MAX_JSON_BYTES;
use crate::registry::nearest;
use crate::tensor::Dtype;
use keys::Keys;
use quantization::Quantization;

/// What ModelOpt writes beside `config.json`.
pub(crate) const MODELOPT_CONFIG: &str = "hf_quant_config.json";

/// A parsed `config.json` with what was read from it.
#[derive(Clone, Debug)]
pub struct HuggingFaceConfig {
    path: PathBuf,
    json: Map<String, Value>,
    model: ModelConfig,
    quantization: Option<Quantization>,
    predicted_layers: usize,
}

/// `generation_config.json` and `hf_quant_config.json`, where they exist.
#[derive(Default)]
struct Beside<'a> {
    generation: Option<(&'a Path, &'a Map<String, Value>)>,
    modelopt: Option<(&'a Path, &'a Map<String, Value>)>,
}

impl HuggingFaceConfig {
    /// Reads `config.json` of a checkpoint directory and, where they exist, `generation_config.json` and
    /// `hf_quant_config.json`.
    ///
    /// # Errors
    /// [`ModelError`] when a file cannot be read or does not describe a supported model.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let json = read_object(&path)?;
        let (generation_path, modelopt_path) = (dir.join("generation_config.json"), dir.join(MODELOPT_CONFIG));
        let (generation, modelopt) = (read_optional(&generation_path)?, read_optional(&modelopt_path)?);
        let beside = Beside {
            generation: generation.as_ref().map(|object| (generation_path.as_path(), object)),
            modelopt: modelopt.as_ref().map(|object| (modelopt_path.as_path(), object)),
        };
        Self::parse(path, json, &beside)
    }

    /// Takes a `config.json` as a value; `path` names it in errors.
    ///
    /// # Errors
    /// [`ModelError`] when it does not describe a supported model.
    pub fn from_json(path: &Path, json: Map<String, Value>) -> Result<Self, ModelError> {
        Self::parse(path.to_owned(), json, &Beside::default())
    }

    fn parse(path: PathBuf, json: Map<String, Value>, beside: &Beside<'_>) -> Result<Self, ModelError> {
        let keys = Keys::new(&path, &json);
        let architecture = architecture(keys, &path)?;
        let mut model = families::model(architecture, keys)?;
        let generation = beside.generation.map(|(path, object)| Keys::new(path, object));
        model.eos_token_ids = eos::ids(keys, generation, model.vocab_size)?;
        let quantization = quantization(keys, beside)?;
        let predicted_layers = match architecture {
            Architecture::DeepseekV3 => keys.count("num_nextn_predict_layers")?.unwrap_or(1),
            _ => 0,
        };
        Ok(HuggingFaceConfig { model, quantization, predicted_layers, path, json })
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

    /// How quantized tensors are stored; `None` when no file declares a quantization.
    #[must_use]
    pub fn layout(&self) -> Option<StoredLayout> {
        self.quantization.as_ref().map(|quantization| quantization.layout)
    }

    /// Modules that are said to be kept in high precision, as the file spells them.
    #[must_use]
    pub fn kept_modules(&self) -> &[String] {
        self.quantization.as_ref().map(|quantization| quantization.kept.as_slice()).unwrap_or_default()
    }

    /// Layers behind the model's own that predict further tokens (DeepSeek's MTP); they are not part of the network.
    #[must_use]
    pub fn predicted_layers(&self) -> usize {
        self.predicted_layers
    }

    /// The JSON with other storage keys: `quantization_config` and the dtype. Everything else stays as loaded.
    #[must_use]
    pub fn stored_as(&self, dtype: Dtype, quantization_config: Option<Value>) -> Map<String, Value> {
        stored_as(&self.json, dtype, quantization_config)
    }
}

/// A `config.json` with other storage keys; see [`HuggingFaceConfig::stored_as`].
pub(crate) fn stored_as(
    loaded: &Map<String, Value>,
    dtype: Dtype,
    quantization_config: Option<Value>,
) -> Map<String, Value> {
    let mut json = loaded.clone();
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

/// What the files of a directory declare about stored tensors: the layout of codes, if any, and the modules kept in high
/// precision. `config` is its `config.json`.
pub(crate) fn stored_quantization(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<(Option<StoredLayout>, Vec<String>), ModelError> {
    let (path, modelopt_path) = (dir.join("config.json"), dir.join(MODELOPT_CONFIG));
    let modelopt = read_optional(&modelopt_path)?;
    let modelopt = modelopt.as_ref().map(|object| (modelopt_path.as_path(), object));
    let found = quantization(Keys::new(&path, config), &Beside { generation: None, modelopt })?;
    Ok(found.map_or((None, Vec::new()), |found| (Some(found.layout), found.kept)))
}

/// What the files declare. Where `hf_quant_config.json` describes the same weights as `config.json`, they have to agree.
fn quantization(keys: Keys<'_>, beside: &Beside<'_>) -> Result<Option<Quantization>, ModelError> {
    let inline = quantization::declared(keys)?;
    let Some((path, object)) = beside.modelopt else {
        return Ok(inline);
    };
    let beside_keys = Keys::new(path, object);
    match (inline, modelopt::beside(beside_keys)?) {
        (None, beside) => Ok(beside),
        (Some(inline), None) => {
            let why = format!("is null, but `config.json` declares {}", inline.layout.format());
            Err(beside_keys.contradiction("quantization.quant_algo", why))
        }
        (Some(inline), Some(beside)) if inline.layout != beside.layout => {
            let why = format!("is {}, but `config.json` declares {}", beside.layout.format(), inline.layout.format());
            Err(beside_keys.contradiction("quantization.quant_algo", why))
        }
        (Some(mut inline), Some(beside)) => {
            inline.kept.extend(beside.kept);
            inline.kept.sort_unstable();
            inline.kept.dedup();
            Ok(Some(inline))
        }
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

fn read_optional(path: &Path) -> Result<Option<Map<String, Value>>, ModelError> {
    match read_object(path) {
        Ok(object) => Ok(Some(object)),
        Err(ModelError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
