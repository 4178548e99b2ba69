//! The conformance suite on the parts that come with the library, and on the CPU backend with one defect at a time.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use miles_core::conformance::broken_parts::{EngineDefect, TrainerDefect, with_broken_engine, with_broken_trainer};
use miles_core::conformance::fixture::{Family, map};
use miles_core::conformance::{
    ConformanceError, Outcome, Report, RewardSample, RewardSubject, TrainerSubject, advantages, losses, policy_stores,
    rewards, rollout_engine_group, rollout_engines, schedulers, trainer_group, trainers,
};
use miles_core::format::FormatId;
use miles_core::plugin::{Backend, Capabilities, PublicationMode};
use miles_core::policy::store::DirectoryOptions;
use miles_core::policy::{DirectoryStore, MemoryStore, ThrottledStore, VerifiedStore};
use miles_core::precision::Recipe;
use miles_grpo::advantage::{Centered, GroupNormalized};
use miles_grpo::kl::KlEstimator;
use miles_grpo::loss::{Clipped, CrossEntropy, Denominator};
use miles_grpo::reward::{Arithmetic, ExactMatch};
use miles_grpo::scheduler::Synchronous;

use crate::support::backend;

fn required(report: &Report) {
    if let Err(error) = report.require() {
        panic!("{error}");
    }
}

/// The case failed, in words: a defect that is wrong in what it answers panics nowhere.
fn assert_caught(report: &Report, case: &str, defect: &str) {
    let Some(Outcome::Failed { why }) = report.outcome(case) else { panic!("{defect}\n{report}") };
    assert!(!why.contains("panicked"), "{defect}: {why}");
}

#[test]
fn the_engines_of_cpu_ref_hold_the_contract_in_every_format() {
    let report = rollout_engines(&backend(2));
    required(&report);
    let refused: Vec<&str> =
        report.cases.iter().filter(|c| c.outcome != Outcome::Passed).map(|c| c.name.as_str()).collect();
    assert_eq!(refused, ["formats/conformance-undeclared"], "{report}");
}

#[test]
fn the_trainers_of_cpu_ref_hold_the_contract_in_every_recipe() {
    let scratch = tempfile::tempdir().unwrap();
    let report = trainers(&TrainerSubject::new(backend(2), scratch.path()));
    required(&report);
    for recipe in Recipe::ALL {
        assert_eq!(report.outcome(&format!("recipes/{recipe}")), Some(&Outcome::Passed), "{report}");
    }
    let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_stores_and_their_wrappers_hold_the_contract() {
    let (scratch, count) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
    let network = Family::Dense.network();
    let map = map(&network, Recipe::Mxfp8).unwrap();
    let directory = || {
        let dir = scratch.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let options = DirectoryOptions::default();
        DirectoryStore::open(&dir, Arc::clone(&network), Arc::clone(&map), options).unwrap()
    };
    let rate = NonZeroU64::new(1 << 40).unwrap();
    required(&policy_stores(&|| Arc::new(MemoryStore::new(2))));
    required(&policy_stores(&|| Arc::new(directory())));
    required(&policy_stores(&|| Arc::new(VerifiedStore::new(ThrottledStore::new(directory(), rate)))));
}

#[test]
fn the_rewards_of_the_loop_hold_the_contract() {
    let sample = |completion, answer| RewardSample::new("3+4=", completion, answer);
    let subjects = [
        RewardSubject {
            name: "arithmetic".to_owned(),
            reward: Arc::new(Arithmetic),
            known: vec![
                (sample("7", Some("7")), 1.0),
                (sample("it is 7.0", Some("07")), 1.0),
                (sample("8", Some("7")), 0.0),
                (sample("", Some("7")), 0.0),
            ],
            refused: vec![sample("7", None), sample("7", Some("seven"))],
        },
        RewardSubject {
            name: "exact-match".to_owned(),
            reward: Arc::new(ExactMatch::default()),
            known: vec![(sample("7", Some("7")), 1.0), (sample("8", Some("7")), 0.0)],
            refused: vec![sample("7", None)],
        },
    ];
    subjects.iter().for_each(|subject| required(&rewards(subject)));
}

#[test]
fn the_strategies_of_the_loop_hold_the_contract() {
    required(&schedulers(&|| Box::new(Synchronous)));
    required(&advantages(&Centered));
    required(&advantages(&GroupNormalized::default()));
    for denominator in [Denominator::TokenMean, Denominator::SequenceMean] {
        required(&losses(&CrossEntropy { denominator }));
        required(&losses(&Clipped { denominator, ..Clipped::default() }));
        for kl_estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            required(&losses(&Clipped { denominator, kl_coefficient: 0.3, kl_estimator, ..Clipped::default() }));
        }
    }
}

