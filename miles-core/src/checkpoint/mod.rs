//! Hugging Face checkpoint directories, in and out.
//!
//! ```text
//! config.json ------------> HuggingFaceConfig -> Network
//! *.safetensors (headers) -> names -> one binding per parameter      Checkpoint::open, strict
//!               (bytes)   -> f32 values, or a Snapshot as stored     tensor by tensor, on demand
//! Snapshot ----------------> staged directory -> rename              write_checkpoint, all or nothing
//! ```
//!
//! Opening reads headers (and the few bytes of extents, activation scales and tied heads) and accounts for every tensor:
//! a missing, doubled, unexpected or misshapen one, codes without a scale and a scale without codes are errors that name
//! it. Left out on purpose: pickled checkpoints, partial loading, and changing bytes on the way in.

mod bind;
mod bound;
mod contract;
mod contract_error;
pub(crate) mod converted;
mod declare;
mod declared;
pub(crate) mod directory;
pub(crate) mod error;
pub(crate) mod finite;
mod header;
mod input_scales;
mod kept;
pub(crate) mod layout;
pub mod limits;
mod names;
mod packed;
mod pieces;
pub(crate) mod plan;
pub(crate) mod positional;
pub(crate) mod raw;
pub(crate) mod reader;
pub(crate) mod scales;
pub(crate) mod sidecar;
pub(crate) mod staging;
mod stored_error;
mod stored_model;
pub mod tensors;
mod tied;
mod writer;

pub use contract::{ContractSidecar, ContractTensor};
pub use contract_error::ContractError;
pub use error::CheckpointError;
pub use raw::RawTensors;
pub use sidecar::SIDECARS;
pub use stored_error::StoredError;
pub use stored_model::StoredModel;
pub use writer::{ExpertLayout, Mxfp8Layout, StoredForm, Template, WriteOptions, write_checkpoint, write_values};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::model::huggingface::HuggingFaceConfig;
use crate::network::{Network, ParamId};
use crate::policy::{PolicyTensor, PolicyVersion, Snapshot, WeightSource};
use crate::precision::{BackwardMode, PartitionPlan, PrecisionEntry, PrecisionMap, TensorFormat};
use crate::tensor::{DenseTensor, Dtype};
use bound::Bound;
use reader::StoredTensors;

/// An open checkpoint directory: its model, and a source of bytes for every parameter.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: HuggingFaceConfig,
    network: Arc<Network>,
    bound: Bound,
}

impl Checkpoint {
    /// Opens a directory: reads its configuration and the headers of its weights, and checks that they fit.
    ///
    /// # Errors
    /// [`CheckpointError`] when anything is missing, left over, misshapen, or not supported.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let config = HuggingFaceConfig::read(dir)?;
        let network = Network::new(config.model());
        let stored = StoredTensors::open(dir)?;
        let bindings = bind::bind(dir, &config, &network, &stored)?;
        declared::check(&config, &bindings)?;
        let bound = Bound::new(dir, &network, stored, bindings)?;
        Ok(Checkpoint { dir: dir.to_owned(), config, network: Arc::new(network), bound })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &HuggingFaceConfig {
        &self.config
    }

    /// `config.json` as loaded.
    #[must_use]
    pub fn config_json(&self) -> &Map<String, Value> {
        self.config.json()
    }

    /// The network that the configuration describes.
    #[must_use]
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// The contract sidecar of a converted directory. It was checked against the headers at opening; every tensor that is
    /// read is hashed and compared with it.
    #[must_use]
    pub fn contract(&self) -> Option<&ContractSidecar> {
        self.bound.contract()
    }

    /// What a copy of this checkpoint with other weights is written from.
    #[must_use]
    pub fn template(&self) -> Template {
        Template { config: self.config.clone(), sidecar_dir: Some(self.dir.clone()) }
    }

    /// How a parameter is stored.
    #[must_use]
    pub fn stored_format(&self, id: ParamId) -> TensorFormat {
        self.bound.format(id, self.network.parameter(id))
    }

    /// The number type of a parameter that is stored in high precision; `None` for codes.
    #[must_use]
    pub fn dtype(&self, id: ParamId) -> Option<Dtype> {
        match self.bound.format(id, self.network.parameter(id)) {
            TensorFormat::Dense(dtype) => Some(dtype),
            TensorFormat::Quantized(_) => None,
        }
    }

    /// The precision map under which a snapshot has the stored bytes: recipe `as-stored`, high-precision gradients.
    /// Stored layouts have no place for a variant's name or for a cut; both are known where a contract sidecar is there.
    #[must_use]
    pub fn stored_map(&self) -> PrecisionMap {
        let entry = |id| PrecisionEntry {
            format: self.stored_format(id),
            backward: BackwardMode::HighPrecision,
            partition: self.bound.partition(self.network.parameter(id)),
            rule: "as stored".to_owned(),
        };
        let entries = self.network.ids().map(entry).collect();
        let plan = self.contract().map_or(PartitionPlan::WHOLE, |contract| contract.partition);
        PrecisionMap::seal("as-stored".to_owned(), &self.network, entries, plan)
    }

    /// Replaces `into` by the values of one parameter, row-major. Codes are dequantized. One tensor is held at a time.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn read_f32(&self, id: ParamId, into: &mut Vec<f32>) -> Result<(), CheckpointError> {
        self.bound.read_f32(id, self.network.parameter(id), into)
    }

    /// One parameter as it is stored: high precision in its own number type, or codes and scales, none of them changed.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn read_stored(&self, id: ParamId) -> Result<PolicyTensor, CheckpointError> {
        self.bound.read(id, self.network.parameter(id))
    }

    /// A policy version with exactly the stored bytes.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn snapshot_as_stored(&self, version: PolicyVersion) -> Result<Snapshot, CheckpointError> {
        let tensors = self.network.ids().map(|id| self.read_stored(id).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        Ok(Snapshot::new(version, Arc::clone(&self.network), Arc::new(self.stored_map()), tensors)?)
    }
}

impl WeightSource for Checkpoint {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> crate::Result<()> {
        Ok(self.read_f32(id, into)?)
    }

    fn tensor(&self, id: ParamId, dtype: Dtype) -> crate::Result<Option<DenseTensor>> {
        Ok(self.bound.read_in(id, self.network.parameter(id), dtype)?)
    }
}
