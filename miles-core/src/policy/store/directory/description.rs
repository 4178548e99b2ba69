//! `snapshot.json`: what a stored version is, and of what its tensors are made.
//!
//! | field | what |
//! |---|---|
//! | `layout` | 1 |
//! | `version`, `digest` | the stamp |
//! | `map`, `network` | digests of the precision map, and of the parameters (names and shapes) |
//! | `tensors` | per parameter, in order: name, digest, and the form: number type, or format, operand, axis, scope, partition, and the digest of the amax values where there are any |
//!
//! The tensor's own digest covers neither the scope nor the amax values; the digest of this file, which stands in the
//! header of `tensors.safetensors`, covers the one and `amax` the other.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::StoreError;
use super::super::error::io_error;
use crate::checkpoint::limits::MAX_JSON_BYTES;
use crate::digest::Digest;
use crate::format::{Axis, FormatId, Operand, Partition, QuantizedTensor, ScaleScope};
use crate::json;
use crate::network::Network;
use crate::policy::{PolicyTensor, PolicyVersion, Snapshot};
use crate::precision::PrecisionMap;
use crate::tensor::Dtype;

pub(super) const FILE: &str = "snapshot.json";
const LAYOUT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) layout: u32,
    pub(super) version: PolicyVersion,
    pub(super) digest: Digest,
    pub(super) map: Digest,
    pub(super) network: Digest,
    pub(super) tensors: Vec<TensorDescription>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorDescription {
    pub(super) name: String,
    pub(super) digest: Digest,
    pub(super) form: Form,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Form {
    Dense {
        dtype: Dtype,
    },
    Quantized {
        format: FormatId,
        operand: Operand,
        axis: Axis,
        scope: ScaleScope,
        partition: Partition,
        /// Digest of the amax values, little endian.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        amax: Option<Digest>,
    },
}

impl Description {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let network = snapshot.network();
        let described = |id| TensorDescription {
            name: network.parameter(id).name.clone(),
            digest: snapshot.tensor_digest(id),
            form: match snapshot.tensor(id).as_ref() {
                PolicyTensor::Dense(tensor) => Form::Dense { dtype: tensor.dtype() },
                PolicyTensor::Quantized(tensor) => Form::of_quantized(tensor),
            },
        };
        Description {
            layout: LAYOUT,
            version: snapshot.stamp().version,
            digest: snapshot.stamp().digest,
            map: snapshot.map().digest(),
            network: network_digest(network),
            tensors: network.ids().map(described).collect(),
        }
    }

    /// The bytes of the file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads the file of one version; also gives the digest of its bytes.
    pub(super) fn read(
        path: &Path,
        version: PolicyVersion,
        network: &Network,
        map: &PrecisionMap,
    ) -> Result<(Self, Digest), StoreError> {
        let actual_bytes = fs::metadata(path).map_err(io_error(path))?.len();
        if actual_bytes > MAX_JSON_BYTES {
            let path = path.to_owned();
            return Err(StoreError::OverLimit { path, actual_bytes, limit_bytes: MAX_JSON_BYTES });
        }
        let bytes = fs::read(path).map_err(io_error(path))?;
        let bad = |why: String| StoreError::BadDescription { path: path.to_owned(), why };
        let description: Description = json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if description.layout != LAYOUT {
            return Err(bad(format!("layout {} is not known, only {LAYOUT}", description.layout)));
        }
        check_kin(&path.display().to_string(), (network, map), (description.network, description.map))?;
        if description.version != version {
            return Err(bad(format!("it is of version {}, its folder of {version}", description.version)));
        }
        let (found, expected) = (description.tensors.len(), network.parameters.len());
        if found != expected {
            return Err(bad(format!("{found} tensors for {expected} parameters")));
        }
        for (described, parameter) in description.tensors.iter().zip(&network.parameters) {
            if described.name != parameter.name {
                return Err(bad(format!("`{}` stands in the place of `{}`", described.name, parameter.name)));
            }
        }
        Ok((description, Digest::of(&bytes)))
    }
}

impl Form {
    fn of_quantized(tensor: &QuantizedTensor) -> Self {
        let amax: Vec<u8> = tensor.amax().iter().flat_map(|value| value.to_le_bytes()).collect();
        Form::Quantized {
            format: tensor.format().clone(),
            operand: tensor.operand(),
            axis: tensor.axis(),
            scope: tensor.scope(),
            partition: tensor.partition(),
            amax: (!amax.is_empty()).then(|| Digest::of(&amax)),
        }
    }
}

/// Refuses a policy of another network or map than the store's.
pub(super) fn check_kin(
    at: &str,
    (network, map): (&Network, &PrecisionMap),
    (found_network, found_map): (Digest, Digest),
) -> Result<(), StoreError> {
    let at = || at.to_owned();
    let expected = network_digest(network);
    if found_network != expected {
        return Err(StoreError::OtherNetwork { at: at(), expected, found: found_network });
    }
    if found_map != map.digest() {
        return Err(StoreError::OtherMap { at: at(), expected: map.digest(), found: found_map });
    }
    Ok(())
}

/// BLAKE3 over name and shape of every parameter, in order.
pub(super) fn network_digest(network: &Network) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for parameter in &network.parameters {
        hasher.update(format!("{} {:?}\n", parameter.name, parameter.shape).as_bytes());
    }
    hasher.finalize().into()
}
