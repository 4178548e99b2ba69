//! Hugging Face checkpoint directories, in and out.
//!
//! ```text
//! config.json ------------> HuggingFaceConfig -> Network
//! *.safetensors (headers) -> names -> one binding per parameter      Checkpoint::open, strict
//!               (bytes)   -> f32 values, or a Snapshot as stored     tensor by tensor, on demand
//! Snapshot ----------------> staged directory -> rename              write_checkpoint, all or nothing
//! ```
//!
//! Opening reads headers only and accounts for every tensor: a missing, doubled, unexpected or misshapen one, codes
//! without a scale and a scale without codes are errors that name it. Left out on purpose: pickled checkpoints,
//! partial loading, and changing bytes on the way in.

mod bind;
mod declared;
mod error;
mod header;
mod layout;
pub mod limits;
mod names;
mod packed;
mod plan;
pub(crate) mod raw;
mod reader;
mod sidecar;
mod staging;
pub mod tensors;
mod tied;
mod writer;

pub use error::CheckpointError;
pub use raw::RawTensors;
pub use sidecar::SIDECARS;
pub use writer::{ExpertLayout, StoredForm, Template, WriteOptions, write_checkpoint, write_values};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::format::{Partition, QuantizedTensor};
use crate::model::huggingface::{HuggingFaceConfig, StoredLayout};
use crate::network::{Network, ParamId};
use crate::number::e4m3;
use crate::policy::{PolicyTensor, PolicyVersion, Snapshot, WeightSource};
use crate::precision::{BackwardMode, PartitionPlan, PrecisionEntry, PrecisionMap, TensorFormat};
use crate::tensor::{DenseTensor, Dtype};
use bind::Binding;
use error::CheckpointError as Error;
use packed::Slab;
use reader::{StoredTensors, TensorRef};

