//! From a recipe and overrides to the sealed map.

use super::{BackwardMode, PartitionPlan, PrecisionEntry, PrecisionError, PrecisionMap, Recipe, Rule, TensorFormat};
use crate::format::{Axis, FormatError, FormatId, FormatRule, QuantizeSpec, builtin_rule, builtin_rules};
use crate::network::{Inventory, Parameter, Role};
use crate::registry;

/// Decides every tensor of an inventory (a network has one): the first match among `overrides`, then among the recipe's rules.
///
/// An override may name a built-in format or a registered one; [`resolve_with`] also takes formats as values and a plan
/// that cuts the routed experts, which are whole here.
///
/// # Errors
/// [`PrecisionError`] when an override decides nothing, names an unknown format, gives a format to a tensor that cannot
/// have it, or would split a gate/up pair.
pub fn resolve(inventory: &Inventory, recipe: Recipe, overrides: &[Rule]) -> Result<PrecisionMap, PrecisionError> {
    resolve_with(inventory, recipe, overrides, &[], PartitionPlan::WHOLE)
}

/// As [`resolve`], with more formats to choose from, and with routed experts cut by `plan`.
///
/// # Errors
/// As [`resolve`]; also when the plan cuts experts and there are none, or does not cut each of their quantized
/// matrices into equal shards of whole blocks.
pub fn resolve_with(
    inventory: &Inventory,
    recipe: Recipe,
    overrides: &[Rule],
    formats: &[&dyn FormatRule],
    plan: PartitionPlan,
) -> Result<PrecisionMap, PrecisionError> {
    overrides.iter().try_for_each(Rule::check)?;
    if !plan.is_whole() && inventory.parameters.iter().all(|parameter| parameter.expert.is_none()) {
        return Err(PrecisionError::NothingToCut { plan });
    }
    let layers = inventory.layer_count();
    let recipe_rules = recipe.rules(inventory);
    let rules: Vec<&Rule> = overrides.iter().chain(&recipe_rules).collect();
    let mut decided = vec![false; rules.len()];
    let mut entries = Vec::with_capacity(inventory.parameters.len());
    for parameter in &inventory.parameters {
        // The recipe's last rule matches everything.
        let index = rules.iter().position(|rule| rule.matches(parameter, layers)).unwrap_or(rules.len() - 1);
        decided[index] = true;
        let rule = rules[index];
        let backward = match rule.format {
            TensorFormat::Dense(_) => BackwardMode::HighPrecision,
            TensorFormat::Quantized(_) => rule.backward.unwrap_or(recipe.backward()),
        };
        if let TensorFormat::Quantized(format) = &rule.format {
            let arithmetic = check_fit(parameter, format, rule, formats)?;
            check_cut(parameter, format, backward, arithmetic.rule(), plan)?;
        }
        entries.push(PrecisionEntry { format: rule.format.clone(), backward, rule: rule.to_string() });
    }
    if let Some(rule) = overrides.iter().zip(&decided).find_map(|(rule, decided)| (!decided).then_some(rule)) {
        return Err(PrecisionError::RuleWithoutEffect { rule: rule.to_string() });
    }
    check_pairs(inventory, &entries)?;
    Ok(PrecisionMap::seal(recipe.name().to_owned(), inventory, entries, plan))
}

/// A format's arithmetic: passed in, or made from its registered name.
enum Arithmetic<'a> {
    Given(&'a dyn FormatRule),
    Registered(Box<dyn FormatRule>),
}

impl Arithmetic<'_> {
    fn rule(&self) -> &dyn FormatRule {
        match self {
            Arithmetic::Given(rule) => *rule,
            Arithmetic::Registered(rule) => rule.as_ref(),
        }
    }
}

fn check_fit<'a>(
    parameter: &Parameter,
    format: &FormatId,
    rule: &Rule,
    formats: &[&'a dyn FormatRule],
) -> Result<Arithmetic<'a>, PrecisionError> {
    if matches!(parameter.role, Role::Embedding | Role::Norm | Role::Bias | Role::RouterBias) {
        return Err(PrecisionError::NotQuantizable {
            tensor: parameter.name.clone(),
            role: parameter.role,
            format: format.to_string(),
            rule: rule.to_string(),
        });
    }
    let (rows, cols) = parameter.rows_cols();
    let spec = QuantizeSpec::weight(format.clone());
    let given = formats.iter().copied().find(|arithmetic| arithmetic.id() == *format);
    let arithmetic = match given.or_else(|| builtin_rule(format)) {
        Some(arithmetic) => Arithmetic::Given(arithmetic),
        None => match registry::format(format.as_str(), &serde_json::Value::Null) {
            Ok(arithmetic) => Arithmetic::Registered(arithmetic),
            Err(_) => return Err(unknown_format(format, rule, formats)),
        },
    };
    match arithmetic.rule().layout(rows, cols, &spec) {
        Ok(_) => Ok(arithmetic),
        Err(source) => Err(PrecisionError::DoesNotFit {
            tensor: parameter.name.clone(),
            shape: parameter.shape.clone(),
            format: format.to_string(),
            source: Box::new(source),
        }),
    }
}

/// Refuses a cut that does not give equal shards of whole blocks, in every direction that the matrix is quantized in.
fn check_cut(
    parameter: &Parameter,
    format: &FormatId,
    backward: BackwardMode,
    arithmetic: &dyn FormatRule,
    plan: PartitionPlan,
) -> Result<(), PrecisionError> {
    let (partition, (rows, cols)) = (plan.partition(parameter.role), parameter.rows_cols());
    if partition.is_whole() {
        return Ok(());
    }
    let axes: &[Axis] = match backward {
        BackwardMode::Quantized => &[Axis::Row, Axis::Column],
        BackwardMode::HighPrecision | BackwardMode::Dequantized => &[Axis::Row],
    };
    let cut = |axis: &Axis| -> Result<(), FormatError> {
        // A rule knows its blocks; that shards are equal holds for every rule.
        partition.check(format, (rows, cols), (1, 1))?;
        let spec = QuantizeSpec::weight(format.clone()).with_axis(*axis).with_partition(partition);
        arithmetic.layout(rows, cols, &spec).map(drop)
    };
    axes.iter().try_for_each(cut).map_err(|source| PrecisionError::Uncuttable {
        tensor: parameter.name.clone(),
        plan,
        format: format.to_string(),
        shape: parameter.shape.clone(),
        source: Box::new(source),
    })
}

fn unknown_format(format: &FormatId, rule: &Rule, formats: &[&dyn FormatRule]) -> PrecisionError {
    let mut known: Vec<String> = builtin_rules().map(|arithmetic| arithmetic.id().to_string()).collect();
    known.extend(formats.iter().map(|arithmetic| arithmetic.id().to_string()));
    known.extend(registry::format_names().into_iter().map(str::to_owned));
    PrecisionError::UnknownFormat { rule: rule.to_string(), format: format.to_string(), known }
}

fn check_pairs(inventory: &Inventory, entries: &[PrecisionEntry]) -> Result<(), PrecisionError> {
    let decision = |entry: &PrecisionEntry| format!("{} ({})", entry.format, entry.backward.name());
    for (parameter, entry) in inventory.parameters.iter().zip(entries) {
        let Some(other) = parameter.pair else { continue };
        let other_entry = &entries[other.index()];
        if (&entry.format, entry.backward) != (&other_entry.format, other_entry.backward) {
            return Err(PrecisionError::PairSplit {
                gate: parameter.name.clone(),
                gate_decision: decision(entry),
                up: inventory.parameter(other).name.clone(),
                up_decision: decision(other_entry),
            });
        }
    }
    Ok(())
}
