//! From an outline and stored headers to an [`Inventory`] and the place of each of its parameters.

use std::collections::HashMap;

use super::expand::{self, Found};
use super::parse::Scope;
use super::{Kind, NamesError, Outline, Place, StoredTensor, complete};
use crate::network::{Inventory, ParamId, Parameter};

/// The parameters of a checkpoint, and where each of them is stored.
#[derive(Clone, Debug)]
pub struct NamedInventory {
    /// The parameters, packed experts one by one, predicted layers behind everything else.
    pub inventory: Inventory,
    /// Their places, in [`ParamId`] order.
    pub places: Vec<Place>,
    /// The stored head of a model whose head is tied to the embedding: no parameter, and equal to the embedding or the
    /// checkpoint contradicts itself.
    pub tied_head: Option<usize>,
    /// Stored tensors of other towers, to be carried along as they are.
    pub other: Vec<usize>,
    /// Stored buffers that every reader computes itself.
    pub recomputed: Vec<usize>,
}

/// Lists the parameters of a checkpoint: what `stored` holds under the names of the outline's family. Every stored tensor
/// has one use and every parameter one place.
///
/// # Errors
/// [`NamesError`] for a tensor that is unknown, missing, doubled, misshapen or out of range.
pub fn inventory(outline: &Outline, stored: &[StoredTensor]) -> Result<NamedInventory, NamesError> {
    for tensor in stored {
        let elements = tensor.shape.iter().try_fold(4_usize, |product, extent| product.checked_mul(*extent));
        if elements.is_none() {
            let expected = "fewer elements than a machine can count".to_owned();
            let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(NamesError::WrongShape { tensor, expected, found });
        }
    }
    let names = stored.iter().map(|tensor| outline.family.parse(&tensor.name)).collect::<Result<Vec<_>, _>>()?;
    let mut found = expand::parameters(outline, stored, &names)?;
    found.sort_by_key(|parameter| parameter.order);
    if let Some([first, second]) = found.windows(2).find(|pair| pair[0].order == pair[1].order) {
        return Err(NamesError::Duplicate {
            parameter: first.name.clone(),
            first: stored[first.place.tensor].name.clone(),
            second: stored[second.place.tensor].name.clone(),
        });
    }
    let head = found.iter().position(|parameter| outline.tie_word_embeddings && parameter.row.name == "lm_head.weight");
    let tied_head = head.map(|index| found.remove(index).place.tensor);
    complete::check(outline, &found)?;
    let of_kind = |kind: Kind| (0..names.len()).filter(|index| names[*index].kind == kind).collect();
    let (other, recomputed) = (of_kind(Kind::Other), of_kind(Kind::Recomputed));
    let parameters = found.iter().map(|found| parameter(outline, found)).collect();
    let mut places: Vec<Place> = found.into_iter().map(|found| found.place).collect();
    let mut inventory = Inventory::new(parameters, outline.layers);
    for (index, name) in names.iter().enumerate() {
        let Kind::Scale { of } = &name.kind else { continue };
        let Some(id) = inventory.find(of) else {
            return Err(NamesError::OrphanScale { scale: stored[index].name.clone(), tensor: of.clone() });
        };
        places[id.index()].scales.push(index);
    }
    link_pairs(&mut inventory)?;
    Ok(NamedInventory { inventory, places, tied_head, other, recomputed })
}

fn parameter(outline: &Outline, found: &Found) -> Parameter {
    Parameter {
        name: found.name.clone(),
        shape: found.shape.clone(),
        role: expand::role(found),
        is_linear: found.row.is_linear(),
        layer: match found.order.0 {
            Scope::Layer(layer) => Some(layer),
            Scope::Predicted(layer) => Some(outline.layers + layer),
            Scope::First | Scope::Last | Scope::Prediction => None,
        },
        expert: found.expert,
        pair: None,
    }
}

/// Links the gate and the up projection of every block that has them; they have one shape.
fn link_pairs(inventory: &mut Inventory) -> Result<(), NamesError> {
    let mut pairs: HashMap<ParamId, ParamId> = HashMap::new();
    for id in inventory.ids() {
        let gate = inventory.parameter(id);
        let Some(block) = gate.name.strip_suffix("gate_proj.weight") else { continue };
        let name = format!("{block}up_proj.weight");
        let Some(up) = inventory.find(&name) else {
            return Err(NamesError::Missing { place: "the model".to_owned(), tensors: vec![name] });
        };
        let found = inventory.parameter(up).shape.clone();
        if found != gate.shape {
            return Err(NamesError::WrongShape { tensor: name, expected: format!("{:?}", gate.shape), found });
        }
        pairs.extend([(id, up), (up, id)]);
    }
    for (id, other) in pairs {
        inventory.parameters[id.index()].pair = Some(other);
    }
    Ok(())
}
