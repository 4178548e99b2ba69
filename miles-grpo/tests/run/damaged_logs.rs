//! A run goes on from logs that are those of the run, and from no others.

use std::fs;

use miles_core::policy::{LedgerError, PolicyError};
use miles_grpo::checkpoint::ResumeError;
use miles_grpo::run_audit::RunFinding;
use miles_grpo::{Error, OutputError};

use crate::fake::{Workspace, metrics};

/// Damages a log of a run that was stopped after three steps and tries to resume it. The error comes before the first
/// step, leaves both logs as they are, and has these words.
fn refused(workspace: &Workspace, log: &str, change: &dyn Fn(&mut Vec<String>), words: &[&str]) -> Error {
    refused_with(workspace, &[], log, change, words)
}

fn refused_with(
    workspace: &Workspace,
    settings: &[&str],
    log: &str,
    change: &dyn Fn(&mut Vec<String>),
    words: &[&str],
) -> Error {
    let paths = ["ledger.jsonl", "metrics.jsonl", "run.toml"].map(|name| workspace.path("out").join(name));
    let read = || paths.each_ref().map(|path| fs::read(path).unwrap());
    let whole = read();
    let path = workspace.path("out").join(log);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    change(&mut lines);
    assert_ne!(lines.concat(), text, "nothing was changed");
    fs::write(&path, lines.concat()).unwrap();
    let damaged = read();
    workspace.probe.sampled.lock().unwrap().clear();
    let error = workspace.run("out", &[settings, &["run.existing=resume"]].concat()).unwrap_err();
    let said = error.to_string();
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    assert!(workspace.probe.sampled.lock().unwrap().is_empty(), "a step was begun: {said}");
    assert_eq!(read(), damaged, "something was written: {said}");
    paths.iter().zip(whole).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    error
}

fn stopped() -> Workspace {
    let workspace = Workspace::new();
    workspace.run_until("out", &[], 3).unwrap();
    workspace
}

