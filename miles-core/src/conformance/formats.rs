//! The suite for number formats.

use super::{Failure, Report, Suite};
use crate::format::{FormatRule, QuantizeSpec};

/// The groups of the format suite, in order.
pub const FORMAT_GROUPS: &[&str] = &["lengths"];

/// Runs the whole format suite on a rule, built in or your own.
#[must_use]
pub fn formats(rule: &dyn FormatRule) -> Report {
    run(rule, Suite::new(format!("format {}", rule.id())))
}

/// Runs one group of the format suite.
#[must_use]
pub fn format_group(rule: &dyn FormatRule, group: &str) -> Report {
    run(rule, Suite::new(format!("format {}", rule.id())).only(group))
}

fn run(rule: &dyn FormatRule, mut suite: Suite) -> Report {
    suite.case("lengths/empty", || {
        let layout = rule.layout(0, 0, &QuantizeSpec::activation(rule.id()))?;
        Failure::unless(layout.codes_bytes == 0, || format!("{} code bytes for no element", layout.codes_bytes))
    });
    suite.finish()
}
