//! What can be wrong with a precision decision.

use std::fmt;

use super::{PartitionPlan, RuleAt};
use crate::format::FormatError;
use crate::network::Role;

/// Why a recipe and its overrides do not make a precision map.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrecisionError {
    /// No recipe has this name.
    #[error(
        "unknown recipe `{name}`{} (known: {})",
        nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default(), known.join(", ")
    )]
    UnknownRecipe {
        /// The name.
        name: String,
        /// Closest known name.
        nearest: Option<String>,
        /// Every known name.
        known: Vec<&'static str>,
    },
    /// An override that decides nothing.
    #[error("rule `{rule}` decides no tensor of this model: {cause}")]
    RuleWithoutEffect {
        /// The rule.
        rule: String,
        /// Why.
        cause: NoEffect,
    },
    /// A list that no rule of matches a tensor.
    #[error("no rule of `{list}` matches `{tensor}`; a last rule without conditions matches everything")]
    Undecided {
        /// The list.
        list: String,
        /// The tensor.
        tensor: String,
    },
    /// A format that is registered and cannot be made.
    #[error("rule `{rule}` gives the format `{format}`: {source}")]
    Registered {
        /// The rule.
        rule: String,
        /// The format.
        format: String,
        /// Why not.
        source: Box<crate::Error>,
    },
    /// A format that a backend does not do.
    #[error(
        "backend `{backend}` cannot do {format}, which rule `{rule}` gives {tensors} {} tensors, first `{tensor}` (it can: {})",
        role.name(), can.join(", ")
    )]
    BackendLacks {
        /// The backend.
        backend: Box<str>,
        /// The format.
        format: String,
        /// The rule.
        rule: Box<str>,
        /// Role of the tensors.
        role: Role,
        /// Number of tensors that the rule gives the format.
        tensors: usize,
        /// The first of them.
        tensor: String,
        /// Formats that it can do.
        can: Box<[String]>,
    },
    /// A condition that is empty, backwards or asks nothing.
    #[error("rule `{rule}`: {why}")]
    BadRule {
        /// The rule.
        rule: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The two halves of a gate/up pair differ; they are quantized with one outer scale and cannot.
    #[error("`{gate}` would be {gate_decision} and `{up}` {up_decision}, but gate and up are decided together")]
    PairSplit {
        /// First half.
        gate: String,
        /// Its format, backward mode and cut, and the rule that gave them.
        gate_decision: String,
        /// Second half.
        up: String,
        /// Its format, backward mode and cut, and the rule that gave them.
        up_decision: String,
    },
    /// A tensor that is not the weight of a linear layer was given a quantized format.
    #[error("`{tensor}` is a {} and stays in high precision; rule `{rule}` gives it {format}", role.name())]
    NotQuantizable {
        /// The tensor.
        tensor: String,
        /// Its role.
        role: Role,
        /// The format asked for.
        format: String,
        /// The rule that asked.
        rule: String,
    },
    /// A format that no linked crate defines.
    #[error("rule `{rule}` names format `{format}`, which is not known (known: {})", known.join(", "))]
    UnknownFormat {
        /// The rule.
        rule: String,
        /// The format.
        format: String,
        /// Every known format.
        known: Vec<String>,
    },
    /// The format cannot hold a tensor of this shape.
    #[error("`{tensor}` {shape:?} cannot be {format}: {source}")]
    DoesNotFit {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The format.
        format: String,
        /// The format's reason.
        source: Box<FormatError>,
    },
    /// A plan that cuts experts into 0 shards.
    #[error("routed experts cannot be cut into 0 shards")]
    NoShards,
    /// A plan that cuts what the network has not.
    #[error("{plan} cuts routed experts, and the network has none")]
    NothingToCut {
        /// The plan.
        plan: PartitionPlan,
    },
    /// A quantized expert that does not fall into equal shards of whole blocks.
    #[error("`{tensor}` {shape:?} in {format} cannot be cut by {plan}: {source}")]
    Uncuttable {
        /// The tensor.
        tensor: String,
        /// The plan.
        plan: PartitionPlan,
        /// The format.
        format: String,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// What does not come out even.
        source: Box<FormatError>,
    },
}

/// Why a rule decides nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEffect {
    /// No tensor meets its conditions.
    MatchesNothing,
    /// Earlier rules took every tensor that does.
    Taken {
        /// Number of tensors that meet its conditions.
        tensors: usize,
        /// The rules that took them, in order.
        by: Vec<RuleAt>,
    },
}

impl fmt::Display for NoEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoEffect::MatchesNothing => f.write_str("none meets its conditions"),
            NoEffect::Taken { tensors, by } => {
                let by: Vec<String> = by.iter().map(ToString::to_string).collect();
                write!(f, "all {tensors} that meet its conditions are taken by {}", by.join(" and "))
            }
        }
    }
}