#[test]
fn a_damaged_ledger_is_refused_before_the_first_step_and_its_line_named() {
    let workspace = stopped();
    let tensors = fs::read_to_string(workspace.path("out/ledger.jsonl")).unwrap().lines().count() / 4;
    type Change<'a> = &'a dyn Fn(&mut Vec<String>);
    let cases: [(Change<'_>, &[&str]); 12] = [
        (&|lines| lines[6] = "no event\n".to_owned(), &["ledger.jsonl:7: "]),
        (&|lines| lines[6] = "\n".to_owned(), &["ledger.jsonl:7: "]),
        (&|lines| drop(lines.pop()), &["ledger.jsonl", "version 3 has no line of tensor"]),
        (&|lines| drop(lines.remove(6)), &["ledger.jsonl", "version 0 has no line of tensor"]),
        (&|lines| lines.insert(6, lines[5].clone()), &["ledger.jsonl:7: ", "says again"]),
        (&|lines| lines.truncate(3 * tensors), &["ledger.jsonl", "no line of version 3"]),
        (&|lines| drop(lines.drain(tensors..2 * tensors)), &["ledger.jsonl", "version 2 follows version 0"]),
        (&|lines| lines.rotate_left(tensors), &["ledger.jsonl:", "after version 3"]),
        (&|lines| lines[6] = lines[6].replace("\"step\":0", "\"step\":7"), &["ledger.jsonl:7: ", "`step` is 7"]),
        (&|lines| lines[6] = lines[6].replace("\"bf16\"", "\"f32\""), &["ledger.jsonl:7: ", "precision map"]),
        (&|lines| lines[6] = lines[6].replace('\n', "\r\n"), &["ledger.jsonl:7: "]),
        (&|lines| lines.clear(), &["ledger.jsonl"]),
    ];
    for (change, words) in cases {
        refused(&workspace, "ledger.jsonl", change, words);
    }
    let error =
        refused(&workspace, "ledger.jsonl", &|lines| assert!(lines.last_mut().unwrap().pop().is_some()), &["torn"]);
    let Error::Core(miles_core::Error::Policy(PolicyError::Ledger(torn))) = &error else { panic!("{error}") };
    assert!(matches!(**torn, LedgerError::Torn { line, .. } if line == 4 * tensors), "{error}");

    // The same digest twice: no line contradicts another, but the version is not the one that the step made.
    let digests = |lines: &mut Vec<String>| {
        let digest = |line: &str| line.rsplit('"').nth(1).unwrap().to_owned();
        let (old, new) = (digest(&lines[tensors]), digest(&lines[0]));
        assert_ne!(old, new, "the embedding is trained");
        lines[tensors] = lines[tensors].replace(&old, &new);
    };
    let error = refused(&workspace, "ledger.jsonl", &digests, &["ledger.jsonl:", "metrics.jsonl:1"]);
    let Error::Resume(ResumeError::Logs { findings }) = &error else { panic!("{error}") };
    let is_policy = |finding: &RunFinding| matches!(finding, RunFinding::Policy { within: [first, _], .. } if first.line == tensors + 1);
    assert!(findings.iter().any(is_policy), "{error}");

    let whole = workspace.run("whole", &[]).unwrap();
    assert_eq!(workspace.run("out", &["run.existing=resume"]).unwrap().summary, whole.summary);
}

#[test]
fn damaged_metrics_are_refused_before_the_first_step_and_their_line_named() {
    let workspace = stopped();
    type Change<'a> = &'a dyn Fn(&mut Vec<String>);
    let cases: [(Change<'_>, &[&str]); 9] = [
        (&|lines| lines[1] = "no record\n".to_owned(), &["metrics.jsonl:2: "]),
        (&|lines| lines[1] = lines[1].replacen('{', "{\"x\":", 1), &["metrics.jsonl:2: "]),
        (&|lines| drop(lines.remove(1)), &["metrics.jsonl:2: ", "step 2 instead of 1"]),
        (&|lines| drop(lines.pop()), &["metrics.jsonl", "saved after 3 steps"]),
        (&|lines| lines.insert(1, lines[0].clone()), &["metrics.jsonl:2: ", "step 0 instead of 1"]),
        (&|lines| lines.swap(1, 2), &["metrics.jsonl:2: ", "step 2 instead of 1"]),
        (
            &|lines| lines[1] = lines[1].replace("policy_digest", "policy_digesT"),
            &["metrics.jsonl:2: ", "policy_digest"],
        ),
        (
            &|lines| lines[1] = lines[1].replace("\"policy_version\":2", "\"policy_version\":1"),
            &["metrics.jsonl:2", "version 1"],
        ),
        (&|lines| lines.clear(), &["metrics.jsonl"]),
    ];
    for (change, words) in cases {
        refused(&workspace, "metrics.jsonl", change, words);
    }
    let torn = refused(&workspace, "metrics.jsonl", &|lines| assert!(lines.last_mut().unwrap().pop().is_some()), &[]);
    assert!(matches!(&torn, Error::Output(OutputError::TornMetrics { line: 3, .. })), "{torn}");

    // A value that follows from nothing, in the same and in another length, and line ends that mean the same.
    let loss = |lines: &mut Vec<String>, digits: &str| lines[0] = lines[0].replacen("\"train/loss\":", digits, 1);
    let cases: [Change<'_>; 3] =
        [&|lines| loss(lines, "\"train/losS\":"), &|lines| loss(lines, "\"train/loss\": "), &|lines| {
            lines.iter_mut().for_each(|line| *line = line.replace('\n', "\r\n"))
        }];
    for change in cases {
        let error = refused(&workspace, "metrics.jsonl", change, &["metrics.jsonl:1-", "loop.json"]);
        let Error::Resume(ResumeError::Logs { findings }) = &error else { panic!("{error}") };
        assert!(findings.iter().any(|finding| matches!(finding, RunFinding::Changed { .. })), "{error}");
    }
}

/// What a run wrote after its checkpoint is cut, whatever it is: a run that was killed may have torn it.
#[test]
fn lines_after_the_checkpoint_are_not_looked_at() {
    let workspace = stopped();
    let whole = workspace.run("whole", &[]).unwrap();
    for log in ["ledger.jsonl", "metrics.jsonl"] {
        let path = workspace.path("out").join(log);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "{\"run\":\"to").unwrap();
    }
    assert_eq!(workspace.run("out", &["run.existing=resume"]).unwrap().summary, whole.summary);
    assert_eq!(metrics(&workspace.path("out")), metrics(&workspace.path("whole")));
}

/// Several versions per step, of which the metrics name the last.
#[test]
fn a_run_with_versions_between_steps_goes_on_too() {
    let workspace = Workspace::new();
    let settings = ["train.mini_batches=2", "run.steps=3"];
    let whole = workspace.run("whole", &settings).unwrap();
    workspace.run_until("out", &settings, 2).unwrap();
    let between = |lines: &mut Vec<String>| {
        let versions = lines.len() / 5;
        drop(lines.drain(versions..2 * versions));
    };
    refused_with(&workspace, &settings, "ledger.jsonl", &between, &["ledger.jsonl", "version 2 follows version 0"]);
    let resumed = workspace.run("out", &[&settings[..], &["run.existing=resume"]].concat()).unwrap();
    assert_eq!(resumed.summary, whole.summary);
}
