//! [`StoredModel`]: the parameters of a directory of any known family, with or without a forward pass.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Checkpoint;
use super::bind::{self, Binding};
use super::bound::Bound;
use super::error::{CheckpointError, io};
use super::input_scales;
use super::kept;
use super::names;
use super::reader::{StoredTensors, TensorRef};
use super::tied;
use crate::digest::Digest;
use crate::model::huggingface::{MODELOPT_CONFIG, read_object, stored_quantization};
use crate::names::stored::Spelling;
use crate::names::{Family, NamedInventory, Outline, StoredTensor, inventory};
use crate::network::{Inventory, ParamId, Parameter};
use crate::policy::{PolicyTensor, WeightSource};
use crate::precision::TensorFormat;
use crate::tensor::{DenseTensor, Dtype};

/// An open checkpoint directory of any family whose names are known: its parameters, and a source of their values.
///
/// | family | parameters of the policy | stored beside them |
/// |---|---|---|
/// | with a forward pass | those of its [`Network`](crate::network::Network) | predicted layers |
/// | without one | everything that its names list, predicted layers included | other towers |
///
/// A precision map is resolved over the policy's parameters. What lies beside them is carried along in high precision.
#[derive(Debug)]
pub struct StoredModel {
    dir: PathBuf,
    family: Family,
    config: Map<String, Value>,
    tied_head: bool,
    predicted_layers: usize,
    /// The policy's parameters, then those beside it.
    all: Inventory,
    policy: Inventory,
    bound: Bound,
    other: Vec<TensorRef>,
    spelling: Spelling,
}

