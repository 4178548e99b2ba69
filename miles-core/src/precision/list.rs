//! [`RuleList`]: an ordered list of rules under a name, and what each of its rules does to a model.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::NoEffect;
use super::{BackwardMode, PrecisionError, Rule};
use crate::network::{Inventory, ParamId, Parameter};

/// Rules in order, first match wins. A recipe returns one ([`Recipe::list`](super::Recipe::list)); it can be printed as
/// TOML, edited and resolved under a name of its own.
///
/// ```
/// use miles_core::precision::RuleList;
///
/// let list: RuleList = toml::from_str(
///     r#"
///     name = "experts-only"
///     backward = "dequantized"
///
///     [[rules]]
///     roles = ["expert-gate", "expert-up", "expert-down"]
///     shape = { cols-multiple-of = 32 }
///     format = "mxfp8"
///
///     [[rules]]
///     format = "bf16"
///     "#,
/// )?;
/// assert_eq!(list.rules[1].to_string(), "everything -> bf16");
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleList {
    /// Name, which the map carries in place of a recipe's.
    pub name: String,
    /// Backward mode of quantized tensors whose rule names none.
    pub backward: BackwardMode,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// What one rule of a list does to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleUse {
    /// The rule.
    pub rule: RuleAt,
    /// Tensors that meet its conditions.
    pub matched: usize,
    /// Tensors that it decides: those that no earlier rule matches.
    pub decided: usize,
    /// Earlier rules that took the others.
    pub taken_by: Vec<RuleAt>,
}

/// A rule and its place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleAt {
    /// Place in the list, from 1.
    pub position: usize,
    /// The rule, for people.
    pub rule: String,
}

/// Which rule decided a tensor, and which others would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The tensor.
    pub tensor: String,
    /// Number of rules in the list.
    pub rules: usize,
    /// The first rule that matches it.
    pub decided: RuleAt,
    /// Every other rule that matches it, in order.
    pub later: Vec<RuleAt>,
}

impl RuleList {
    /// The same list with more rules in front of it.
    #[must_use]
    pub fn with_overrides(mut self, overrides: &[Rule]) -> Self {
        self.rules.splice(0..0, overrides.iter().cloned());
        self
    }

    /// What each rule does to a model, in order.
    #[must_use]
    pub fn uses(&self, inventory: &Inventory) -> Vec<RuleUse> {
        let layers = inventory.layer_count();
        let mut taken_by = vec![vec![false; self.rules.len()]; self.rules.len()];
        let (mut matched, mut decided) = (vec![0; self.rules.len()], vec![0; self.rules.len()]);
        for parameter in &inventory.parameters {
            let mut first = None;
            for index in self.matching(parameter, layers) {
                matched[index] += 1;
                match first {
                    None => decided[index] += 1,
                    Some(first) => taken_by[index][first] = true,
                }
                first.get_or_insert(index);
            }
        }
        let uses = taken_by.into_iter().enumerate().map(|(index, taken)| RuleUse {
            rule: self.at(index),
            matched: matched[index],
            decided: decided[index],
            taken_by: (0..taken.len()).filter(|earlier| taken[*earlier]).map(|earlier| self.at(earlier)).collect(),
        });
        uses.collect()
    }

    /// The rule that decides a tensor, and every other rule that matches it.
    ///
    /// # Errors
    /// [`PrecisionError::Undecided`] when no rule matches it.
    pub fn why(&self, inventory: &Inventory, id: ParamId) -> Result<Why, PrecisionError> {
        let parameter = inventory.parameter(id);
        let mut matching = self.matching(parameter, inventory.layer_count()).map(|index| self.at(index));
        let decided = matching.next().ok_or_else(|| self.undecided(parameter))?;
        Ok(Why { tensor: parameter.name.clone(), rules: self.rules.len(), decided, later: matching.collect() })
    }

    /// Refuses the first of the first `overrides` rules that decides nothing.
    pub(super) fn refuse_idle(&self, inventory: &Inventory, overrides: usize) -> Result<(), PrecisionError> {
        if overrides == 0 {
            return Ok(());
        }
        let mut uses = self.uses(inventory).into_iter().take(overrides);
        match uses.find_map(|rule_use| Some((rule_use.no_effect()?, rule_use.rule.rule))) {
            None => Ok(()),
            Some((cause, rule)) => Err(PrecisionError::RuleWithoutEffect { rule, cause }),
        }
    }

    pub(super) fn undecided(&self, parameter: &Parameter) -> PrecisionError {
        PrecisionError::Undecided { list: self.name.clone(), tensor: parameter.name.clone() }
    }

    fn matching(&self, parameter: &Parameter, layers: usize) -> impl Iterator<Item = usize> {
        self.rules.iter().enumerate().filter(move |(_, rule)| rule.matches(parameter, layers)).map(|(index, _)| index)
    }

    fn at(&self, index: usize) -> RuleAt {
        RuleAt { position: index + 1, rule: self.rules[index].to_string() }
    }
}

impl RuleUse {
    /// Why the rule decides nothing; `None` when it decides something.
    #[must_use]
    pub fn no_effect(&self) -> Option<NoEffect> {
        match (self.decided, self.matched) {
            (0, 0) => Some(NoEffect::MatchesNothing),
            (0, tensors) => Some(NoEffect::Taken { tensors, by: self.taken_by.clone() }),
            _ => None,
        }
    }
}

impl fmt::Display for RuleAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}, `{}`", self.position, self.rule)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: decided by {} of {}", self.tensor, self.decided, self.rules)?;
        for rule in &self.later {
            writeln!(f, "  also matched by {rule}, which comes later")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
