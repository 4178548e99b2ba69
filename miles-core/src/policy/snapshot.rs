//! An immutable policy version.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PolicyError;
use crate::digest::Digest;
use crate::format::QuantizedTensor;
use crate::network::{Network, ParamId};
use crate::precision::PrecisionMap;
use crate::tensor::DenseTensor;

/// A monotonic policy version; 0 is the policy that a run starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl PolicyVersion {
    /// The version after this one.
    #[must_use]
    pub fn next(self) -> Self {
        PolicyVersion(self.0 + 1)
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version and digest together: what a rollout carries, and what the trainer compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyStamp {
    /// Version.
    pub version: PolicyVersion,
    /// Digest over all canonical bytes.
    pub digest: Digest,
}

impl fmt::Display for PolicyStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} ({})", self.version, self.digest)
    }
}

/// One tensor of a policy: quantized, or in high precision.
#[derive(Clone, Debug)]
pub enum PolicyTensor {
    /// High precision.
    Dense(DenseTensor),
    /// Codes and scales.
    Quantized(QuantizedTensor),
}

impl PolicyTensor {
    /// BLAKE3 over the tensor's canonical bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        match self {
            PolicyTensor::Dense(tensor) => tensor.digest(),
            PolicyTensor::Quantized(tensor) => tensor.digest(),
        }
    }

    /// Bytes held: elements, or codes and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            PolicyTensor::Dense(tensor) => tensor.bytes().len(),
            PolicyTensor::Quantized(tensor) => tensor.size_bytes(),
        }
    }
}

/// An immutable policy version: every tensor of the network, in the format that the precision map gives it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    stamp: PolicyStamp,
    network: Arc<Network>,
    map: Arc<PrecisionMap>,
    tensors: Vec<Arc<PolicyTensor>>,
    digests: Vec<Digest>,
}

impl Snapshot {
    /// Seals one tensor per parameter into a version, computing the policy digest.
    ///
    /// # Errors
    /// If the tensors are not one per parameter, their shapes differ from the network's, or they are cut otherwise than
    /// the map says.
    pub fn new(
        version: PolicyVersion,
        network: Arc<Network>,
        map: Arc<PrecisionMap>,
        tensors: Vec<Arc<PolicyTensor>>,
    ) -> Result<Self, PolicyError> {
        let digests = tensors.iter().map(|tensor| tensor.digest()).collect();
        Self::sealed(version, network, map, tensors, digests)
    }

    /// As [`Snapshot::new`], with each tensor's digest as it was just computed.
    pub(super) fn sealed(
        version: PolicyVersion,
        network: Arc<Network>,
        map: Arc<PrecisionMap>,
        tensors: Vec<Arc<PolicyTensor>>,
        digests: Vec<Digest>,
    ) -> Result<Self, PolicyError> {
        check_tensors(&network, &map, &tensors)?;
        let digest = policy_digest(&map.digest(), network.names().zip(&digests));
        Ok(Snapshot { stamp: PolicyStamp { version, digest }, network, map, tensors, digests })
    }

    /// Version and digest.
    #[must_use]
    pub fn stamp(&self) -> PolicyStamp {
        self.stamp
    }

    /// The network that the tensors belong to.
    #[must_use]
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// The precision map that decided the formats.
    #[must_use]
    pub fn map(&self) -> &Arc<PrecisionMap> {
        &self.map
    }

    /// A tensor.
    #[must_use]
    pub fn tensor(&self, id: ParamId) -> &Arc<PolicyTensor> {
        &self.tensors[id.index()]
    }

    /// A tensor's digest.
    #[must_use]
    pub fn tensor_digest(&self, id: ParamId) -> Digest {
        self.digests[id.index()]
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.bytes()).sum()
    }
}

/// Hash over the map's digest and the tensor digests sorted by name; the version number is not part of it.
pub(crate) fn policy_digest<'a>(
    precision_map: &Digest,
    tensors: impl Iterator<Item = (&'a str, &'a Digest)>,
) -> Digest {
    let mut named: Vec<(&str, &Digest)> = tensors.collect();
    named.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    hasher.update(precision_map.as_bytes());
    for (name, digest) in named {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(digest.as_bytes());
    }
    Digest::from(hasher.finalize())
}

fn check_tensors(network: &Network, map: &PrecisionMap, tensors: &[Arc<PolicyTensor>]) -> Result<(), PolicyError> {
    if tensors.len() != network.parameters.len() {
        return Err(PolicyError::TensorMismatch {
            tensor: "*".to_owned(),
            why: format!("{} tensors for {} parameters", tensors.len(), network.parameters.len()),
        });
    }
    for ((id, parameter), tensor) in network.ids().zip(&network.parameters).zip(tensors) {
        let fits = match tensor.as_ref() {
            PolicyTensor::Dense(dense) => dense.shape() == parameter.shape,
            PolicyTensor::Quantized(quantized) => {
                parameter.shape.len() == 2 && parameter.rows_cols() == (quantized.rows(), quantized.cols())
            }
        };
        if !fits {
            let why = match tensor.as_ref() {
                PolicyTensor::Dense(dense) => format!("shape {:?}, expected {:?}", dense.shape(), parameter.shape),
                PolicyTensor::Quantized(quantized) => {
                    format!("shape [{}, {}], expected {:?}", quantized.rows(), quantized.cols(), parameter.shape)
                }
            };
            return Err(PolicyError::TensorMismatch { tensor: parameter.name.clone(), why });
        }
        let planned = map.partition(network, id);
        if let PolicyTensor::Quantized(quantized) = tensor.as_ref()
            && quantized.partition() != planned
        {
            let why = format!("quantized as partition {}, the map's is {planned}", quantized.partition());
            return Err(PolicyError::TensorMismatch { tensor: parameter.name.clone(), why });
        }
    }
    Ok(())
}
