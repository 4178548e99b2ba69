//! Operands that engines and trainers show: those of the version that they claim to be, or none at all.

use super::Failure;
use super::fixture::Family;
use crate::network::ParamId;
use crate::policy::{Comparison, PolicyTensor, Snapshot, compare_hand_off};
use crate::precision::Recipe;
use crate::{Error, Result};

/// Compares every operand that a part shows with the version's tensor: `None` when all are equal, and the part's reason
/// when it answers [`Error::Unsupported`] for every one.
pub(super) fn shows_operands(
    version: &Snapshot,
    held: impl Fn(ParamId) -> Result<PolicyTensor>,
) -> Result<Option<String>, Failure> {
    let network = version.network();
    let mut refusals = Vec::new();
    for id in network.ids() {
        match held(id) {
            Err(Error::Unsupported { why, .. }) => refusals.push(why),
            Err(error) => return Err(Failure::from(error).at(&network.parameter(id).name)),
            Ok(_) => {}
        }
    }
    if let Some(why) = refusals.pop() {
        let (refused, all) = (refusals.len() + 1, network.parameters.len());
        Failure::unless(refused == all, || format!("{refused} of {all} operands are not shown: {why}"))?;
        return Ok(Some(why));
    }
    for handed_off in compare_hand_off(version, held, |tensor| Ok(tensor.dequantize_f32()?))? {
        if let Comparison::Differs(difference) = handed_off.comparison {
            let name = &network.parameter(handed_off.id).name;
            return Err(Failure::new(format!(
                "the operand of `{name}` is not that of {}: {difference}",
                version.stamp()
            )));
        }
    }
    Ok(None)
}

/// Runs `show` for every family and recipe: either all show their operands, or none does, for the reason that is given.
pub(super) fn show_all(
    families: [Family; 2],
    recipes: &[Recipe],
    show: impl Fn(Family, Recipe) -> Result<Option<String>, Failure>,
) -> Result<Option<String>, Failure> {
    let mut answers = Vec::new();
    for family in families {
        for &recipe in recipes {
            let place = format!("{family} {recipe}");
            answers.push((show(family, recipe).map_err(|failure| failure.at(&place))?, place));
        }
    }
    let hidden = answers.iter().find_map(|(answer, place)| answer.as_ref().map(|why| (why, place)));
    let shown = answers.iter().find_map(|(answer, place)| answer.is_none().then_some(place));
    match (hidden, shown) {
        (Some((why, hidden)), Some(shown)) => {
            Err(Failure::new(format!("operands are shown in {shown} and not in {hidden}: {why}")))
        }
        (hidden, _) => Ok(hidden.map(|(why, _)| why.clone())),
    }
}
