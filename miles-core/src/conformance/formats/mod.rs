//! The suite for number formats: what every [`FormatRule`] promises, without knowing its arithmetic.
//!
//! Cases are named `group/operand-axis-scope`. A spec that the rule's `layout` refuses for a square of 256 is declared
//! unsupported, and `quantize` has to refuse it too; where it refuses a shape, the cases take the next longer one that it
//! accepts. A rule whose [`code_dependence`](FormatRule::code_dependence) says that it rotates blocks or rounds by chance
//! is asked for what such a rule can promise: see the table.

mod blocks;
mod names;
mod refusals;
mod rows;
mod shapes;
mod shards;
mod values;

pub(in crate::conformance) use names::name;
pub(in crate::conformance) use rows::same_row;

use super::grid::{Grid, spec_name, specs};
use super::{Failure, Report, Suite, Verdict};
use crate::format::{Axis, CodeDependence, FormatRule, Operand, QuantizeSpec, ScaleKind, ScaleScope};

/// The groups of the format suite, in order.
///
/// | group | what it holds |
/// |---|---|
/// | `declared` | some spec is supported; what `layout` refuses, `quantize` refuses; the name is nobody else's; no code decodes to more than the largest |
/// | `lengths` | every part has the length of the layout, for all shapes around block borders |
/// | `empty` | tensors without rows or columns |
/// | `repeatable` | the same bytes twice, whatever stands in memory before and behind the source |
/// | `rows` | an activation row's bytes are those of the row alone; rounded by chance, of the row between any others |
/// | `transpose` | the column copy is the row copy of the transpose |
/// | `padding` | a block cut short is a block padded with zeros |
/// | `blocks` | a block far along a line is the same block at its start |
/// | `bf16` | BF16 values have the bytes of the same values in F32, in either storage |
/// | `zeros` | zeros decode to zeros, also in zero blocks and (not rotated) beside large values; the sign of zero is kept or dropped everywhere |
/// | `finite` | no finite value below 2^127 is refused, and none gives a scale that is not finite |
/// | `error_bound` | not rotated: an element is off by half a step of its own block at most, by one step where chance rounds |
/// | `monotone` | neither rotated nor by chance: under one scale, a larger element does not decode to a smaller value |
/// | `idempotent` | with power-of-two scales, decoded values quantize to themselves |
/// | `joint` | quantizing one tensor jointly is quantizing it; quantizing several is quantizing them stacked |
/// | `partition` | shards quantized apart are the parts of the whole; shards of unequal size and cuts through a block are refused |
/// | `parts` | parts and canonical bytes make the same tensor again, damaged parts are refused |
/// | `non_finite` | NaN and infinity are an error that names tensor, row, column and block, or are converted, as asked |
/// | `refusals` | other formats' specs and tensors, and sizes beyond the address space |
pub const FORMAT_GROUPS: &[&str] = &[
    "declared",
    "lengths",
    "empty",
    "repeatable",
    "rows",
    "transpose",
    "padding",
    "blocks",
    "bf16",
    "zeros",
    "finite",
    "error_bound",
    "monotone",
    "idempotent",
    "joint",
    "partition",
    "parts",
    "non_finite",
    "refusals",
];

/// Runs the whole format suite on a rule, built in or your own.
#[must_use]
pub fn formats(rule: &dyn FormatRule) -> Report {
    run(rule, Suite::new(format!("format {}", rule.id())))
}

/// Runs one group of the format suite, or the one case of that name.
#[must_use]
pub fn format_group(rule: &dyn FormatRule, group: &str) -> Report {
    run(rule, Suite::new(format!("format {}", rule.id())).only(group))
}

/// A check of one rule under one spec.
type Check = fn(&dyn FormatRule, &QuantizeSpec) -> Verdict;
/// Whether a check applies to a rule and spec.
type Applies = fn(&dyn FormatRule, &QuantizeSpec) -> bool;

