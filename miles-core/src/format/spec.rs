//! [`QuantizeSpec`]: everything that decides the bytes besides the source values.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::FormatId;

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

/// How much of the tensor one outer scale covers. Formats without outer scales ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleScope {
    /// One outer scale per quantized line: a row for [`Axis::Row`], a column for [`Axis::Column`]. The decode scale
    /// of an all-zero line is 0.
    Row,
    /// One outer scale for the tensor, or for all tensors of a joint quantization. The decode scale of an all-zero
    /// tensor is `1 / f32::MAX`.
    Tensor,
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
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Row => "row",
            Self::Column => "column",
        })
    }
}
