//! The conformance suite on the CPU quantizer: every built-in format, on one thread and on several.
#![allow(missing_docs, clippy::unwrap_used)]

use std::num::NonZeroUsize;

use miles_backend_cpu_ref::CpuQuantizer;
use miles_backend_cpu_ref::kernel::Compute;
use miles_core::conformance::quantizer;
use miles_core::format::builtin_rules;

fn cpu(threads: usize) -> CpuQuantizer {
    CpuQuantizer::new(Compute::new(NonZeroUsize::new(threads).unwrap()).unwrap()).unwrap()
}

miles_core::conformance_tests! { quantizer three_threads: cpu(3) }

#[test]
fn one_thread_passes_with_every_built_in_format_supported() {
    let report = quantizer(&cpu(1));
    assert!(report.require().is_ok(), "{report}");
    for rule in builtin_rules() {
        let case = format!("declared/{}", rule.id());
        assert_eq!(report.outcome(&case), Some(&miles_core::conformance::Outcome::Passed), "{report}");
    }
}
