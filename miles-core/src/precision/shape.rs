//! [`ShapeCondition`]: the part of a rule that looks at a tensor's size.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::network::Parameter;

/// Bounds on the rows and columns of a tensor, in elements; what is absent is not asked. A vector `[n]` is one row of `n`
/// columns, and a matrix `[out, in]` has its reduction dimension in the columns.
///
/// In TOML: `shape = { min-rows = 128, cols-multiple-of = 32 }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ShapeCondition {
    /// Fewest rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rows: Option<usize>,
    /// Most rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<usize>,
    /// Fewest columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_cols: Option<usize>,
    /// Most columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cols: Option<usize>,
    /// What the rows are a multiple of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_multiple_of: Option<usize>,
    /// What the columns are a multiple of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cols_multiple_of: Option<usize>,
}

impl ShapeCondition {
    /// Whether a tensor meets every bound.
    #[must_use]
    pub fn contains(&self, parameter: &Parameter) -> bool {
        let (rows, cols) = parameter.rows_cols();
        let within = |extent: usize, min: Option<usize>, max: Option<usize>, multiple_of: Option<usize>| {
            min.is_none_or(|min| extent >= min)
                && max.is_none_or(|max| extent <= max)
                && multiple_of.is_none_or(|divisor| extent.is_multiple_of(divisor))
        };
        within(rows, self.min_rows, self.max_rows, self.rows_multiple_of)
            && within(cols, self.min_cols, self.max_cols, self.cols_multiple_of)
    }

    /// Why the condition cannot be meant, if so.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        let backwards = |min: Option<usize>, max: Option<usize>| min.zip(max).is_some_and(|(min, max)| min > max);
        if *self == Self::default() {
            Some("the shape condition asks nothing")
        } else if backwards(self.min_rows, self.max_rows) || backwards(self.min_cols, self.max_cols) {
            Some("the smallest shape is larger than the largest")
        } else if self.rows_multiple_of == Some(0) || self.cols_multiple_of == Some(0) {
            Some("nothing is a multiple of 0")
        } else {
            None
        }
    }
}

impl fmt::Display for ShapeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = [
            ("rows >=", self.min_rows),
            ("rows <=", self.max_rows),
            ("rows a multiple of", self.rows_multiple_of),
            ("cols >=", self.min_cols),
            ("cols <=", self.max_cols),
            ("cols a multiple of", self.cols_multiple_of),
        ];
        let asked = bounds.iter().filter_map(|(what, bound)| bound.map(|bound| format!("{what} {bound}")));
        f.write_str(&asked.collect::<Vec<_>>().join(", "))
    }
}