impl StoredModel {
    /// Opens a directory: reads its configuration and the headers of its weights, and checks that they fit.
    ///
    /// # Errors
    /// [`CheckpointError`] when anything is missing, left over, misshapen, or not supported.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let outline = Outline::read(dir)?;
        if outline.family.has_forward_pass() { Self::with_network(dir, &outline) } else { Self::named(dir, &outline) }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The parameters that a policy of this model has.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.policy
    }

    /// How a parameter is stored.
    #[must_use]
    pub fn stored_format(&self, id: ParamId) -> TensorFormat {
        self.bound.format(id, self.all.parameter(id))
    }

    /// One parameter as it is stored: high precision in its own number type, or codes and scales, none of them changed.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn read_stored(&self, id: ParamId) -> Result<PolicyTensor, CheckpointError> {
        self.bound.read(id, self.all.parameter(id))
    }

    /// `config.json` as loaded.
    pub(crate) fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The policy's parameters, then those beside it that are carried along.
    pub(crate) fn all(&self) -> &Inventory {
        &self.all
    }

    /// Stored tensors that are no parameters and are carried along as they are.
    pub(crate) fn other(&self) -> &[TensorRef] {
        &self.other
    }

    pub(crate) fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Modules beside the parameters, for lists of what is in high precision.
    pub(super) fn beside(&self) -> kept::Beside {
        kept::Beside { tied_head: self.tied_head, predicted_layers: self.predicted_layers }
    }

    /// The name under which readers of this directory expect a parameter or module.
    pub(super) fn spell(&self, canonical: &str) -> String {
        self.spelling.spell(canonical)
    }

    /// Calibrated activation scales by the name of their tensor.
    pub(crate) fn input_scales(&self) -> Result<BTreeMap<String, f32>, CheckpointError> {
        input_scales::read(&self.dir)
    }

    /// Hash over what tells this directory from another or a changed one without reading its weights: configuration,
    /// headers, and every file's name, length and time of change.
    pub(crate) fn identity(&self) -> Result<Digest, CheckpointError> {
        let mut hasher = blake3::Hasher::new();
        for name in ["config.json", MODELOPT_CONFIG] {
            let path = self.dir.join(name);
            if path.exists() {
                hasher.update(&fs::read(&path).map_err(io(&path))?);
            }
        }
        self.bound.stored.describe(&mut hasher)?;
        Ok(hasher.finalize().into())
    }

    fn with_network(dir: &Path, outline: &Outline) -> Result<Self, CheckpointError> {
        let Checkpoint { config, network, mut bound, .. } = Checkpoint::open(dir)?;
        let policy: Inventory = Inventory::clone(&network);
        let (layers, predicted_layers) = (network.config.layer_count(), config.predicted_layers());
        let mut free = bind::by_canonical_name(&bound.stored)?;
        free.retain(|name, _| names::is_predicted(name, layers, predicted_layers));
        let mut parameters = policy.parameters.clone();
        if !free.is_empty() {
            let (named, refs) = named(dir, outline, &bound.stored)?;
            let beside = |parameter: &Parameter| policy.find(&parameter.name).is_none();
            let declared = (config.layout(), config.kept_modules());
            bound.bindings.extend(bind::bind_named(dir, declared, &named, beside, &refs, &bound.stored, free)?);
            let listed = named.inventory.parameters.into_iter().filter(beside);
            // Pairs are numbered as they are listed; nothing is quantized together here.
            parameters.extend(listed.map(|parameter| Parameter { pair: None, ..parameter }));
        }
        Ok(StoredModel {
            dir: dir.to_owned(),
            family: outline.family,
            tied_head: outline.tie_word_embeddings,
            predicted_layers,
            config: config.json().clone(),
            all: Inventory::new(parameters, layers),
            policy,
            bound,
            other: Vec::new(),
            spelling: Spelling::default(),
        })
    }

    fn named(dir: &Path, outline: &Outline) -> Result<Self, CheckpointError> {
        let config = read_object(&dir.join("config.json"))?;
        let (layout, kept) = stored_quantization(dir, &config)?;
        let stored = StoredTensors::open(dir)?;
        let (named, refs) = named(dir, outline, &stored)?;
        let mut free = bind::by_canonical_name(&stored)?;
        for aside in named.other.iter().chain(&named.recomputed).chain(&named.tied_head) {
            free.remove(&names::canonical(&stored.info(refs[*aside]).name));
        }
        let bindings = bind::bind_named(dir, (layout, &kept), &named, |_| true, &refs, &stored, free)?;
        let embedding = named.inventory.find("model.embed_tokens.weight").map(|id| &bindings[id.index()]);
        if let (Some(head), Some(Binding::Dense { tensor, .. })) = (named.tied_head, embedding) {
            tied::check(&stored, refs[head], *tensor)?;
        }
        // Only a wrapper's reader expects its prefixes; any other reader wants the names of the model alone.
        let spelling = match config.contains_key("text_config") {
            true => Spelling::of(refs.iter().map(|tensor| stored.info(*tensor).name.as_str())),
            false => Spelling::default(),
        };
        Ok(StoredModel {
            dir: dir.to_owned(),
            family: outline.family,
            spelling,
            config,
            tied_head: outline.tie_word_embeddings,
            // They are parameters where they are stored.
            predicted_layers: 0,
            other: named.other.iter().map(|index| refs[*index]).collect(),
            all: named.inventory.clone(),
            bound: Bound::new(dir, &named.inventory, stored, bindings)?,
            policy: named.inventory,
        })
    }
}

impl WeightSource for StoredModel {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> crate::Result<()> {
        Ok(self.bound.read_f32(id, self.all.parameter(id), into)?)
    }

    fn tensor(&self, id: ParamId, dtype: Dtype) -> crate::Result<Option<DenseTensor>> {
        Ok(self.bound.read_in(id, self.all.parameter(id), dtype)?)
    }
}

/// What the names of the stored tensors say, and the stored tensors in the order in which they were given.
fn named(
    dir: &Path,
    outline: &Outline,
    stored: &StoredTensors,
) -> Result<(NamedInventory, Vec<TensorRef>), CheckpointError> {
    let refs: Vec<TensorRef> = stored.all().collect();
    let described = |tensor: &TensorRef| {
        let info = stored.info(*tensor);
        StoredTensor { name: info.name.clone(), dtype: info.dtype, shape: info.shape.clone() }
    };
    let tensors: Vec<StoredTensor> = refs.iter().map(described).collect();
    let named = inventory(outline, &tensors)
        .map_err(|source| CheckpointError::Names { dir: dir.to_owned(), source: Box::new(source) })?;
    Ok((named, refs))
}
