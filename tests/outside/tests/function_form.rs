//! The suite in its function form: reports as values and as JSON, and what no report may pass with.

use std::sync::Arc;

use miles_core::conformance::{
    ConformanceError, Failure, Outcome, Report, Suite, formats, quantizer_with, reward_group, rewards, schedulers,
};
use miles_core::conformance::{RewardSample, RewardSubject};
use miles_core::format::FormatRule;
use miles_core::plugin::{Schedule, ScheduleView, Scheduler};
use miles_core::registry;
use miles_outside::{InOrder, Int8Blocks, Shortness, Wrapper};

fn shortness() -> RewardSubject {
    RewardSubject {
        name: "outside-shortness".to_owned(),
        reward: Arc::new(Shortness),
        known: vec![(RewardSample::new("1+1=", "two", None), 0.25)],
        refused: Vec::new(),
    }
}

#[test]
fn reports_pass_and_become_json() {
    let rule = Int8Blocks::new().unwrap();
    for report in [formats(&rule), rewards(&shortness()), schedulers(&|| Box::new(InOrder))] {
        report.require().unwrap_or_else(|error| panic!("{error}"));
        let json = report.to_json();
        assert_eq!(json["subject"], report.subject.as_str());
        let cases = json["cases"].as_array().unwrap();
        assert_eq!(cases.len(), report.cases.len());
        assert!(cases.iter().filter(|case| case["outcome"] == "passed").count() == report.passed(), "{json}");
        assert!(json.to_string().contains("\"outcome\":\"passed\""), "{json}");
    }
}

/// A quantizer around the library's rules, held to them and to a rule of its own.
#[test]
fn a_quantizer_of_ones_own_holds_the_contract_in_every_format() {
    let report = quantizer_with(&Wrapper::new().unwrap(), &[&Int8Blocks::new().unwrap()]);
    report.require().unwrap_or_else(|error| panic!("{error}"));
    for case in ["declared", "shapes", "partition", "threads", "extremes", "publication"] {
        for format in ["int8-blocks", "nvfp4", "fp8-block/deepgemm"] {
            assert_eq!(report.outcome(&format!("{case}/{format}")), Some(&Outcome::Passed), "{report}");
        }
    }
}

#[test]
fn a_reward_that_judges_everything_says_so() {
    let report = reward_group(&shortness(), "judging");
    assert!(matches!(report.outcome("judging/refused"), Some(Outcome::Unsupported { .. })), "{report}");
    report.require().unwrap();
}

#[test]
fn a_report_in_which_nothing_ran_fails() {
    let empty = [Report::new("nothing"), Suite::new("no case").finish(), reward_group(&shortness(), "no-such-group")];
    for report in empty {
        assert!(report.cases.is_empty());
        let error = report.require().unwrap_err();
        assert!(matches!(error, ConformanceError::NothingRan { .. }), "{error}");
    }
}

/// Names the first prompt twice in every step.
struct Twice;

impl Scheduler for Twice {
    fn next(&mut self, _view: &ScheduleView) -> Schedule {
        Schedule::Step { prompts: vec![0, 0] }
    }
}

#[test]
fn a_broken_plug_in_fails_by_the_name_of_the_case() {
    let report = schedulers(&|| Box::new(Twice));
    match report.require() {
        Err(ConformanceError::Failed { failed, .. }) => {
            assert!(failed.contains(&"steps/prompts".to_owned()), "{failed:?}")
        }
        other => panic!("{other:?}"),
    }
    let json = report.to_json();
    let case = json["cases"].as_array().unwrap().iter().find(|case| case["name"] == "steps/prompts").unwrap();
    assert_eq!(case["outcome"], "failed");
    assert!(case["why"].as_str().unwrap().contains("step 0"), "{case}");
}

#[test]
fn cases_of_ones_own_stand_beside_those_of_the_suite() {
    let mut suite = Suite::new("int8-blocks");
    suite.case("size/bytes", || {
        let rule = Int8Blocks::new()?;
        let layout = rule.layout(3, 33, &miles_core::format::QuantizeSpec::weight(rule.id()))?;
        Failure::unless((layout.codes_bytes, layout.scale_cols) == (99, 3), || format!("{layout:?}"))
    });
    suite.finish().require().unwrap();
}

#[test]
fn plug_ins_are_found_by_name() {
    let options = miles_core::registry::reward_names();
    assert!(options.contains(&"outside-shortness"), "{options:?}");
    let format = registry::format("int8-blocks", &Default::default()).unwrap();
    assert_eq!(format.id(), Int8Blocks::new().unwrap().id());
    assert!(registry::scheduler_names().contains(&"outside-in-order"));
}
