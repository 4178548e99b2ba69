//! What the variants and the symmetric formats promise, exhaustive number tests, stacks of experts, kernel layouts.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

#[path = "../formats/sample.rs"]
#[allow(dead_code, reason = "shared with the tests of the default formats")]
mod sample;

mod dirty_memory;
mod exhaustive;
mod fp8_block;
mod kernel_layouts;
mod mxfp8;
mod partitions;
mod rules;
mod stacks;
mod symmetric;

use miles_core::format::{FormatRule, builtin_rules};

/// Every built-in rule but the NVFP4 family, which has tests of its own.
fn block_rules() -> Vec<&'static dyn FormatRule> {
    let rules: Vec<_> = builtin_rules().filter(|rule| rule.id().family() != "nvfp4").collect();
    assert_eq!(rules.len(), 20);
    rules
}
