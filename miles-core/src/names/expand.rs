//! From stored tensors to parameters: one for one, or one per expert of a packed tensor.

use std::collections::HashMap;

use super::parse::{ONLY_PREDICTED, Scope, TablePlace};
use super::tables::{Holds, Predicted, Row};
use super::{Kind, NamesError, Outline, Place, Slab, StoredTensor, TensorName};
use crate::format::{Orientation, Packing};
use crate::model::huggingface::StoredLayout;
use crate::network::Role;

/// A parameter with its place in the table and among the stored tensors.
#[derive(Debug)]
pub(super) struct Found {
    /// Order of the inventory: part of the model, part of the layer, group, expert, place in the group.
    pub(super) order: (Scope, usize, usize, usize, usize),
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) expert: Option<usize>,
    pub(super) row: &'static Row,
    pub(super) place: Place,
}

/// The parameters of `stored`, whose names are `names`, in the order in which they are stored.
pub(super) fn parameters(
    outline: &Outline,
    stored: &[StoredTensor],
    names: &[TensorName],
) -> Result<Vec<Found>, NamesError> {
    let orientations = orientations(outline, stored, names)?;
    let mut found = Vec::with_capacity(stored.len());
    for (index, (tensor, name)) in stored.iter().zip(names).enumerate() {
        let Some(at) = name.place else { continue };
        let scope = scope(outline, tensor, name, at)?;
        let order = |[part, group, place]: [usize; 3], expert: usize| (scope, part, group, expert, place);
        match name.kind {
            Kind::Parameter(_) | Kind::Projection => found.push(Found {
                order: order(at.rank, name.expert.unwrap_or(0)),
                name: name.canonical.clone(),
                shape: logical_shape(outline, tensor),
                expert: name.expert,
                row: at.row,
                place: Place { tensor: index, slab: None, scales: Vec::new() },
            }),
            Kind::Packed { packing, .. } | Kind::PackedBias(packing) => {
                let is_bias = matches!(name.kind, Kind::PackedBias(_));
                let base = name.canonical.strip_suffix(at.row.name).unwrap_or_default();
                for (projection, label) in projections(packing).iter().enumerate() {
                    let suffix = if is_bias { "bias" } else { "weight" };
                    let pattern = format!("mlp.experts.{{E}}.{label}.{suffix}");
                    let own = outline.family.table().layer_rows().find(|(_, row)| row.name == pattern);
                    let (rank, row) = own.ok_or_else(|| outline.family.unknown(&tensor.name, &name.canonical))?;
                    let [rows, cols] = matrix(outline, label);
                    for expert in 0..outline.experts {
                        let (shape, slab) = if is_bias {
                            (vec![rows], Slab::bias(expert, projection, packing, rows))
                        } else {
                            let orientation = orientations[&index];
                            let slab = Slab::new(expert, projection, (orientation, packing), [rows, cols]);
                            (vec![rows, cols], slab)
                        };
                        found.push(Found {
                            order: order(rank, expert),
                            name: format!("{base}mlp.experts.{expert}.{label}.{suffix}"),
                            shape,
                            expert: Some(expert),
                            row,
                            place: Place { tensor: index, slab: Some(slab), scales: Vec::new() },
                        });
                    }
                }
            }
            Kind::Scale { .. } | Kind::Recomputed | Kind::Other => {}
        }
    }
    Ok(found)
}

/// The part of the model, behind the last layer a predicted one.
fn scope(outline: &Outline, tensor: &StoredTensor, name: &TensorName, at: TablePlace) -> Result<Scope, NamesError> {
    if let Some(expert) = name.expert.filter(|expert| *expert >= outline.experts) {
        return Err(NamesError::NoSuchExpert { tensor: tensor.name.clone(), expert, experts: outline.experts });
    }
    let is_behind = matches!(outline.family.table().predicted, Predicted::Behind(_));
    let only_predicted = at.rank[1] == ONLY_PREDICTED;
    let predicted = outline.predicted_layers;
    match at.scope {
        Scope::Layer(layer) if layer < outline.layers && !only_predicted => Ok(at.scope),
        Scope::Layer(layer) if layer < outline.layers => Err(outline.family.unknown(&tensor.name, &name.canonical)),
        Scope::Layer(layer) if is_behind && layer - outline.layers < predicted => {
            Ok(Scope::Predicted(layer - outline.layers))
        }
        Scope::Predicted(layer) if layer < predicted => Ok(at.scope),
        Scope::Layer(layer) | Scope::Predicted(layer) => {
            Err(NamesError::NoSuchLayer { tensor: tensor.name.clone(), layer, layers: outline.layers, predicted })
        }
        Scope::First | Scope::Last | Scope::Prediction => Ok(at.scope),
    }
}