#[test]
fn every_broken_engine_is_caught_by_the_case_of_its_defect() {
    let good = backend(2);
    for &defect in EngineDefect::ALL {
        let report = rollout_engine_group(&with_broken_engine(&good, defect), defect.caught_by());
        assert_caught(&report, defect.caught_by(), &format!("{defect:?}"));
    }
}

#[test]
fn every_broken_trainer_is_caught_by_the_case_of_its_defect() {
    let (good, scratch) = (backend(2), tempfile::tempdir().unwrap());
    for &defect in TrainerDefect::ALL {
        let subject = TrainerSubject::new(with_broken_trainer(&good, defect), scratch.path());
        let report = trainer_group(&subject, defect.caught_by());
        assert_caught(&report, defect.caught_by(), &format!("{defect:?}"));
    }
}

/// Answers that do not fit the request are failures of the cases that look at them, wherever they do, and no panics.
#[test]
fn an_engine_whose_answers_do_not_fit_panics_in_no_case() {
    let good = backend(2);
    for defect in [EngineDefect::LosesPromptIds, EngineDefect::LosesLogprobs, EngineDefect::LosesCompletions] {
        let report = rollout_engines(&with_broken_engine(&good, defect));
        assert!(report.failed().count() > 10, "{defect:?}\n{report}");
        for case in report.failed() {
            let Outcome::Failed { why } = &case.outcome else { unreachable!() };
            assert!(!why.contains("panicked"), "{defect:?}: {}: {why}", case.name);
        }
    }
}

/// A backend that declares less than it does: what it does not declare it has to refuse, and does not.
fn modest(declared: &[FormatId]) -> Backend {
    let good = backend(2);
    let formats = good.capabilities.formats.iter().filter(|(format, _)| declared.contains(format)).cloned().collect();
    let capabilities = Capabilities { formats, ..good.capabilities.clone() };
    Backend { capabilities, ..good }
}

#[test]
fn what_is_not_declared_has_to_be_refused() {
    let (modest, scratch) = (modest(&[FormatId::mxfp8()]), tempfile::tempdir().unwrap());
    let engines = rollout_engine_group(&modest, "formats");
    let trainers = trainer_group(&TrainerSubject::new(modest, scratch.path()).without(Recipe::Mxfp8), "recipes");
    for (report, passed, failed) in [
        (&engines, ["formats/bf16", "formats/mxfp8"], ["formats/nvfp4", "formats/fp8-block"]),
        (&trainers, ["recipes/bf16", "recipes/mxfp8-dequantized"], ["recipes/mxfp8", "recipes/nvfp4-dequantized"]),
    ] {
        passed.iter().for_each(|name| assert_eq!(report.outcome(name), Some(&Outcome::Passed), "{report}"));
        for name in failed {
            assert!(matches!(report.outcome(name), Some(Outcome::Failed { .. })), "{name}\n{report}");
        }
        assert!(matches!(report.require(), Err(ConformanceError::Failed { .. })));
    }
}

/// A publication mode that is not declared has to be refused when an engine is made, with the typed error.
#[test]
fn a_publication_mode_that_is_not_declared_has_to_be_refused() {
    let good = backend(2);
    let capabilities = Capabilities { publication: vec![PublicationMode::Finish], ..good.capabilities.clone() };
    let declared = capabilities.clone();
    let make = Arc::clone(&good.engine);
    let honest = Backend {
        capabilities: capabilities.clone(),
        engine: Arc::new(move |options| {
            declared.check_publication("modest", options.publication)?;
            make(options)
        }),
        ..good.clone()
    };
    let report = rollout_engine_group(&honest, "swaps");
    required(&report);
    let greedy = rollout_engine_group(&Backend { capabilities, ..good }, "swaps");
    assert_eq!(report.outcome("swaps/finish"), Some(&Outcome::Passed), "{report}");
    for case in ["swaps/continue", "swaps/abort-and-resubmit"] {
        assert!(matches!(report.outcome(case), Some(Outcome::Unsupported { .. })), "{report}");
        assert!(matches!(greedy.outcome(case), Some(Outcome::Failed { .. })), "{greedy}");
    }
}

/// A backend that declares no batch invariance is not asked for it.
#[test]
fn a_backend_may_declare_that_results_depend_on_the_batch() {
    let good = backend(2);
    let capabilities = Capabilities { batch_invariant: false, ..good.capabilities.clone() };
    let report = rollout_engine_group(&Backend { capabilities, ..good }, "sampling");
    required(&report);
    for case in ["sampling/neighbours", "sampling/running", "sampling/threads", "sampling/requests"] {
        assert!(matches!(report.outcome(case), Some(Outcome::Unsupported { .. })), "{report}");
    }
}
