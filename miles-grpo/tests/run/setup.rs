//! What is refused before the first step, and that nothing is written then.

use std::fs;

use miles_grpo::data::DataError;
use miles_grpo::{Error, OutputError};

use crate::fake::Workspace;

#[test]
fn a_directory_that_holds_a_run_is_refused_and_left_alone() {
    let workspace = Workspace::new();
    let first = workspace.run("out", &["run.steps=2"]).unwrap();
    let before = fs::read(workspace.path("out/metrics.jsonl")).unwrap();
    let error = workspace.run("out", &["run.steps=2"]).unwrap_err();
    assert!(matches!(&error, Error::Output(OutputError::Occupied { .. })), "{error}");
    assert_eq!(fs::read(workspace.path("out/metrics.jsonl")).unwrap(), before);
    let again = workspace.run("out", &["run.steps=2", "run.existing=overwrite"]).unwrap();
    assert_eq!(again.summary, first.summary);
}

#[test]
fn resuming_into_an_empty_directory_starts_from_the_beginning() {
    let workspace = Workspace::new();
    let fresh = workspace.run("a", &["run.existing=resume"]).unwrap();
    assert_eq!(fresh.summary, workspace.run("b", &[]).unwrap().summary);
}

#[test]
fn resuming_a_run_without_checkpoint_is_an_error() {
    let workspace = Workspace::new();
    workspace.run("out", &["run.steps=1", "checkpoint.at_end=false"]).unwrap();
    let error = workspace.run("out", &["run.steps=1", "run.existing=resume"]).unwrap_err().to_string();
    assert!(error.contains("no checkpoint"), "{error}");
}

#[test]
fn bad_data_is_refused_before_anything_is_written() {
    let workspace = Workspace::new();
    type Expected = fn(&Error) -> bool;
    let cases: [(&str, Expected); 4] = [
        ("", |error| matches!(error, Error::Data(DataError::Empty { .. }))),
        ("{\"prompt\":\"1\"}\n{oops}\n", |error| {
            matches!(error, Error::Data(DataError::MalformedLine { line: 2, .. }))
        }),
        ("{\"prompt\":\"1+1+1+1+1+1+1+1\"}\n", |error| {
            matches!(error, Error::Data(DataError::PromptTooLong { line: 1, tokens: 16, room_tokens: 13, .. }))
        }),
        ("{\"prompt\":\"1\"}\n", |error| error.to_string().contains("rollout.prompts_per_step = 4")),
    ];
    for (content, expected) in cases {
        fs::write(workspace.path("train.jsonl"), content).unwrap();
        let error = workspace.run("out", &[]).unwrap_err();
        assert!(expected(&error), "{content:?}: {error}");
        assert!(!workspace.path("out").exists(), "{content:?}");
    }
}

#[test]
fn what_the_backend_lacks_is_refused_by_name() {
    let workspace = Workspace::new();
    // A rule, because the recipes keep the only layer of this model in high precision.
    let rule = "precision.rules=[{ roles = [\"mlp-gate\", \"mlp-up\"], format = \"fp8-block\" }]";
    for (overrides, word) in
        [(rule, "fp8-block"), ("precision.activations=f32", "F32"), ("rollout.publication=continue", "`continue`")]
    {
        let error = workspace.run("out", &[overrides]).unwrap_err();
        let unsupported =
            matches!(&error, Error::Core(miles_core::Error::Unsupported { backend, .. }) if backend == "fake");
        assert!(unsupported && error.to_string().contains(word), "{error}");
        assert!(!workspace.path("out").exists());
    }
}

#[test]
fn a_recipe_that_quantizes_nothing_here_says_so_in_the_report() {
    let workspace = Workspace::new();
    workspace.run("out", &["run.steps=1", "precision.recipe=mxfp8"]).unwrap();
    let report = fs::read_to_string(workspace.path("out/report.html")).unwrap();
    assert!(report.contains("nothing is mxfp8"));
}
