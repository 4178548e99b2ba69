//! [`conformance_tests!`](crate::conformance_tests): a suite as `#[test]` functions.

/// Turns a suite into one `#[test]` per group of cases, in a module of their own.
///
/// The subject is an expression; each test makes its own. A name between the kind and the colon names the module, for
/// two subjects of one kind side by side.
///
/// ```
/// use miles_core::format::{Fp8Block, Mxfp8};
///
/// miles_core::conformance_tests! { format: Mxfp8::DEFAULT }
/// miles_core::conformance_tests! { format block_fp8: Fp8Block::FP32_SCALES }
/// miles_core::conformance_tests! { quantizer: miles_core::conformance::broken::Broken::sound() }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    (format: $subject:expr) => {
        $crate::conformance_tests! { format format_conformance: $subject }
    };
    (format $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, format_group, FORMAT_GROUPS, [
            declared, lengths, empty, repeatable, rows, transpose, padding, zeros, finite, error_bound, monotone,
            idempotent, joint, parts, non_finite, refusals
        ] }
    };
    (quantizer: $subject:expr) => {
        $crate::conformance_tests! { quantizer quantizer_conformance: $subject }
    };
    (quantizer $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, quantizer_group, QUANTIZER_GROUPS, [
            declared, golden_bytes, shapes, large, ties, scales, division, magnitudes, subnormals, zeros,
            negative_zeros, non_finite, joint, neighbours, repeat, decode, publication
        ] }
    };
}

/// The tests of one subject: a `#[test]` per group, and one that compares the groups with those of the suite.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_group_tests {
    ($module:ident, $subject:expr, $run:ident, $groups:ident, [$($group:ident),* $(,)?]) => {
        #[cfg(test)]
        mod $module {
            #[allow(unused_imports, reason = "the subject may be a path from anywhere")]
            use super::*;

            $(
                #[test]
                fn $group() {
                    let report = $crate::conformance::$run(&$subject, stringify!($group));
                    if let Err(error) = report.require_group() {
                        panic!("{error}");
                    }
                }
            )*

            #[test]
            fn every_group_has_a_test() {
                assert_eq!($crate::conformance::$groups, [$(stringify!($group)),*]);
            }
        }
    };
}
