//! Whether a model has all its tensors: every layer every tensor of one alternative of each part, and no other's.

use std::collections::{BTreeMap, HashSet};

use super::expand::Found;
use super::parse::Scope;
use super::tables::{Group, Part, Predicted, Row};
use super::{NamesError, Outline};

/// Tensors of one layer, by row and expert.
type Present = HashSet<(&'static str, Option<usize>)>;

/// Refuses a model that lacks a tensor or mixes alternatives. Predicted layers may be left out as a whole.
pub(super) fn check(outline: &Outline, found: &[Found]) -> Result<(), NamesError> {
    let table = outline.family.table();
    let mut scopes: BTreeMap<Scope, Present> = BTreeMap::new();
    for parameter in found {
        scopes.entry(parameter.order.0).or_default().insert((parameter.row.name, parameter.expert));
    }
    let none = Present::new();
    let present = |scope| scopes.get(&scope).unwrap_or(&none);
    require(outline, "the model", "", &[table.first], present(Scope::First))?;
    for layer in 0..outline.layers {
        layer_is_whole(
            outline,
            &format!("layer {layer}"),
            &format!("model.layers.{layer}."),
            present(Scope::Layer(layer)),
        )?;
    }
    require(outline, "the model", "", &[table.last], present(Scope::Last))?;
    if !outline.tie_word_embeddings && !present(Scope::Last).contains(&("lm_head.weight", None)) {
        return Err(NamesError::Missing { place: "the model".to_owned(), tensors: vec!["lm_head.weight".to_owned()] });
    }
    let mut any_predicted = scopes.contains_key(&Scope::Prediction);
    for (scope, present) in &scopes {
        let Scope::Predicted(index) = *scope else { continue };
        any_predicted = true;
        let place = format!("predicted layer {index}");
        match table.predicted {
            Predicted::Behind(rows) => {
                let prefix = format!("model.layers.{}.", outline.layers + index);
                require(outline, &place, &prefix, &[rows], present)?;
                layer_is_whole(outline, &place, &prefix, present)?;
            }
            Predicted::Apart(_) => layer_is_whole(outline, &place, &format!("mtp.layers.{index}."), present)?,
            Predicted::None => {}
        }
    }
    match table.predicted {
        Predicted::Apart(rows) if any_predicted => {
            require(outline, "the prediction", "", &[rows], present(Scope::Prediction))
        }
        _ => Ok(()),
    }
}

fn layer_is_whole(outline: &Outline, place: &str, prefix: &str, present: &Present) -> Result<(), NamesError> {
    for part in outline.family.table().layer {
        // The alternative that needs the fewest changes is the one that is meant.
        let changes =
            |groups: &&&[Group]| missing(outline, groups, present).len() + foreign(part, groups, present).len();
        let Some(meant) = part.alternatives.iter().min_by_key(changes) else { continue };
        require(outline, place, prefix, meant, present)?;
        let foreign = foreign(part, meant, present);
        if !foreign.is_empty() {
            let tensors = foreign.into_iter().map(|(name, expert)| full_name(prefix, name, expert)).collect();
            return Err(NamesError::Mixed { place: place.to_owned(), tensors });
        }
    }
    Ok(())
}

fn require(
    outline: &Outline,
    place: &str,
    prefix: &str,
    groups: &[Group],
    present: &Present,
) -> Result<(), NamesError> {
    let missing = missing(outline, groups, present);
    if missing.is_empty() {
        return Ok(());
    }
    let tensors = missing.into_iter().map(|(name, expert)| full_name(prefix, name, expert)).collect();
    Err(NamesError::Missing { place: place.to_owned(), tensors })
}

/// Required tensors of an alternative that are not there.
fn missing(outline: &Outline, groups: &[Group], present: &Present) -> Vec<(&'static str, Option<usize>)> {
    let required = groups.iter().flat_map(|rows| rows.iter()).filter(|row| !row.optional);
    let each = required.flat_map(|row| {
        let experts = if row.is_of_an_expert() { outline.experts } else { 1 };
        (0..experts).map(move |expert| (row.name, row.is_of_an_expert().then_some(expert)))
    });
    each.filter(|tensor| !present.contains(tensor)).collect()
}

/// Tensors of a part that its alternative does not have, sorted.
fn foreign(part: &Part, groups: &[Group], present: &Present) -> Vec<(&'static str, Option<usize>)> {
    let has = |groups: &[Group], name: &str| groups.iter().any(|rows| rows.iter().any(|row| row.name == name));
    let is_foreign = |(name, _): &&(&'static str, Option<usize>)| {
        !has(groups, name) && part.alternatives.iter().any(|other| has(other, name))
    };
    let mut foreign: Vec<_> = present.iter().filter(is_foreign).copied().collect();
    foreign.sort_unstable();
    foreign
}

fn full_name(prefix: &str, row: &str, expert: Option<usize>) -> String {
    let row = expert.map_or_else(|| row.to_owned(), |expert| row.replace("{E}", &expert.to_string()));
    format!("{prefix}{row}")
}

impl Row {
    fn is_of_an_expert(&self) -> bool {
        self.name.contains("{E}")
    }
}