const CHECKS: &[(&str, Applies, Check)] = &[
    ("lengths", always, shapes::lengths),
    ("empty", always, shapes::empty),
    ("repeatable", always, rows::repeatable),
    ("rows", is_by_row, rows::rows),
    ("transpose", is_column_of_row, shapes::transpose),
    ("padding", always, shapes::padding),
    ("blocks", is_not_by_chance, blocks::blocks),
    ("bf16", always, blocks::bf16),
    ("zeros", always, values::zeros),
    ("finite", always, values::finite),
    ("error_bound", is_not_rotated, values::error_bound),
    ("monotone", codes_are_of_elements, values::monotone),
    ("idempotent", has_power_of_two_scales, values::idempotent),
    ("joint", always, rows::joint),
    ("partition", always, shards::partition),
    ("parts", always, refusals::parts),
    ("non_finite", always, refusals::non_finite),
    ("refusals", always, refusals::refusals),
];

fn run(rule: &dyn FormatRule, mut suite: Suite) -> Report {
    let (supported, refused): (Vec<_>, Vec<_>) = specs(&rule.id()).into_iter().partition(|spec| supports(rule, spec));
    suite.case("declared/any", || Failure::unless(!supported.is_empty(), || "layout refuses every spec".to_owned()));
    suite.case("declared/name", || names::name(rule));
    if !supported.is_empty() {
        suite.case("declared/largest_code", || supported.iter().try_for_each(|spec| names::largest_code(rule, spec)));
    }
    for spec in &refused {
        suite.unsupported(format!("declared/{}", spec_name(spec)), || refusals::refuses_as_declared(rule, spec));
    }
    for (group, applies, check) in CHECKS {
        let mut applied = false;
        for spec in supported.iter().filter(|spec| applies(rule, spec)) {
            suite.case(format!("{group}/{}", spec_name(spec)), || check(rule, spec));
            applied = true;
        }
        if !applied {
            suite.unsupported(*group, || Ok("the format has no spec that this is about".to_owned()));
        }
    }
    suite.finish()
}

fn supports(rule: &dyn FormatRule, spec: &QuantizeSpec) -> bool {
    rule.layout(256, 256, spec).is_ok()
}

fn always(_rule: &dyn FormatRule, _spec: &QuantizeSpec) -> bool {
    true
}

fn is_not_rotated(rule: &dyn FormatRule, _spec: &QuantizeSpec) -> bool {
    !rule.code_dependence().block
}

fn is_not_by_chance(rule: &dyn FormatRule, _spec: &QuantizeSpec) -> bool {
    !rule.code_dependence().position
}

fn codes_are_of_elements(rule: &dyn FormatRule, _spec: &QuantizeSpec) -> bool {
    rule.code_dependence() == CodeDependence::default()
}

fn is_by_row(_rule: &dyn FormatRule, spec: &QuantizeSpec) -> bool {
    spec.operand == Operand::Activation && spec.axis == Axis::Row && spec.scope == ScaleScope::Row
}

fn is_column_of_row(rule: &dyn FormatRule, spec: &QuantizeSpec) -> bool {
    spec.axis == Axis::Column && supports(rule, &spec.clone().with_axis(Axis::Row))
}

/// Whether decoding is exact, so that decoded values can be expected to quantize to themselves.
fn has_power_of_two_scales(rule: &dyn FormatRule, spec: &QuantizeSpec) -> bool {
    let Ok(tensor) = Grid::scattered(16, 256, 3).quantize(rule, spec) else { return false };
    let powers = match tensor.layout().scale_kind {
        ScaleKind::E8m0 => true,
        ScaleKind::F32 => tensor.scales().as_f32().is_some_and(|scales| scales.iter().all(|x| is_power_of_two(*x))),
        _ => false,
    };
    powers && tensor.outer().is_empty()
}

fn is_power_of_two(x: f32) -> bool {
    x.is_normal() && x.to_bits() & 0x007F_FFFF == 0
}

