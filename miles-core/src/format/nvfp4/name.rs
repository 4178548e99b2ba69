//! Names of the variants: from choices to a [`FormatId`] and back.
//!
//! A name is `nvfp4` and one part per choice that is not the default, in the order of the tables here. Each combination
//! has one name, and each name one combination.

use super::{DecodeOrder, ErrorSum, FourOverSix, Hadamard, LargestScale, Nvfp4, Rounding, ScaleRule, Tile, ZeroScale};
use crate::format::{FormatId, FormatRule};

impl Nvfp4 {
    /// The rule that `format` names: any combination, any seed. `None` for any other format, and for choices that
    /// cannot be combined.
    #[must_use]
    pub fn of(format: &FormatId) -> Option<Self> {
        let parts = format.as_str().strip_prefix(FAMILY)?;
        let mut rule = Self::DEFAULT;
        if parts.is_empty() {
            return Some(rule);
        }
        parts.strip_prefix('/')?.split('/').try_for_each(|part| rule.choose(part))?;
        (rule.conflict().is_none() && rule.name() == *format).then_some(rule)
    }

    /// The name of this rule.
    pub(super) fn name(&self) -> FormatId {
        let (seed, seedless) = match self.rounding {
            Rounding::Stochastic { seed } => (seed, Rounding::Stochastic { seed: DEFAULT_SEED }),
            other => (DEFAULT_SEED, other),
        };
        let rounding = named(&ROUNDINGS, &seedless);
        let parts = [
            named(&SCALE_RULES, &self.scale_rule),
            named(&TILES, &self.tile),
            rounding,
            named(&ROTATIONS, &self.hadamard),
            named(&DECODE_ORDERS, &self.decode_order),
            named(&ZERO_SCALES, &self.zero_scale),
        ];
        let mut chosen = parts.iter().flatten();
        match (chosen.next(), chosen.next()) {
            (None, _) => FormatId::nvfp4(),
            (Some(only), None) if seed == DEFAULT_SEED => FormatId::builtin(only),
            _ => {
                let part = |name: &str| match seed {
                    seed if seed != DEFAULT_SEED && Some(name) == rounding => format!("{}-{seed}", suffix(name)),
                    _ => suffix(name).to_owned(),
                };
                let parts: String = parts.iter().flatten().map(|name| part(name)).collect();
                FormatId::composed(&format!("{FAMILY}{parts}"))
            }
        }
    }

    /// Makes the choice that one part of a name stands for.
    fn choose(&mut self, part: &str) -> Option<()> {
        let chosen = set(&SCALE_RULES, part, &mut self.scale_rule)
            || set(&TILES, part, &mut self.tile)
            || set(&ROUNDINGS, part, &mut self.rounding)
            || set(&ROTATIONS, part, &mut self.hadamard)
            || set(&DECODE_ORDERS, part, &mut self.decode_order)
            || set(&ZERO_SCALES, part, &mut self.zero_scale);
        if chosen {
            return Some(());
        }
        let seed = part.strip_prefix("stochastic-")?.parse().ok()?;
        self.rounding = Rounding::Stochastic { seed };
        Some(())
    }
}

/// The format of the activations that a weight of `format` multiplies in a forward pass: the weight's, but for the
/// variants of [`Nvfp4::for_activations`].
#[must_use]
pub fn activation_format(format: &FormatId) -> FormatId {
    match Nvfp4::of(format) {
        Some(rule) if rule.for_activations() != rule => rule.for_activations().name(),
        _ => format.clone(),
    }
}

/// Every combination of choices that makes sense, with the default seed: what is found by name. Another seed makes a
/// rule to pass as a value.
pub fn combinations() -> impl Iterator<Item = &'static Nvfp4> {
    COMBINATIONS.iter()
}

/// The rule of that name among [`combinations`].
pub(in crate::format) fn combination(format: &FormatId) -> Option<&'static dyn FormatRule> {
    let rule = Nvfp4::of(format)?;
    COMBINATIONS.iter().find(|known| **known == rule).map(|known| known as &dyn FormatRule)
}

