//! [`PartitionPlan`]: how the routed experts of a network are cut for expert tensor parallelism.
//!
//! With `gate`, `up` `[intermediate, hidden]` and `down` `[hidden, intermediate]` of one expert:
//!
//! | axis | gate, up | down |
//! |---|---|---|
//! | `intermediate` | cut by rows | cut by columns, its reduction dimension |
//! | `hidden` | cut by columns, their reduction dimension | cut by rows |
//!
//! Every shard is quantized apart, so the plan decides bytes wherever a scale covers more than one block. It is part of
//! the precision map, of the map's digest, and so of every policy digest.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::PrecisionError;
use crate::format::{Cut, Partition};
use crate::network::Role;

/// The dimension of a routed expert that is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionAxis {
    /// The expert's inner width: each shard has some of the outputs of gate and up and the same inputs of down.
    #[default]
    Intermediate,
    /// The width of the network: each shard has some of the inputs of gate and up and the same outputs of down.
    Hidden,
}

/// How routed experts are cut. One shard is the same plan whatever the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct PartitionPlan {
    expert_tensor_parallel: u16,
    axis: PartitionAxis,
}

impl PartitionPlan {
    /// Experts are not cut.
    pub const WHOLE: Self = Self { expert_tensor_parallel: 1, axis: PartitionAxis::Intermediate };

    /// Experts in `expert_tensor_parallel` shards along `axis`; 1 is [`WHOLE`](Self::WHOLE).
    ///
    /// # Errors
    /// [`PrecisionError::NoShards`] for 0.
    pub const fn new(expert_tensor_parallel: u16, axis: PartitionAxis) -> Result<Self, PrecisionError> {
        match expert_tensor_parallel {
            0 => Err(PrecisionError::NoShards),
            1 => Ok(Self::WHOLE),
            _ => Ok(Self { expert_tensor_parallel, axis }),
        }
    }

    /// Number of shards of each routed expert.
    #[must_use]
    pub const fn expert_tensor_parallel(self) -> u16 {
        self.expert_tensor_parallel
    }

    /// The dimension that is cut.
    #[must_use]
    pub const fn axis(self) -> PartitionAxis {
        self.axis
    }

    /// Whether nothing is cut.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.expert_tensor_parallel == 1
    }

    /// The cut of a quantized tensor of this role: that of a routed expert's matrix, and none for any other role.
    #[must_use]
    pub fn partition(self, role: Role) -> Partition {
        let cut = match (role, self.axis) {
            (Role::ExpertGate | Role::ExpertUp, PartitionAxis::Intermediate) => Cut::Rows,
            (Role::ExpertGate | Role::ExpertUp, PartitionAxis::Hidden) => Cut::Cols,
            (Role::ExpertDown, PartitionAxis::Intermediate) => Cut::Cols,
            (Role::ExpertDown, PartitionAxis::Hidden) => Cut::Rows,
            _ => return Partition::WHOLE,
        };
        // There is at least one shard, so there is no error.
        Partition::new(cut, self.expert_tensor_parallel).unwrap_or(Partition::WHOLE)
    }
}

impl Default for PartitionPlan {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl fmt::Display for PartitionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expert_tensor_parallel {
            1 => f.write_str("expert tensor parallel 1"),
            shards => write!(f, "expert tensor parallel {shards} along {}", self.axis),
        }
    }
}

impl fmt::Display for PartitionAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Intermediate => "intermediate",
            Self::Hidden => "hidden",
        })
    }
}

/// A plan as it stands in a file, unchecked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    expert_tensor_parallel: u16,
    axis: PartitionAxis,
}

impl TryFrom<Written> for PartitionPlan {
    type Error = PrecisionError;

    fn try_from(written: Written) -> Result<Self, PrecisionError> {
        Self::new(written.expert_tensor_parallel, written.axis)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_routed_experts_are_cut_and_down_the_other_way() {
        let along = |axis| PartitionPlan::new(4, axis).unwrap();
        let cut = |cut| Partition::new(cut, 4).unwrap();
        for (axis, gate, down) in
            [(PartitionAxis::Intermediate, Cut::Rows, Cut::Cols), (PartitionAxis::Hidden, Cut::Cols, Cut::Rows)]
        {
            assert_eq!(along(axis).partition(Role::ExpertGate), cut(gate));
            assert_eq!(along(axis).partition(Role::ExpertUp), cut(gate));
            assert_eq!(along(axis).partition(Role::ExpertDown), cut(down));
            for role in [Role::SharedGate, Role::MlpDown, Role::AttentionQ, Role::Router, Role::Head] {
                assert_eq!(along(axis).partition(role), Partition::WHOLE);
            }
            assert_eq!(PartitionPlan::new(1, axis).unwrap(), PartitionPlan::WHOLE);
        }
        assert_eq!(PartitionPlan::WHOLE.partition(Role::ExpertDown), Partition::WHOLE);
        assert!(matches!(PartitionPlan::new(0, PartitionAxis::Hidden), Err(PrecisionError::NoShards)));
    }

    #[test]
    fn a_plan_is_written_and_read_and_a_bad_one_refused() {
        let plan = PartitionPlan::new(2, PartitionAxis::Hidden).unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(text, r#"{"expert_tensor_parallel":2,"axis":"hidden"}"#);
        assert_eq!(serde_json::from_str::<PartitionPlan>(&text).unwrap(), plan);
        let error = serde_json::from_str::<PartitionPlan>(&text.replace('2', "0")).unwrap_err();
        assert!(error.to_string().contains("0 shards"), "{error}");
    }
}