/// An open checkpoint directory: its model, and a source of bytes for every parameter.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: HuggingFaceConfig,
    network: Arc<Network>,
    stored: StoredTensors,
    bindings: Vec<Binding>,
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
        Ok(Checkpoint { dir: dir.to_owned(), config, network: Arc::new(network), stored, bindings })
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

    /// What a copy of this checkpoint with other weights is written from.
    #[must_use]
    pub fn template(&self) -> Template {
        Template { config: self.config.clone(), sidecar_dir: Some(self.dir.clone()) }
    }

    /// How a parameter is stored.
    #[must_use]
    pub fn stored_format(&self, id: ParamId) -> TensorFormat {
        match &self.bindings[id.index()] {
            Binding::Dense { dtype, .. } => TensorFormat::Dense(*dtype),
            Binding::Quantized { layout, .. } => TensorFormat::Quantized(layout.format()),
        }
    }

    /// The number type of a parameter that is stored in high precision; `None` for codes.
    #[must_use]
    pub fn dtype(&self, id: ParamId) -> Option<Dtype> {
        match &self.bindings[id.index()] {
            Binding::Dense { dtype, .. } => Some(*dtype),
            Binding::Quantized { .. } => None,
        }
    }

    /// The precision map under which a snapshot has the stored bytes: recipe `as-stored`, high-precision gradients,
    /// experts not cut (stored layouts have no place for a cut).
    #[must_use]
    pub fn stored_map(&self) -> PrecisionMap {
        let entry = |id| PrecisionEntry {
            format: self.stored_format(id),
            backward: BackwardMode::HighPrecision,
            partition: Partition::WHOLE,
            rule: "as stored".to_owned(),
        };
        let entries = self.network.ids().map(entry).collect();
        PrecisionMap::seal("as-stored".to_owned(), &self.network, entries, PartitionPlan::WHOLE)
    }

    /// Replaces `into` by the values of one parameter, row-major. Codes are dequantized. One tensor is held at a time.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn read_f32(&self, id: ParamId, into: &mut Vec<f32>) -> Result<(), CheckpointError> {
        match &self.bindings[id.index()] {
            Binding::Dense { tensor, dtype, slab } => self.read_dense(id, *tensor, *dtype, *slab)?.read_f32(into),
            Binding::Quantized { layout, codes, scales, outer } => {
                let tensor = self.read_quantized(id, *layout, *codes, *scales, *outer)?;
                *into = self.dequantize(id, *layout, *codes, &tensor)?;
            }
        }
        Ok(())
    }

    /// One parameter as it is stored: high precision in its own number type, or codes and scales, none of them changed.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn read_stored(&self, id: ParamId) -> Result<PolicyTensor, CheckpointError> {
        match &self.bindings[id.index()] {
            Binding::Dense { tensor, dtype, slab } => {
                self.read_dense(id, *tensor, *dtype, *slab).map(PolicyTensor::Dense)
            }
            Binding::Quantized { layout, codes, scales, outer } => {
                self.read_quantized(id, *layout, *codes, *scales, *outer).map(PolicyTensor::Quantized)
            }
        }
    }

    /// A policy version with exactly the stored bytes.
    ///
    /// # Errors
    /// [`CheckpointError`] when reading fails or a value is not finite.
    pub fn snapshot_as_stored(&self, version: PolicyVersion) -> Result<Snapshot, CheckpointError> {
        let tensors = self.network.ids().map(|id| self.read_stored(id).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        Ok(Snapshot::new(version, Arc::clone(&self.network), Arc::new(self.stored_map()), tensors)?)
    }

    fn read_dense(
        &self,
        id: ParamId,
        tensor: TensorRef,
        dtype: Dtype,
        slab: Option<Slab>,
    ) -> Result<DenseTensor, Error> {
        let parameter = self.network.parameter(id);
        let (rows, cols) = parameter.rows_cols();
        let bytes = match slab {
            None => self.stored.read_all(tensor)?,
            Some(slab) => {
                let (offset, length) = slab.range([rows, cols], dtype.element_bytes());
                let mut bytes = vec![0; length];
                self.stored.read(tensor, offset, &mut bytes)?;
                slab.matrix(bytes, [rows, cols], dtype.element_bytes())
            }
        };
        if let Some((index, value)) = first_non_finite(dtype, &bytes) {
            return Err(self.non_finite(id, tensor, index, value));
        }
        let actual = bytes.len() / dtype.element_bytes();
        DenseTensor::new(dtype, parameter.shape.clone(), bytes).map_err(|_| Error::WrongLength {
            tensor: parameter.name.clone(),
            expected: parameter.elements(),
            actual,
        })
    }

    fn read_quantized(
        &self,
        id: ParamId,
        layout: StoredLayout,
        codes: TensorRef,
        scales: TensorRef,
        outer: Option<TensorRef>,
    ) -> Result<QuantizedTensor, Error> {
        let parameter = self.network.parameter(id);
        let (rows, cols) = parameter.rows_cols();
        let code_bytes = self.stored.read_all(codes)?;
        if layout != StoredLayout::Nvfp4
            && let Some(index) = code_bytes.iter().position(|code| e4m3::is_nan(*code))
        {
            return Err(self.non_finite(id, codes, index, f32::NAN));
        }
        let scale_bytes = (self.stored.info(scales).dtype, self.stored.read_all(scales)?);
        let outer = outer.map(|tensor| self.stored.read_all(tensor)).transpose()?;
        layout::assemble(layout, &parameter.name, [rows, cols], code_bytes, scale_bytes, outer)
            .map_err(|source| Error::Format { path: self.stored.path(scales).to_owned(), source: Box::new(source) })
    }

    fn dequantize(
        &self,
        id: ParamId,
        layout: StoredLayout,
        codes: TensorRef,
        tensor: &QuantizedTensor,
    ) -> Result<Vec<f32>, Error> {
        let format_error =
            |source| Error::Format { path: self.stored.path(codes).to_owned(), source: Box::new(source) };
        let values = layout::rule(layout).and_then(|rule| rule.dequantize(tensor)).map_err(format_error)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(index) => Err(self.non_finite(id, codes, index, values[index])),
        }
    }

    fn non_finite(&self, id: ParamId, tensor: TensorRef, index: usize, value: f32) -> Error {
        let parameter = self.network.parameter(id);
        let (_, cols) = parameter.rows_cols();
        Error::NonFinite {
            path: self.stored.path(tensor).to_owned(),
            tensor: parameter.name.clone(),
            row: index / cols,
            column: index % cols,
            value,
        }
    }
}

impl WeightSource for Checkpoint {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> crate::Result<()> {
        Ok(self.read_f32(id, into)?)
    }
}

/// Index and value of the first NaN or infinity: all exponent bits set.
fn first_non_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f32)> {
    let half_word = |mask: u16| bytes.chunks_exact(2).position(|b| u16::from_le_bytes([b[0], b[1]]) & mask == mask);
    let index = match dtype {
        Dtype::Bf16 => half_word(0x7F80),
        Dtype::F16 => half_word(0x7C00),
        Dtype::F32 => bytes.chunks_exact(4).position(|b| {
            const EXPONENT: u32 = 0x7F80_0000;
            u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & EXPONENT == EXPONENT
        }),
    }?;
    let at = &bytes[index * dtype.element_bytes()..];
    let value = match dtype {
        Dtype::Bf16 => half::bf16::from_le_bytes([at[0], at[1]]).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes([at[0], at[1]]).to_f32(),
        Dtype::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
    };
    Some((index, value))
}