fn projections(packing: Packing) -> &'static [&'static str] {
    match packing {
        Packing::Single => &["down_proj"],
        Packing::GateUpHalves | Packing::GateUpInterleaved => &["gate_proj", "up_proj"],
    }
}

/// Rows and columns of one expert's matrix.
fn matrix(outline: &Outline, label: &str) -> [usize; 2] {
    let (inner, hidden) = (outline.expert_size, outline.hidden_size);
    if label == "down_proj" { [hidden, inner] } else { [inner, hidden] }
}

/// NVFP4 stores two codes in a byte; every other tensor has its own shape.
fn logical_shape(outline: &Outline, tensor: &StoredTensor) -> Vec<usize> {
    let mut shape = tensor.shape.clone();
    if let (Some(StoredLayout::Nvfp4), safetensors::Dtype::U8, [_, cols]) =
        (outline.layout, tensor.dtype, shape.as_mut_slice())
    {
        *cols *= 2;
    }
    shape
}

/// The orientation of every packed tensor, by its index. The shape tells, unless it fits both; then the other tensor of
/// the layer tells, and if that fits both too, the layout is direct.
fn orientations(
    outline: &Outline,
    stored: &[StoredTensor],
    names: &[TensorName],
) -> Result<HashMap<usize, Orientation>, NamesError> {
    let mut by_layer: HashMap<(bool, Option<usize>), Orientation> = HashMap::new();
    let mut packed = Vec::new();
    for (index, (tensor, name)) in stored.iter().zip(names).enumerate() {
        let layer = (matches!(name.place.map(|at| at.scope), Some(Scope::Predicted(_))), name.layer);
        match name.kind {
            Kind::Packed { packing, orientation } => {
                let fits = fitting(outline, tensor, packing)?;
                let found = match orientation {
                    Some(fixed) if !fits.contains(&fixed) => {
                        return Err(wrong_shape(outline, tensor, packing, &[fixed]));
                    }
                    Some(fixed) => Some(fixed),
                    None => {
                        if let [only] = fits.as_slice() {
                            Some(*only)
                        } else {
                            None
                        }
                    }
                };
                found.map(|orientation| by_layer.entry(layer).or_insert(orientation));
                packed.push((index, layer, found));
            }
            Kind::PackedBias(packing) => {
                let values = projections(packing).iter().map(|label| matrix(outline, label)[0]).sum();
                if tensor.shape != [outline.experts, values] {
                    let expected = format!("[{}, {values}]", outline.experts);
                    let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
                    return Err(NamesError::WrongShape { tensor, expected, found });
                }
            }
            _ => {}
        }
    }
    let decided = |layer, found: Option<Orientation>| {
        found.or_else(|| by_layer.get(&layer).copied()).unwrap_or(Orientation::Direct)
    };
    Ok(packed.into_iter().map(|(index, layer, found)| (index, decided(layer, found))).collect())
}

/// The orientations that a shape fits; at least one.
fn fitting(outline: &Outline, tensor: &StoredTensor, packing: Packing) -> Result<Vec<Orientation>, NamesError> {
    let both = [Orientation::Direct, Orientation::Transposed];
    let fits = |orientation: &Orientation| tensor.shape == stored_shape(outline, packing, *orientation);
    match both.into_iter().filter(fits).collect::<Vec<_>>() {
        none if none.is_empty() => Err(wrong_shape(outline, tensor, packing, &both)),
        fitting => Ok(fitting),
    }
}

fn stored_shape(outline: &Outline, packing: Packing, orientation: Orientation) -> [usize; 3] {
    let labels = projections(packing);
    let [rows, cols] = matrix(outline, labels[0]);
    let outputs = rows * labels.len();
    match orientation {
        Orientation::Direct => [outline.experts, outputs, cols],
        Orientation::Transposed => [outline.experts, cols, outputs],
    }
}

fn wrong_shape(outline: &Outline, tensor: &StoredTensor, packing: Packing, allowed: &[Orientation]) -> NamesError {
    let shapes = allowed.iter().map(|orientation| format!("{:?}", stored_shape(outline, packing, *orientation)));
    NamesError::WrongShape {
        tensor: tensor.name.clone(),
        expected: shapes.collect::<Vec<_>>().join(" or "),
        found: tensor.shape.clone(),
    }
}

/// The role in the inventory: in a predicted layer everything is `mtp`.
pub(super) fn role(found: &Found) -> Role {
    match (found.order.0, found.row.holds) {
        (Scope::First | Scope::Layer(_) | Scope::Last, Holds::One(role)) => role,
        // Only predicted layers have projections without a role, and packed tensors are no parameters.
        _ => Role::Mtp,
    }
}
