//! From a recipe and overrides to the sealed map.

use super::{BackwardMode, PrecisionEntry, PrecisionError, PrecisionMap, Recipe, Rule, TensorFormat};
use crate::format::{FormatRule, QuantizeSpec, builtin_rule};
use crate::format::FormatId;
use crate::network::{Network, Parameter, Role};

/// Decides every tensor of a network: the first match among `overrides`, then among the recipe's rules.
///
/// Formats are the built-in ones; [`resolve_with`] takes others.
///
/// # Errors
/// [`PrecisionError`] when an override decides nothing, a gate/up pair would be split, or a format cannot hold a
/// tensor it is given.
pub fn resolve(network: &Network, recipe: Recipe, overrides: &[Rule]) -> Result<PrecisionMap, PrecisionError> {
    resolve_with(network, recipe, overrides, &builtin_rule)
}

/// As [`resolve`], with `format_rule` finding the arithmetic of a format by its name.
///
/// # Errors
/// As [`resolve`]; [`PrecisionError::UnknownFormat`] where `format_rule` finds nothing.
pub fn resolve_with<'f>(
    network: &Network,
    recipe: Recipe,
    overrides: &[Rule],
    format_rule: &dyn Fn(&FormatId) -> Option<&'f dyn FormatRule>,
) -> Result<PrecisionMap, PrecisionError> {
    overrides.iter().try_for_each(Rule::check)?;
    let layers = network.config.layer_count();
    let recipe_rules = recipe.rules(network);
    let rules: Vec<&Rule> = overrides.iter().chain(&recipe_rules).collect();
    let mut decided = vec![false; rules.len()];
    let mut entries = Vec::with_capacity(network.parameters.len());
    for parameter in &network.parameters {
        // The recipe's last rule matches everything.
        let index = rules.iter().position(|rule| rule.matches(parameter, layers)).unwrap_or(rules.len() - 1);
        decided[index] = true;
        let rule = rules[index];
        let backward = match rule.format {
            TensorFormat::Dense(_) => BackwardMode::HighPrecision,
            TensorFormat::Quantized(_) => rule.backward.unwrap_or(recipe.backward()),
        };
        if let TensorFormat::Quantized(format) = &rule.format {
            check_fit(parameter, format, rule, format_rule)?;
        }
        entries.push(PrecisionEntry { format: rule.format.clone(), backward, rule: rule.to_string() });
    }
    if let Some(rule) = overrides.iter().zip(&decided).find_map(|(rule, decided)| (!decided).then_some(rule)) {
        return Err(PrecisionError::RuleWithoutEffect { rule: rule.to_string() });
    }
    check_pairs(network, &entries)?;
    Ok(PrecisionMap::seal(recipe.name().to_owned(), network, entries))
}

fn check_fit<'f>(
    parameter: &Parameter,
    format: &FormatId,
    rule: &Rule,
    format_rule: &dyn Fn(&FormatId) -> Option<&'f dyn FormatRule>,
) -> Result<(), PrecisionError> {
    if matches!(parameter.role, Role::Embedding | Role::Norm | Role::Bias | Role::RouterBias) {
        return Err(PrecisionError::NotQuantizable {
            tensor: parameter.name.clone(),
            role: parameter.role,
            format: format.to_string(),
            rule: rule.to_string(),
        });
    }
    let Some(arithmetic) = format_rule(format) else {
        return Err(PrecisionError::UnknownFormat {
            rule: rule.to_string(),
            format: format.to_string(),
            known: ["nvfp4", "mxfp8", "fp8-block", "fp8-block/pow2-scales"].map(str::to_owned).to_vec(),
        });
    };
    let (rows, cols) = parameter.rows_cols();
    match arithmetic.layout(rows, cols, &QuantizeSpec::weight(format.clone())) {
        Ok(_) => Ok(()),
        Err(source) => Err(PrecisionError::DoesNotFit {
            tensor: parameter.name.clone(),
            shape: parameter.shape.clone(),
            format: format.to_string(),
            source,
        }),
    }
}

fn check_pairs(network: &Network, entries: &[PrecisionEntry]) -> Result<(), PrecisionError> {
    let decision = |entry: &PrecisionEntry| format!("{} ({})", entry.format, entry.backward.name());
    for (parameter, entry) in network.parameters.iter().zip(entries) {
        let Some(other) = parameter.pair else { continue };
        let other_entry = &entries[other.index()];
        if (&entry.format, entry.backward) != (&other_entry.format, other_entry.backward) {
            return Err(PrecisionError::PairSplit {
                gate: parameter.name.clone(),
                gate_decision: decision(entry),
                up: network.parameter(other).name.clone(),
                up_decision: decision(other_entry),
            });
        }
    }
    Ok(())
}
