//! The precision map for programs: every tensor, with totals and the digest.

use serde::Serialize;

use super::table::stored_bytes;
use super::{BackwardMode, PrecisionMap, PrecisionTable, TensorFormat};
use crate::network::{Inventory, Role};

/// A precision map as one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapDocument {
    /// Recipe, or name of the list.
    pub recipe: String,
    /// Digest of the map.
    pub digest: String,
    /// How routed experts are cut, for people.
    pub plan: String,
    /// Number of decoder layers; predicted layers are numbered behind them.
    pub layers: usize,
    /// Bytes of all tensors if every element were BF16.
    pub bf16_bytes: usize,
    /// Bytes of all tensors in their formats; `null` when the layout of one is not built in.
    pub bytes: Option<usize>,
    /// Every tensor, in the order of the inventory.
    pub tensors: Vec<MapTensor>,
}

/// One tensor and its decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapTensor {
    /// Canonical name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Role.
    pub role: Role,
    /// Decoder layer.
    pub layer: Option<usize>,
    /// Routed expert.
    pub expert: Option<usize>,
    /// The other half of a gate/up pair.
    pub pair: Option<String>,
    /// Format.
    pub format: TensorFormat,
    /// Backward mode.
    pub backward: BackwardMode,
    /// How it is cut, for people; `null` for a tensor that is whole.
    pub partition: Option<String>,
    /// The rule that decided, for people.
    pub rule: String,
    /// Bytes if every element were BF16.
    pub bf16_bytes: usize,
    /// Bytes in this format, scales included; `null` for a format whose layout is not built in.
    pub bytes: Option<usize>,
}

impl MapDocument {
    /// Describes a map over its inventory.
    #[must_use]
    pub fn new(inventory: &Inventory, map: &PrecisionMap) -> Self {
        let table = PrecisionTable::new(inventory, map);
        let tensors = inventory.parameters.iter().zip(map.entries()).map(|(parameter, entry)| MapTensor {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            role: parameter.role,
            layer: parameter.layer,
            expert: parameter.expert,
            pair: parameter.pair.map(|id| inventory.parameter(id).name.clone()),
            format: entry.format.clone(),
            backward: entry.backward,
            partition: (!entry.partition.is_whole()).then(|| entry.partition.to_string()),
            rule: entry.rule.clone(),
            bf16_bytes: 2 * parameter.elements(),
            bytes: stored_bytes(parameter, entry),
        });
        MapDocument {
            recipe: map.recipe().to_owned(),
            digest: map.digest().to_string(),
            plan: map.plan().to_string(),
            layers: inventory.layer_count(),
            bf16_bytes: table.bf16_bytes(),
            bytes: table.bytes(),
            tensors: tensors.collect(),
        }
    }
}
