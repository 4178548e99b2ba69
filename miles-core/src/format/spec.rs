//! [`QuantizeSpec`]: everything that decides the bytes besides the source values.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{FormatId, Partition};

/// Which operand of a linear operation the tensor is. Decides the tile shape of `fp8-block`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operand {
    /// Rows are tokens; each row is quantized without regard to the others.
    Activation,
    /// Rows are output features.
    Weight,
}

/// The direction in which blocks run through a `[rows, cols]` tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Blocks run along a row: the copy whose products sum over columns (the forward pass).
    Row,
    /// Blocks run down a column: the copy whose products sum over rows. Made from the source values, never from
    /// the codes of the row copy.
    Column,
}

/// How much one outer scale covers. Block scales are finer and always there; a format without outer scales has
/// nothing else, whatever the scope.
///
/// | scope | one outer scale for | NVFP4's decode scale of all zeros |
/// |---|---|---|
/// | `Block` | nothing: block scales alone | |
/// | `Row` | one line: a row for [`Axis::Row`] (a token), a column for [`Axis::Column`] | 0 |
/// | `Tensor` | one tensor, all its experts included where it is a stack | `1 / f32::MAX` |
/// | `Group` | tensors that one product reads side by side (gate and up), per expert in a stack | `1 / f32::MAX` |
/// | `Expert` | one expert's matrix of a stack, gate and up apart | `1 / f32::MAX` |
///
/// A rule sees matrices: those it is given together share one outer scale unless the scope is `Row`. Which matrices are
/// given together is what `Tensor`, `Group` and `Expert` decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleScope {
    /// No outer scale.
    Block,
    /// One per quantized line.
    Row,
    /// One per tensor.
    Tensor,
    /// One per group of tensors.
    Group,
    /// One per expert and tensor.
    Expert,
}

/// What happens to NaN and infinity in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// [`FormatError::NonFinite`](super::FormatError::NonFinite) names the first one.
    Error,
    /// Converted as hardware converts it: infinity saturates, NaN is ignored by the block maximum and becomes the
    /// NaN code (E4M3) or +6 (E2M1).
    Hardware,
}

/// How to quantize one tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuantizeSpec {
    /// The format, variant included.
    pub format: FormatId,
    /// The tensor's side of the linear operation.
    pub operand: Operand,
    /// The direction of blocks.
    pub axis: Axis,
    /// The extent of one outer scale.
    pub scope: ScaleScope,
    /// The treatment of NaN and infinity.
    pub non_finite: NonFinite,
    /// The cut into shards with outer scales of their own.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub partition: Partition,
}

impl QuantizeSpec {
    /// An activation `[tokens, features]`: blocks along the row, one outer scale per row, hardware rule for
    /// non-finite values.
    #[must_use]
    pub const fn activation(format: FormatId) -> Self {
        Self {
            format,
            operand: Operand::Activation,
            axis: Axis::Row,
            scope: ScaleScope::Row,
            non_finite: NonFinite::Hardware,
            partition: Partition::WHOLE,
        }
    }

    /// A weight `[out_features, in_features]`: blocks along the row, one outer scale per tensor, non-finite values
    /// are an error.
    #[must_use]
    pub const fn weight(format: FormatId) -> Self {
        Self {
            format,
            operand: Operand::Weight,
            axis: Axis::Row,
            scope: ScaleScope::Tensor,
            non_finite: NonFinite::Error,
            partition: Partition::WHOLE,
        }
    }

    /// The same with another block direction.
    #[must_use]
    pub fn with_axis(self, axis: Axis) -> Self {
        Self { axis, ..self }
    }

    /// The same with another extent of the outer scale.
    #[must_use]
    pub fn with_scope(self, scope: ScaleScope) -> Self {
        Self { scope, ..self }
    }

    /// The same with another treatment of NaN and infinity.
    #[must_use]
    pub fn with_non_finite(self, non_finite: NonFinite) -> Self {
        Self { non_finite, ..self }
    }

    /// The same with another cut into shards.
    #[must_use]
    pub fn with_partition(self, partition: Partition) -> Self {
        Self { partition, ..self }
    }
}

fn is_whole(partition: &Partition) -> bool {
    partition.is_whole()
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Row => "row",
            Self::Column => "column",
        })
    }
}

impl fmt::Display for ScaleScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Block => "block",
            Self::Row => "row",
            Self::Tensor => "tensor",
            Self::Group => "group",
            Self::Expert => "expert",
        })
    }
}
