//! From a list of rules to the sealed map.

use super::{
    BackwardMode, PartitionPlan, PrecisionEntry, PrecisionError, PrecisionMap, Recipe, Rule, RuleList, RulePartition,
    TensorFormat,
};
use crate::Error;
use crate::format::{Axis, FormatError, FormatId, FormatRule, Partition, QuantizeSpec, builtin_rule, builtin_rules};
use crate::network::{Inventory, Parameter};
use crate::registry::{self, RegistryError};

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
    let list = recipe.list(inventory).with_overrides(overrides);
    let map = resolve_list(inventory, &list, formats, plan)?;
    list.refuse_idle(inventory, overrides.len())?;
    Ok(map)
}

/// Decides every tensor of an inventory by a list alone. A rule of it that decides nothing is no error here;
/// [`RuleList::uses`] finds it.
///
/// # Errors
/// As [`resolve_with`]; also [`PrecisionError::Undecided`] when no rule matches a tensor.
pub fn resolve_list(
    inventory: &Inventory,
    list: &RuleList,
    formats: &[&dyn FormatRule],
    plan: PartitionPlan,
) -> Result<PrecisionMap, PrecisionError> {
    list.rules.iter().try_for_each(Rule::check)?;
    if !plan.is_whole() && inventory.parameters.iter().all(|parameter| parameter.expert.is_none()) {
        return Err(PrecisionError::NothingToCut { plan });
    }
    let layers = inventory.layer_count();
    let texts: Vec<String> = list.rules.iter().map(ToString::to_string).collect();
    let mut entries = Vec::with_capacity(inventory.parameters.len());
    for parameter in &inventory.parameters {
        let found = list.rules.iter().position(|rule| rule.matches(parameter, layers));
        let index = found.ok_or_else(|| list.undecided(parameter))?;
        let rule = &list.rules[index];
        let (backward, partition) = match &rule.format {
            TensorFormat::Dense(_) => (BackwardMode::HighPrecision, Partition::WHOLE),
            TensorFormat::Quantized(format) => {
                let arithmetic = check_fit(parameter, format, rule, formats)?;
                let backward = rule.backward.unwrap_or(list.backward);
                let partition = match rule.partition {
                    Some(RulePartition::Whole) => Partition::WHOLE,
                    None => plan.partition(parameter.role),
                };
                check_cut(parameter, format, backward, arithmetic.rule(), (plan, partition))?;
                (backward, partition)
            }
        };
        entries.push(PrecisionEntry { format: rule.format.clone(), backward, partition, rule: texts[index].clone() });
    }
    check_pairs(inventory, &entries)?;
    Ok(PrecisionMap::seal(list.name.clone(), inventory, entries, plan))
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
    if !parameter.is_linear {
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
            Err(Error::Registry(RegistryError::Unknown { .. })) => return Err(unknown_format(format, rule, formats)),
            Err(source) => {
                let (rule, format) = (rule.to_string(), format.to_string());
                return Err(PrecisionError::Registered { rule, format, source: Box::new(source) });
            }
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
    (plan, partition): (PartitionPlan, Partition),
) -> Result<(), PrecisionError> {
    let (rows, cols) = parameter.rows_cols();
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
    let decision = |entry: &PrecisionEntry| {
        let cut = if entry.partition.is_whole() { String::new() } else { format!(", cut as {}", entry.partition) };
        format!("{} ({}{cut}) by rule `{}`", entry.format, entry.backward.name(), entry.rule)
    };
    for (parameter, entry) in inventory.parameters.iter().zip(entries) {
        let Some(other) = parameter.pair else { continue };
        let other_entry = &entries[other.index()];
        let decided = |entry: &PrecisionEntry| (entry.format.clone(), entry.backward, entry.partition);
        if decided(entry) != decided(other_entry) {
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
