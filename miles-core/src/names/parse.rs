//! From the name of a stored tensor to what it is.

use super::tables::{Holds, Predicted, Row, Table};
use super::{Family, NamesError, stored};
use crate::format::{Orientation, Packing};
use crate::network::Role;
use crate::registry::nearest;

/// A stored tensor's name, taken apart.
#[derive(Clone, Debug)]
pub struct TensorName {
    /// The canonical name, without the prefixes of wrappers.
    pub canonical: String,
    /// The layer that the name gives, `mtp.layers.{L}` counting from 0 again.
    pub layer: Option<usize>,
    /// The routed expert that the name gives.
    pub expert: Option<usize>,
    /// What the tensor is.
    pub kind: Kind,
    pub(super) place: Option<TablePlace>,
}

/// What a stored tensor is, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One parameter, of the role that it has outside of predicted layers.
    Parameter(Role),
    /// The weight of a linear layer that only predicted layers have.
    Projection,
    /// The matrices of all experts of a layer.
    Packed {
        /// Which projections.
        packing: Packing,
        /// Orientation; `None`: the shape tells.
        orientation: Option<Orientation>,
    },
    /// The biases of all experts of a layer.
    PackedBias(Packing),
    /// A scale of another tensor.
    Scale {
        /// Canonical name of that tensor.
        of: String,
    },
    /// A buffer that every reader computes itself.
    Recomputed,
    /// A tensor of another tower (vision), carried along as it is.
    Other,
}

/// Where a name stands in its family's table.
#[derive(Clone, Copy, Debug)]
pub(super) struct TablePlace {
    pub(super) scope: Scope,
    /// Part of a layer, group, place in the group.
    pub(super) rank: [usize; 3],
    pub(super) row: &'static Row,
}

/// Part of a model, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    First,
    Layer(usize),
    Last,
    /// Beside predicted layers.
    Prediction,
    /// A predicted layer, from 0.
    Predicted(usize),
}

/// A row that only a predicted layer has, stored behind the last layer.
pub(super) const ONLY_PREDICTED: usize = usize::MAX;

impl Family {
    /// Takes the name of a stored tensor apart.
    ///
    /// # Errors
    /// [`NamesError::UnknownTensor`] for a name that the family does not have, [`NamesError::Unreadable`] for one that it
    /// has and that stands for something that is not read.
    pub fn parse(self, name: &str) -> Result<TensorName, NamesError> {
        let table = self.table();
        let canonical = stored::canonical(name);
        if stored::is_recomputed(&canonical) {
            return Ok(without_place(canonical, Kind::Recomputed));
        }
        if table.other.is_some_and(|prefix| canonical.starts_with(prefix)) {
            return Ok(without_place(canonical, Kind::Other));
        }
        if let Some((place, expert)) = find(table, &canonical) {
            let kind = match place.row.holds {
                Holds::One(role) => Kind::Parameter(role),
                Holds::Projection => Kind::Projection,
                Holds::Packed(packing, orientation) => Kind::Packed { packing, orientation },
                Holds::PackedBias(packing) => Kind::PackedBias(packing),
                Holds::Unreadable(why) => return Err(NamesError::Unreadable { tensor: name.to_owned(), why }),
            };
            return Ok(TensorName { canonical, layer: place.scope.layer(), expert, kind, place: Some(place) });
        }
        match stored::scaled_tensor(&canonical).and_then(|of| Some((find(table, &of)?, of))) {
            Some(((place, expert), of)) if place.row.is_linear() => {
                Ok(TensorName { canonical, layer: place.scope.layer(), expert, kind: Kind::Scale { of }, place: None })
            }
            _ => Err(self.unknown(name, &canonical)),
        }
    }

    /// The error for a name that the family does not have here.
    pub(super) fn unknown(self, name: &str, canonical: &str) -> NamesError {
        let patterns = self.patterns();
        let pattern = pattern(canonical);
        let nearest = nearest(&pattern, patterns.iter().map(String::as_str));
        // No pattern is near: the first one shows at least what names look like.
        let nearest = nearest.unwrap_or_else(|| patterns[0].clone());
        NamesError::UnknownTensor { tensor: name.to_owned(), family: self.name(), nearest }
    }
}

impl Scope {
    fn layer(self) -> Option<usize> {
        match self {
            Scope::Layer(layer) | Scope::Predicted(layer) => Some(layer),
            Scope::First | Scope::Last | Scope::Prediction => None,
        }
    }
}

impl Row {
    /// Whether the tensor is the weight of a linear layer.
    pub(super) fn is_linear(&self) -> bool {
        match self.holds {
            Holds::One(role) => role.is_linear(),
            Holds::Projection => true,
            Holds::Packed(..) | Holds::PackedBias(_) | Holds::Unreadable(_) => false,
        }
    }
}

fn without_place(canonical: String, kind: Kind) -> TensorName {
    TensorName { canonical, layer: None, expert: None, kind, place: None }
}

fn find(table: &'static Table, canonical: &str) -> Option<(TablePlace, Option<usize>)> {
    if let Some((layer, rest)) = canonical.strip_prefix("model.layers.").and_then(numbered) {
        let scope = Scope::Layer(layer);
        let only_predicted = || match table.predicted {
            Predicted::Behind(rows) => outside(rows, rest, scope, [0, ONLY_PREDICTED]),
            Predicted::None | Predicted::Apart(_) => None,
        };
        return in_layer(table, rest, scope).or_else(only_predicted);
    }
    let predicted = match table.predicted {
        Predicted::Apart(rows) => {
            if let Some((layer, rest)) = canonical.strip_prefix("mtp.layers.").and_then(numbered) {
                return in_layer(table, rest, Scope::Predicted(layer));
            }
            outside(rows, canonical, Scope::Prediction, [0, 0])
        }
        Predicted::None | Predicted::Behind(_) => None,
    };
    outside(table.first, canonical, Scope::First, [0, 0])
        .or_else(|| outside(table.last, canonical, Scope::Last, [0, 0]))
        .or(predicted)
}

fn outside(
    rows: &'static [Row],
    name: &str,
    scope: Scope,
    [part, group]: [usize; 2],
) -> Option<(TablePlace, Option<usize>)> {
    let index = rows.iter().position(|row| row.name == name)?;
    Some((TablePlace { scope, rank: [part, group, index], row: &rows[index] }, None))
}

fn in_layer(table: &'static Table, rest: &str, scope: Scope) -> Option<(TablePlace, Option<usize>)> {
    let (name, expert) = match rest.strip_prefix("mlp.experts.").and_then(numbered) {
        Some((expert, rest)) => (format!("mlp.experts.{{E}}.{rest}"), Some(expert)),
        // Braces in a stored name are no number.
        None if rest.contains('{') => return None,
        None => (rest.to_owned(), None),
    };
    let (rank, row) = table.layer_rows().find(|(_, row)| row.name == name)?;
    Some((TablePlace { scope, rank, row }, expert))
}

/// `12.rest` as 12 and `rest`; a number has one spelling.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
    Some((number.parse().ok().filter(|_| is_plain)?, rest))
}

/// A name with placeholders for its numbers.
fn pattern(canonical: &str) -> String {
    let mut before = "";
    let segments = canonical.split('.').map(|segment| {
        let is_number = !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
        let shown = match before {
            "layers" if is_number => "{L}",
            "experts" if is_number => "{E}",
            _ => segment,
        };
        before = segment;
        shown
    });
    segments.collect::<Vec<_>>().join(".")
}
