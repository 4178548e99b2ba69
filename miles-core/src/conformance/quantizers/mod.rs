//! The suite for quantizers: the bytes of the format's rule, on every device, to the bit.
//!
//! Three witnesses decide each format: the scalar rule of this crate, golden bytes from independent implementations,
//! and the quantizer under test. Cases are named `group/format`.

mod decoding;
mod inputs;
mod publication;
mod seams;
mod shards;
mod witnesses;

pub use publication::{Publisher, publication};

use super::grid::Grid;
use super::{Failure, Report, Suite, Verdict};
use crate::format::{FormatId, FormatRule, QuantizeSpec, QuantizedTensor, SourceDtype, builtin_rules};
use crate::plugin::{Quantizer, Support};

/// The groups of the quantizer suite, in order.
///
/// | group | what it holds |
/// |---|---|
/// | `declared` | a declared format is done, any other one is refused as `Unsupported`, an unknown one too |
/// | `golden_bytes` | golden bytes; the rule is compared with them too |
/// | `shapes` | lengths 0, 1, primes and around every block border; both operands, axes, scopes and source dtypes |
/// | `large` | a tensor that is worth several threads, and lines of thousands of elements |
/// | `ties` | elements at, just above and just below the middle of two codes |
/// | `scales` | block maxima at, just above and just below the borders of two block scales |
/// | `division` | block maxima with arbitrary mantissas: dividing is not multiplying by a rounded reciprocal |
/// | `magnitudes` | blocks many binades apart, largest finite values, scale code 0, scales that underflow |
/// | `subnormals` | subnormal elements, maxima and intermediate results |
/// | `zeros` | zero tensors, rows and blocks, beside large ones |
/// | `negative_zeros` | the sign of zero, also of results that round to zero |
/// | `non_finite` | NaN and infinity, as errors and as hardware converts them |
/// | `joint` | gate and up pairs in both orders, three and five tensors |
/// | `scopes` | every extent of an outer scale, those that the rule refuses too |
/// | `partition` | matrices cut into shards, and the shards by themselves |
/// | `names` | sources without a name and under any name |
/// | `neighbours` | an activation row's bytes are those of the row alone |
/// | `repeat` | nothing is left over from an earlier call or line |
/// | `threads` | calls at the same time |
/// | `decode` | decoded values, with and without amax |
/// | `extremes` | every code byte under every scale byte, and under F32 scales from 0 to the largest |
/// | `counts` | what a quantizer counts is what the definition counts |
/// | `publication` | a published version holds the bytes of the BF16 rounding of the master weights |
pub const QUANTIZER_GROUPS: &[&str] = &[
    "declared",
    "golden_bytes",
    "shapes",
    "large",
    "ties",
    "scales",
    "division",
    "magnitudes",
    "subnormals",
    "zeros",
    "negative_zeros",
    "non_finite",
    "joint",
    "scopes",
    "partition",
    "names",
    "neighbours",
    "repeat",
    "threads",
    "decode",
    "extremes",
    "counts",
    "publication",
];

/// Runs the whole quantizer suite over the built-in formats.
///
/// ```no_run
/// use miles_core::conformance::{self, broken::Broken};
///
/// let report = conformance::quantizer(&Broken::sound());
/// println!("{report}\n{}", report.to_json());
/// report.require()?;
/// # Ok::<(), conformance::ConformanceError>(())
/// ```
#[must_use]
pub fn quantizer(quantizer: &dyn Quantizer) -> Report {
    quantizer_with(quantizer, &[])
}

/// Runs the whole quantizer suite over the built-in formats and those of `rules`, which need not be registered.
#[must_use]
pub fn quantizer_with(quantizer: &dyn Quantizer, rules: &[&dyn FormatRule]) -> Report {
    run(quantizer, rules, Suite::new(format!("quantizer {}", quantizer.id())))
}

/// Runs one group of the quantizer suite, or the one case of that name, over the built-in formats.
///
/// ```
/// use miles_core::conformance::{self, broken::Broken, quantizer_group};
///
/// quantizer_group(&Broken::sound(), "golden_bytes").require()?;
/// # Ok::<(), conformance::ConformanceError>(())
/// ```
#[must_use]
pub fn quantizer_group(quantizer: &dyn Quantizer, group: &str) -> Report {
    run(quantizer, &[], Suite::new(format!("quantizer {}", quantizer.id())).only(group))
}

/// A quantizer, and the rule whose bytes it has to give.
#[derive(Clone, Copy)]
struct Subject<'a> {
    quantizer: &'a dyn Quantizer,
    rule: &'a dyn FormatRule,
}

