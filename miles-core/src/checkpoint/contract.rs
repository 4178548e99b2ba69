//! [`ContractSidecar`]: what a converted directory says about itself, in `miles_contract.json`.
//!
//! It holds the precision map that the directory was made under, the digest of every tensor and file, and the policy
//! digest. Opening a directory with a sidecar checks the two against each other; every tensor that is read afterwards is
//! hashed and compared. So a directory whose bytes were exchanged is refused, and a variant of a format, which the stored
//! bytes do not show, keeps its name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::contract_error::ContractError;
use super::error::{CheckpointError, io};
use super::limits::MAX_JSON_BYTES;
use crate::digest::Digest;
use crate::format::Partition;
use crate::model::huggingface::StoredLayout;
use crate::network::{Inventory, Parameter, Role};
use crate::policy::{FileDigest, policy_digest};
use crate::precision::{BackwardMode, PartitionPlan, PrecisionEntry, PrecisionMap, TensorFormat};

/// The contract of a converted directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractSidecar {
    /// Version of the contract, [`ContractSidecar::VERSION`].
    pub contract: u64,
    /// Recipe, or name of the rule list.
    pub recipe: String,
    /// Digest of the precision map.
    pub precision_map: Digest,
    /// How routed experts are cut.
    pub partition: PartitionPlan,
    /// Number of decoder layers.
    pub layers: usize,
    /// Who quantized.
    pub quantizer: String,
    /// Policy digest of the tensors.
    pub policy: Digest,
    /// Every parameter of the policy, by canonical name.
    pub tensors: BTreeMap<String, ContractTensor>,
    /// Tensors that are no parameters of the policy, by name, with the BLAKE3 of their bytes.
    pub beside: BTreeMap<String, Digest>,
    /// Every other file of the directory.
    pub files: BTreeMap<String, FileDigest>,
}

/// One parameter of a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractTensor {
    /// Role.
    pub role: Role,
    /// Shape.
    pub shape: Vec<usize>,
    /// Format, a variant by its own name.
    pub format: TensorFormat,
    /// Backward mode.
    pub backward: BackwardMode,
    /// Whether a rule keeps it whole although the plan cuts its role.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_whole: bool,
    /// Digest of the tensor's canonical bytes.
    pub digest: Digest,
}

impl ContractSidecar {
    /// Version of the contract (docs/contract.md) under which this library makes bytes.
    pub const VERSION: u64 = 1;

    /// Name of the file.
    pub const FILE: &str = "miles_contract.json";

    /// Describes a directory made under `map`; `digests` are those of the parameters of `inventory`, in order.
    #[must_use]
    pub fn new(
        inventory: &Inventory,
        map: &PrecisionMap,
        quantizer: &str,
        digests: &[Digest],
        beside: BTreeMap<String, Digest>,
        files: BTreeMap<String, FileDigest>,
    ) -> Self {
        let tensor = |(parameter, (entry, digest)): (&Parameter, (&PrecisionEntry, &Digest))| {
            let tensor = ContractTensor {
                role: parameter.role,
                shape: parameter.shape.clone(),
                format: entry.format.clone(),
                backward: entry.backward,
                kept_whole: entry.is_kept_whole(parameter.role, map.plan()),
                digest: *digest,
            };
            (parameter.name.clone(), tensor)
        };
        ContractSidecar {
            contract: Self::VERSION,
            recipe: map.recipe().to_owned(),
            precision_map: map.digest(),
            partition: map.plan(),
            layers: inventory.layer_count(),
            quantizer: quantizer.to_owned(),
            policy: policy_digest(&map.digest(), inventory.names().zip(digests)),
            tensors: inventory.parameters.iter().zip(map.entries().iter().zip(digests)).map(tensor).collect(),
            beside,
            files,
        }
    }

