//! The map itself.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::PartitionPlan;
use crate::digest::Digest;
use crate::format::{FormatError, FormatId, Partition, QuantizeSpec};
use crate::network::{Inventory, ParamId, Role};
use crate::tensor::Dtype;

/// Format of one tensor in a policy. In text `bf16`, `f16` and `f32` are dense, every other name is a format's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum TensorFormat {
    /// High precision.
    Dense(Dtype),
    /// Codes and scales.
    Quantized(FormatId),
}

impl fmt::Display for TensorFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorFormat::Dense(dtype) => f.write_str(dtype.name()),
            TensorFormat::Quantized(format) => f.write_str(format.as_str()),
        }
    }
}

impl FromStr for TensorFormat {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|dtype| dtype.name() == name) {
            Some(dtype) => Ok(TensorFormat::Dense(dtype)),
            None => FormatId::new(name).map(TensorFormat::Quantized),
        }
    }
}

impl From<TensorFormat> for String {
    fn from(format: TensorFormat) -> Self {
        format.to_string()
    }
}

impl TryFrom<String> for TensorFormat {
    type Error = FormatError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

/// Operands of the weight-gradient and data-gradient products of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackwardMode {
    /// The original high-precision operands, in the run's activation type.
    HighPrecision,
    /// The exact low-precision values of the forward pass, dequantized to BF16.
    Dequantized,
    /// Quantized again along each product's reduction axis, always from the high-precision source.
    Quantized,
}

impl BackwardMode {
    /// Kebab-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackwardMode::HighPrecision => "high-precision",
            BackwardMode::Dequantized => "dequantized",
            BackwardMode::Quantized => "quantized",
        }
    }
}

/// The decision for one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrecisionEntry {
    /// Format in every policy version.
    pub format: TensorFormat,
    /// Operands of the backward products (always `HighPrecision` for a dense tensor).
    pub backward: BackwardMode,
    /// The cut: [`Partition::WHOLE`] for everything but a quantized matrix of a routed expert that the plan cuts and no
    /// rule keeps whole.
    pub partition: Partition,
    /// The rule that decided, for people.
    pub rule: String,
}

impl PrecisionEntry {
    /// Whether the plan would cut the tensor and a rule keeps it whole.
    #[must_use]
    pub fn is_kept_whole(&self, role: Role, plan: PartitionPlan) -> bool {
        matches!(self.format, TensorFormat::Quantized(_)) && self.partition != plan.partition(role)
    }
}

/// The decision for every tensor of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrecisionMap {
    recipe: String,
    entries: Vec<PrecisionEntry>,
    plan: PartitionPlan,
    digest: Digest,
}

impl PrecisionMap {
    /// Seals one entry per parameter of `inventory`, in [`ParamId`] order.
    ///
    /// The digest covers, per tensor sorted by name, its name, shape, format, backward mode and whether a rule keeps it
    /// whole, then the plan where it cuts anything; not the rule's wording.
    #[must_use]
    pub(crate) fn seal(
        recipe: String,
        inventory: &Inventory,
        entries: Vec<PrecisionEntry>,
        plan: PartitionPlan,
    ) -> Self {
        debug_assert_eq!(entries.len(), inventory.parameters.len());
        let mut lines: Vec<String> = inventory
            .parameters
            .iter()
            .zip(&entries)
            .map(|(parameter, entry)| {
                let is_kept = entry.is_kept_whole(parameter.role, plan);
                let kept = if is_kept { " whole" } else { "" };
                let (format, backward) = (&entry.format, entry.backward.name());
                format!("{} {:?} {format} {backward}{kept}\n", parameter.name, parameter.shape)
            })
            .collect();
        lines.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for line in &lines {
            hasher.update(line.as_bytes());
        }
        if !plan.is_whole() {
            hasher.update(format!("{plan}\n").as_bytes());
        }
        PrecisionMap { recipe, entries, plan, digest: Digest::from(hasher.finalize()) }
    }

    /// Name of the recipe that it came from.
    #[must_use]
    pub fn recipe(&self) -> &str {
        &self.recipe
    }

    /// The decision for one parameter.
    #[must_use]
    pub fn entry(&self, id: ParamId) -> &PrecisionEntry {
        &self.entries[id.index()]
    }

    /// Every decision, in [`ParamId`] order.
    #[must_use]
    pub fn entries(&self) -> &[PrecisionEntry] {
        &self.entries
    }

    /// How routed experts are cut.
    #[must_use]
    pub fn plan(&self) -> PartitionPlan {
        self.plan
    }

    /// The cut of one parameter of `inventory`, which the map is of.
    #[must_use]
    pub fn partition(&self, inventory: &Inventory, id: ParamId) -> Partition {
        debug_assert_eq!(self.entries.len(), inventory.parameters.len());
        self.entry(id).partition
    }

    /// How the weight of one parameter is quantized; `None` when it stays in high precision.
    #[must_use]
    pub fn weight_spec(&self, id: ParamId) -> Option<QuantizeSpec> {
        let entry = self.entry(id);
        match &entry.format {
            TensorFormat::Dense(_) => None,
            TensorFormat::Quantized(format) => {
                Some(QuantizeSpec::weight(format.clone()).with_partition(entry.partition))
            }
        }
    }

    /// Hash of the whole map.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}