/// The default and the variants that differ in one choice.
pub(in crate::format) const RULES: &[&dyn FormatRule] = &[
    &Nvfp4::DEFAULT,
    &Nvfp4 { scale_rule: SCALE_RULES[0].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { scale_rule: SCALE_RULES[1].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { scale_rule: SCALE_RULES[2].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { scale_rule: SCALE_RULES[3].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { scale_rule: SCALE_RULES[4].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { tile: TILES[0].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { rounding: ROUNDINGS[0].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { rounding: ROUNDINGS[1].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { hadamard: ROTATIONS[0].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { hadamard: ROTATIONS[1].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { decode_order: DECODE_ORDERS[0].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { zero_scale: ZERO_SCALES[0].1, ..Nvfp4::DEFAULT },
    &Nvfp4 { zero_scale: ZERO_SCALES[1].1, ..Nvfp4::DEFAULT },
];

const FAMILY: &str = "nvfp4";
const DEFAULT_SEED: u64 = 0;

const fn four_over_six(error: ErrorSum, largest_scale: LargestScale) -> ScaleRule {
    ScaleRule::FourOverSix(FourOverSix { error, largest_scale })
}

// Every choice that is not the default, with the name of the variant that makes it alone.
const SCALE_RULES: [(&str, ScaleRule); 5] = [
    ("nvfp4/te-2.13", ScaleRule::DivisionBySix),
    ("nvfp4/four-over-six-mae-448", four_over_six(ErrorSum::Absolute, LargestScale::At448)),
    ("nvfp4/four-over-six-mse-448", four_over_six(ErrorSum::Squared, LargestScale::At448)),
    ("nvfp4/four-over-six-mae-256", four_over_six(ErrorSum::Absolute, LargestScale::At256)),
    ("nvfp4/four-over-six-mse-256", four_over_six(ErrorSum::Squared, LargestScale::At256)),
];
const TILES: [(&str, Tile); 1] = [("nvfp4/16x16", Tile::Square)];
const ROUNDINGS: [(&str, Rounding); 2] = [
    ("nvfp4/python-reference", Rounding::PositiveZero),
    ("nvfp4/stochastic", Rounding::Stochastic { seed: DEFAULT_SEED }),
];
const ROTATIONS: [(&str, Option<Hadamard>); 2] =
    [("nvfp4/hadamard", Some(Hadamard::Signed)), ("nvfp4/hadamard-plain", Some(Hadamard::Plain))];
const DECODE_ORDERS: [(&str, DecodeOrder); 1] = [("nvfp4/decode-scale-order", DecodeOrder::Scale)];
const ZERO_SCALES: [(&str, ZeroScale); 2] =
    [("nvfp4/zero-scale-zero", ZeroScale::Zero), ("nvfp4/zero-scale-smallest", ZeroScale::Smallest)];

static COMBINATIONS: [Nvfp4; COUNT] = all_combinations();

/// 1x16: 3 rotations x (6 scale rules x 2 deterministic roundings + 2 scale rules x stochastic); 16x16: 6 scale rules x
/// 2 roundings; each x 2 decode orders x 3 zero scales.
const COUNT: usize = (3 * (6 * 2 + 2) + 6 * 2) * 2 * 3;

const fn all_combinations() -> [Nvfp4; COUNT] {
    let mut all = [Nvfp4::DEFAULT; COUNT];
    let (mut filled, mut number) = (0, 0);
    while number < 6 * 2 * 3 * 3 * 2 * 3 {
        let candidate = numbered(number);
        if candidate.conflict().is_none() {
            all[filled] = candidate;
            filled += 1;
        }
        number += 1;
    }
    assert!(filled == COUNT);
    all
}

/// Choices counted in mixed radix; digit 0 is the default.
const fn numbered(mut number: usize) -> Nvfp4 {
    let mut rule = Nvfp4::DEFAULT;
    take_digit(&mut number, &SCALE_RULES, &mut rule.scale_rule);
    take_digit(&mut number, &TILES, &mut rule.tile);
    take_digit(&mut number, &ROUNDINGS, &mut rule.rounding);
    take_digit(&mut number, &ROTATIONS, &mut rule.hadamard);
    take_digit(&mut number, &DECODE_ORDERS, &mut rule.decode_order);
    take_digit(&mut number, &ZERO_SCALES, &mut rule.zero_scale);
    rule
}

/// Makes the choice that the lowest digit of `number` stands for, and leaves the higher digits.
const fn take_digit<T: Copy>(number: &mut usize, table: &[(&str, T)], slot: &mut T) {
    let radix = table.len() + 1;
    if let Some(choice) = (*number % radix).checked_sub(1) {
        *slot = table[choice].1;
    }
    *number /= radix;
}

fn named<T: PartialEq>(table: &[(&'static str, T)], choice: &T) -> Option<&'static str> {
    table.iter().find(|(_, known)| known == choice).map(|(name, _)| *name)
}

fn set<T: Copy>(table: &[(&'static str, T)], part: &str, slot: &mut T) -> bool {
    let known = table.iter().find(|(name, _)| suffix(name)[1..] == *part);
    known.inspect(|(_, choice)| *slot = *choice).is_some()
}

/// `/te-2.13` of `nvfp4/te-2.13`.
fn suffix(name: &str) -> &str {
    &name[FAMILY.len()..]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::format::{FormatError, builtin_rule, builtin_rules};

    #[test]
    fn every_combination_has_one_name_and_is_found_by_it() {
        let names: BTreeSet<FormatId> = combinations().map(Nvfp4::name).collect();
        assert_eq!(names.len(), COUNT);
        for rule in combinations() {
            let name = rule.name();
            assert_eq!(Nvfp4::of(&name), Some(*rule), "{name}");
            assert_eq!(builtin_rule(&name).unwrap().id(), name);
            assert_eq!(FormatId::new(name.as_str()).unwrap(), name);
            assert_eq!(name.family(), FAMILY);
        }
        let listed: Vec<FormatId> = builtin_rules().map(FormatRule::id).filter(|id| id.family() == FAMILY).collect();
        assert_eq!(listed.len(), 14);
        assert!(listed.iter().all(|id| names.contains(id)));
    }

    #[test]
    fn names_that_are_not_canonical_or_not_sensible_name_nothing() {
        for name in [
            "nvfp4/",
            "nvfp4x",
            "nvfp4/16x16/te-2.13",
            "nvfp4/te-2.13/te-2.13",
            "nvfp4/four-over-six-mae-448/stochastic",
            "nvfp4/16x16/hadamard",
            "nvfp4/16x16/stochastic",
            "nvfp4/256",
            "nvfp4/stochastic-0",
            "nvfp4/stochastic-007",
            "mxfp8",
        ] {
            assert_eq!(Nvfp4::of(&FormatId::new(name).unwrap()), None, "{name}");
        }
    }

    #[test]
    fn a_seed_is_part_of_the_name_and_such_a_rule_is_a_value() {
        let seeded = Nvfp4::DEFAULT.with_rounding(Rounding::Stochastic { seed: 77 }).unwrap();
        assert_eq!(seeded.name().as_str(), "nvfp4/stochastic-77");
        let rotated = seeded.with_hadamard(Some(Hadamard::Signed)).unwrap();
        assert_eq!(rotated.name().as_str(), "nvfp4/stochastic-77/hadamard");
        for rule in [seeded, rotated] {
            assert_eq!(Nvfp4::of(&rule.name()), Some(rule));
            assert!(builtin_rule(&rule.name()).is_none());
        }
        assert_eq!(activation_format(&rotated.name()).as_str(), "nvfp4/hadamard");
        assert_eq!(activation_format(&FormatId::mxfp8()), FormatId::mxfp8());
    }

    #[test]
    fn choices_that_contradict_each_other_are_refused_in_either_order() {
        let stochastic = Rounding::Stochastic { seed: 0 };
        let error = |result: Result<Nvfp4, FormatError>| match result.unwrap_err() {
            FormatError::Conflict { format, .. } => format.as_str().to_owned(),
            other => panic!("{other}"),
        };
        let four = Nvfp4::DEFAULT.with_scale_rule(SCALE_RULES[1].1).unwrap();
        assert_eq!(error(four.with_rounding(stochastic)), "nvfp4/four-over-six-mae-448/stochastic");
        let random = Nvfp4::DEFAULT.with_rounding(stochastic).unwrap();
        assert_eq!(error(random.with_scale_rule(SCALE_RULES[1].1)), "nvfp4/four-over-six-mae-448/stochastic");
        assert_eq!(error(random.with_tile(Tile::Square)), "nvfp4/16x16/stochastic");
        let square = Nvfp4::DEFAULT.with_tile(Tile::Square).unwrap();
        assert_eq!(error(square.with_hadamard(Some(Hadamard::Plain))), "nvfp4/16x16/hadamard-plain");
    }
}