/// The elements that one scale covers along the block axis, by the layout of one long line.
fn block_length(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Result<usize, Failure> {
    const LONG: usize = 1 << 16;
    let (rows, cols) = if spec.axis == Axis::Row { (1, LONG) } else { (LONG, 1) };
    let layout = rule.layout(rows, cols, spec)?;
    Ok(LONG / (layout.scale_rows * layout.scale_cols).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::conformance::Outcome;
    use crate::conformance::broken::{Broken, Defect};
    use crate::format::{
        FormatError, FormatId, Mxfp8, QuantizedTensor, Source, TensorLayout, builtin_rule, builtin_rules,
    };
    use crate::plugin::Quantizer;

    #[test]
    fn every_built_in_format_passes() {
        for rule in builtin_rules() {
            let report = formats(rule);
            assert!(report.require().is_ok(), "{report}");
        }
    }

    #[test]
    fn the_groups_are_those_that_run() {
        let mut groups: Vec<String> =
            formats(&Mxfp8::DEFAULT).cases.iter().map(|case| case.group().to_owned()).collect();
        groups.dedup();
        assert_eq!(groups, FORMAT_GROUPS);
    }

    /// A built-in rule whose bytes a defective quantizer makes, or that refuses every spec.
    struct Wrong {
        rule: &'static dyn FormatRule,
        quantizer: Broken,
        refuses: bool,
    }

    impl FormatRule for Wrong {
        fn id(&self) -> FormatId {
            self.rule.id()
        }

        fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
            if self.refuses {
                return Err(FormatError::TooLarge { format: self.id(), rows, cols });
            }
            self.rule.layout(rows, cols, spec)
        }

        fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
            self.quantize_joint(std::slice::from_ref(source), spec).map(|mut tensors| tensors.swap_remove(0))
        }

        fn quantize_joint(
            &self,
            sources: &[Source<'_>],
            spec: &QuantizeSpec,
        ) -> Result<Vec<QuantizedTensor>, FormatError> {
            self.quantizer.quantize(sources, spec).map_err(|error| match error {
                Error::Format(error) => error,
                _ => FormatError::FormatMismatch { rule: self.id(), requested: spec.format.clone() },
            })
        }

        fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
            self.rule.dequantize(tensor)
        }
    }

    fn wrong(format: &FormatId, quantizer: Broken) -> Wrong {
        let rule = builtin_rule(format).unwrap_or(&Mxfp8::DEFAULT);
        Wrong { rule, quantizer, refuses: false }
    }

    #[test]
    fn a_rule_that_breaks_a_promise_fails_the_group_of_that_promise() {
        for (format, defect, case) in [
            (FormatId::mxfp8(), Defect::NeighbourScale, "rows/activation-row-row"),
            (FormatId::nvfp4(), Defect::TruncatedTail, "padding/activation-row-row"),
            (FormatId::nvfp4(), Defect::SwappedNibbles, "error_bound/activation-row-row"),
            (FormatId::mxfp8(), Defect::NanScaleOnZeroBlock, "zeros/activation-row-row"),
        ] {
            let group = case.split('/').next().unwrap_or_default();
            let sound = format_group(&wrong(&format, Broken::sound()), group);
            assert_eq!(sound.outcome(case), Some(&Outcome::Passed), "{sound}");
            let report = format_group(&wrong(&format, Broken::with(defect)), group);
            assert!(matches!(report.outcome(case), Some(Outcome::Failed { .. })), "{defect:?}\n{report}");
        }
    }

    #[test]
    fn a_rule_that_refuses_every_spec_does_not_pass() {
        let mut refusing = wrong(&FormatId::mxfp8(), Broken::sound());
        refusing.refuses = true;
        // It says that it supports nothing, and quantizes all the same: both are failures.
        let report = formats(&refusing);
        assert!(report.require().is_err() && report.passed() == 0, "{report}");
        assert!(matches!(report.outcome("declared/any"), Some(Outcome::Failed { .. })), "{report}");
        assert!(matches!(report.outcome("declared/weight-row-tensor"), Some(Outcome::Failed { .. })), "{report}");
    }
}