type Check = fn(&Subject<'_>) -> Verdict;

const CHECKS: &[(&str, Check)] = &[
    ("golden_bytes", witnesses::golden_bytes),
    ("shapes", witnesses::shapes),
    ("large", witnesses::large),
    ("ties", witnesses::ties),
    ("scales", witnesses::scales),
    ("division", witnesses::division),
    ("magnitudes", witnesses::magnitudes),
    ("subnormals", witnesses::subnormals),
    ("zeros", witnesses::zeros),
    ("negative_zeros", witnesses::negative_zeros),
    ("non_finite", witnesses::non_finite),
    ("joint", seams::joint),
    ("scopes", shards::scopes),
    ("partition", shards::partition),
    ("names", seams::names),
    ("neighbours", seams::neighbours),
    ("repeat", seams::repeat),
    ("threads", seams::threads),
    ("decode", decoding::decode),
    ("extremes", decoding::extremes),
    ("counts", decoding::counts),
    ("publication", publication::through_quantizer),
];

fn run(quantizer: &dyn Quantizer, rules: &[&dyn FormatRule], mut suite: Suite) -> Report {
    let mut tested: Vec<&dyn FormatRule> = builtin_rules().map(|rule| rule as &dyn FormatRule).collect();
    tested.extend(rules.iter().copied().filter(|rule| crate::format::builtin_rule(&rule.id()).is_none()));
    for rule in rules.iter().filter(|rule| crate::format::builtin_rule(&rule.id()).is_some()) {
        // The suite holds a quantizer to the built-in rule of that name, so it has to be the same.
        suite.case(format!("declared/{}-as-given", rule.id()), || super::formats::name(*rule));
    }
    suite.case("declared/unknown-format", || refuses_unknown(quantizer));
    let (mut supported, mut refused) = (Vec::new(), Vec::new());
    for rule in tested {
        match quantizer.support(&rule.id()) {
            Support::Unsupported => refused.push(Subject { quantizer, rule }),
            Support::Native | Support::Emulated => supported.push(Subject { quantizer, rule }),
        }
    }
    suite.case("declared/any", || Failure::unless(!supported.is_empty(), || "no format is supported".to_owned()));
    for subject in &supported {
        suite.case(format!("declared/{}", subject.rule.id()), || declared(subject));
    }
    for Subject { rule, .. } in refused {
        let grid = Grid::uniform(2, 256, 1);
        let spec = supported_spec(rule);
        suite.refusal(format!("declared/{}", rule.id()), || {
            quantizer.quantize(&[crate::format::Source::new(&grid.values, 2, 256, SourceDtype::F32, None)?], &spec)
        });
        suite.refusal(format!("declared/{}-decode", rule.id()), || {
            let source = crate::format::Source::new(&grid.values, 2, 256, SourceDtype::F32, None)?;
            quantizer.dequantize(&rule.quantize(&source, &spec)?)
        });
    }
    for (group, check) in CHECKS {
        for subject in &supported {
            suite.case(format!("{group}/{}", subject.rule.id()), || check(subject));
        }
    }
    suite.finish()
}

/// The activation spec of a format, or the weight spec of one that has only that.
fn supported_spec(rule: &dyn FormatRule) -> QuantizeSpec {
    let activation = QuantizeSpec::activation(rule.id());
    match rule.layout(256, 256, &activation) {
        Ok(_) => activation,
        Err(_) => QuantizeSpec::weight(rule.id()),
    }
}

fn declared(subject: &Subject<'_>) -> Verdict {
    let tensor = subject.quantize(&Grid::uniform(2, 256, 1), SourceDtype::F32, &supported_spec(subject.rule))?;
    let values = subject.quantizer.dequantize(&tensor)?;
    Failure::unless(values.len() == 512, || format!("512 elements decode to {}", values.len()))
}

fn refuses_unknown(quantizer: &dyn Quantizer) -> Verdict {
    let format = FormatId::new("a-format-that-nobody-has")?;
    let support = quantizer.support(&format);
    Failure::unless(support == Support::Unsupported, || format!("support for `{format}` is {support:?}"))?;
    let grid = Grid::uniform(2, 256, 1);
    match quantizer.quantize(&[grid.source(SourceDtype::F32)?], &QuantizeSpec::weight(format)) {
        Err(crate::Error::Unsupported { .. }) => Ok(()),
        Err(error) => Err(Failure::new(format!("an unknown format gave another error: {error}"))),
        Ok(_) => Err(Failure::new("an unknown format was quantized")),
    }
}

impl Subject<'_> {
    /// One tensor through the quantizer.
    fn quantize(&self, grid: &Grid, dtype: SourceDtype, spec: &QuantizeSpec) -> Result<QuantizedTensor, Failure> {
        let mut tensors = self.quantizer.quantize(&[grid.source(dtype)?], spec)?;
        match (tensors.pop(), tensors.len()) {
            (Some(tensor), 0) => Ok(tensor),
            (_, others) => Err(Failure::new(format!("one source gave {} results", others + 1))),
        }
    }

    /// The specs that the format has.
    fn specs(&self) -> Vec<QuantizeSpec> {
        let fits = |spec: &QuantizeSpec| self.rule.layout(256, 256, spec).is_ok();
        super::grid::specs(&self.rule.id()).into_iter().filter(fits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Outcome;
    use crate::conformance::broken_parts::{BrokenFormat, FormatDefect};
    use crate::format::{Mxfp8, Source};
    use crate::{Error, Result};

    /// Does no format.
    struct Nothing;

    impl Nothing {
        fn refuse<T>(&self) -> Result<T> {
            let (operation, backend) = ("anything".to_owned(), self.id().to_owned());
            Err(Error::Unsupported { operation, backend, why: "it does nothing".to_owned() })
        }
    }

    impl Quantizer for Nothing {
        fn id(&self) -> &str {
            "nothing"
        }

        fn support(&self, _: &FormatId) -> Support {
            Support::Unsupported
        }

        fn quantize(&self, _: &[Source<'_>], _: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
            self.refuse()
        }

        fn dequantize(&self, _: &QuantizedTensor) -> Result<Vec<f32>> {
            self.refuse()
        }
    }

    #[test]
    fn a_rule_given_under_a_built_in_name_has_to_have_its_bytes() {
        let broken = BrokenFormat::new(&Mxfp8::DEFAULT, FormatDefect::ClaimsABuiltInName);
        for (rule, passes) in [(&Mxfp8::DEFAULT as &dyn FormatRule, true), (&broken, false)] {
            let report = quantizer_with(&Nothing, &[rule]);
            assert_eq!(report.outcome("declared/mxfp8-as-given") == Some(&Outcome::Passed), passes, "{report}");
            assert!(matches!(report.outcome("declared/any"), Some(Outcome::Failed { .. })), "{report}");
        }
    }
}
