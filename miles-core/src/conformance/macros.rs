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
            declared, lengths, empty, repeatable, rows, transpose, padding, blocks, bf16, zeros, finite, error_bound, monotone,
            idempotent, joint, partition, parts, non_finite, refusals
        ] }
    };
    (quantizer: $subject:expr) => {
        $crate::conformance_tests! { quantizer quantizer_conformance: $subject }
    };
    (quantizer $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, quantizer_group, QUANTIZER_GROUPS, [
            declared, golden_bytes, shapes, large, ties, scales, division, magnitudes, subnormals, zeros,
            negative_zeros, non_finite, joint, scopes, partition, names, neighbours, repeat, threads, decode, extremes,
            counts, publication
        ] }
    };
    (policy_store: $subject:expr) => {
        $crate::conformance_tests! { policy_store policy_store_conformance: $subject }
    };
    (policy_store $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, policy_store_group, POLICY_STORE_GROUPS, [
            reading, publishing, concurrency, subscription
        ] }
    };
    (rollout_engine: $subject:expr) => {
        $crate::conformance_tests! { rollout_engine rollout_engine_conformance: $subject }
    };
    (rollout_engine $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, rollout_engine_group, ROLLOUT_ENGINE_GROUPS, [
            formats, sampling, versions, swaps, ending, refusals
        ] }
    };
    (trainer: $subject:expr) => {
        $crate::conformance_tests! { trainer trainer_conformance: $subject }
    };
    (trainer $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, trainer_group, TRAINER_GROUPS, [
            recipes, publication, scores, update, optimizer, resume, refusals
        ] }
    };
    (reward: $subject:expr) => {
        $crate::conformance_tests! { reward reward_conformance: $subject }
    };
    (reward $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, reward_group, REWARD_GROUPS, [judging, hostile, threads] }
    };
    (scheduler: $subject:expr) => {
        $crate::conformance_tests! { scheduler scheduler_conformance: $subject }
    };
    (scheduler $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, scheduler_group, SCHEDULER_GROUPS, [steps, view, state] }
    };
    (advantage: $subject:expr) => {
        $crate::conformance_tests! { advantage advantage_conformance: $subject }
    };
    (advantage $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, advantage_group, ADVANTAGE_GROUPS, [values, threads] }
    };
    (loss: $subject:expr) => {
        $crate::conformance_tests! { loss loss_conformance: $subject }
    };
    (loss $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, loss_group, LOSS_GROUPS, [gradient, batch, threads] }
    };
    (observer: $subject:expr) => {
        $crate::conformance_tests! { observer observer_conformance: $subject }
    };
    (observer $module:ident: $subject:expr) => {
        $crate::conformance_group_tests! { $module, $subject, observer_group, OBSERVER_GROUPS, [events] }
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