    /// Reads the sidecar of a directory; `None` when it has none.
    ///
    /// # Errors
    /// [`CheckpointError`] when it cannot be read, is of another version, or contradicts itself.
    pub fn read(dir: &Path) -> Result<Option<Self>, CheckpointError> {
        let path = dir.join(Self::FILE);
        let bytes = match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(io(&path))?.len(),
        };
        if bytes > MAX_SIDECAR_BYTES {
            let what = "the size of the sidecar in bytes";
            return Err(CheckpointError::OverLimit { path, what, actual: bytes, limit: MAX_SIDECAR_BYTES });
        }
        let text = fs::read(&path).map_err(io(&path))?;
        let failed = |source| CheckpointError::Contract { dir: dir.to_owned(), source: Box::new(source) };
        Self::parse(&text).map(Some).map_err(failed)
    }

    fn parse(text: &[u8]) -> Result<Self, ContractError> {
        #[derive(Deserialize)]
        struct Version {
            contract: u64,
        }
        // A later version may have other keys: its number is what to name then.
        let Version { contract: found } =
            crate::json::from_slice(text).map_err(|source| ContractError::Json { source })?;
        if found != Self::VERSION {
            return Err(ContractError::Version { found, known: Self::VERSION });
        }
        let sidecar: Self = serde_json::from_slice(text).map_err(|source| ContractError::Json { source })?;
        let (inventory, map) = sidecar.map();
        let agree = |key, recorded: Digest, found: Digest| {
            if recorded == found { Ok(()) } else { Err(ContractError::Inconsistent { key, recorded, found }) }
        };
        agree("precision_map", sidecar.precision_map, map.digest())?;
        let digests: Vec<Digest> = sidecar.tensors.values().map(|tensor| tensor.digest).collect();
        agree("policy", sidecar.policy, policy_digest(&map.digest(), inventory.names().zip(&digests)))?;
        Ok(sidecar)
    }

    /// As the text of the file.
    ///
    /// # Errors
    /// [`ContractError::Json`] when it cannot be written as JSON.
    pub fn text(&self) -> Result<String, ContractError> {
        let value = serde_json::to_value(self).map_err(|source| ContractError::Json { source })?;
        Ok(format!("{value:#}\n"))
    }

    /// The cut of a parameter.
    #[must_use]
    pub fn partition(&self, tensor: &ContractTensor) -> Partition {
        let is_cut = matches!(tensor.format, TensorFormat::Quantized(_)) && !tensor.kept_whole;
        if is_cut { self.partition.partition(tensor.role) } else { Partition::WHOLE }
    }

    /// Refuses bytes that are not those of a tensor, `found` being their digest.
    pub(crate) fn check_digest(tensor: &str, recorded: Digest, found: Digest) -> Result<(), ContractError> {
        if recorded == found {
            return Ok(());
        }
        Err(ContractError::TensorDigest { tensor: tensor.to_owned(), recorded, found })
    }

    /// Refuses a directory whose parameters are not these. `stored` gives the format that a parameter is stored in.
    pub(super) fn check_parameters<'p>(
        &self,
        parameters: impl Iterator<Item = (&'p Parameter, TensorFormat)>,
    ) -> Result<(), ContractError> {
        let mut left: BTreeMap<&str, &ContractTensor> =
            self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        for (parameter, stored) in parameters {
            let Some(tensor) = left.remove(parameter.name.as_str()) else {
                let place = "in the directory, but not here";
                return Err(ContractError::TensorSet { tensor: parameter.name.clone(), place });
            };
            if tensor.shape != parameter.shape || !is_stored_as(&tensor.format, &stored) {
                return Err(ContractError::Stored {
                    tensor: parameter.name.clone(),
                    recorded: format!("{:?} {}", tensor.shape, tensor.format),
                    found: format!("{:?} {stored}", parameter.shape),
                });
            }
        }
        match left.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(ContractError::TensorSet {
                tensor: name.to_owned(),
                place: "listed here, but not in the directory",
            }),
        }
    }

    /// The parameters, sorted by name, and the map over them.
    fn map(&self) -> (Inventory, PrecisionMap) {
        let parameter = |(name, tensor): (&String, &ContractTensor)| Parameter {
            name: name.clone(),
            shape: tensor.shape.clone(),
            role: tensor.role,
            is_linear: matches!(tensor.format, TensorFormat::Quantized(_)),
            layer: None,
            expert: None,
            pair: None,
        };
        let entry = |tensor: &ContractTensor| PrecisionEntry {
            format: tensor.format.clone(),
            backward: tensor.backward,
            partition: self.partition(tensor),
            rule: "as recorded".to_owned(),
        };
        let inventory = Inventory::new(self.tensors.iter().map(parameter).collect(), self.layers);
        let entries = self.tensors.values().map(entry).collect();
        let map = PrecisionMap::seal(self.recipe.clone(), &inventory, entries, self.partition);
        (inventory, map)
    }
}

/// Whether a format is stored as `stored`, which for codes is the format of the layout.
fn is_stored_as(format: &TensorFormat, stored: &TensorFormat) -> bool {
    match (format, stored) {
        (TensorFormat::Quantized(format), TensorFormat::Quantized(stored)) => {
            StoredLayout::of(format).is_some_and(|layout| layout.format() == *stored)
        }
        (format, stored) => format == stored,
    }
}

/// Two million tensors have about this much text.
const MAX_SIDECAR_BYTES: u64 = 16 * MAX_JSON_BYTES;
