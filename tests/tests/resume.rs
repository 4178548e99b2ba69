//! Stopping and going on changes nothing: not the weights, not the metrics, not the ledger.

use std::collections::BTreeMap;

use miles_core::precision::Recipe;

use crate::support::files::tree;
use crate::support::workspace::{Workspace, same_metrics};

const STEPS: u64 = 6;

/// Everything that a finished run leaves and that may not depend on stops: the policy, the ledger, the trainer's state.
fn left(workspace: &Workspace, out: &str) -> BTreeMap<String, Vec<u8>> {
    let last = format!("checkpoints/step-{STEPS:08}/trainer/");
    let kept = |name: &str| name.starts_with("policy/") || name == "ledger.jsonl" || name.starts_with(&last);
    let files: BTreeMap<_, _> = tree(&workspace.path(out)).into_iter().filter(|(name, _)| kept(name)).collect();
    for needed in ["policy/model.safetensors", "ledger.jsonl", &format!("{last}masters.safetensors")] {
        assert!(files.contains_key(needed), "{out}: no {needed} among {:?}", files.keys());
    }
    files
}

fn assert_same_run(workspace: &Workspace, out: &str, whole: &str, what: &str) {
    same_metrics(&workspace.metrics(out), &workspace.metrics(whole), what);
    let (found, expected) = (left(workspace, out), left(workspace, whole));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in &expected {
        assert!(found[name] == *bytes, "{what}: {name} differs");
    }
}

/// O19: a run that was stopped after step 3 and resumed equals one without stop, in every recipe.
#[test]
fn o19_three_steps_and_three_more_equal_six() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in Recipe::ALL {
        let settings = [format!("precision.recipe={recipe}"), format!("run.steps={STEPS}")];
        let [precision, steps] = [settings[0].as_str(), settings[1].as_str()];
        let (whole, parts) = (format!("{recipe}-whole"), format!("{recipe}-parts"));
        let expected = workspace.run(&whole, &[precision, steps]).unwrap();
        let stopped = workspace.run_until(&parts, &[precision, steps], 3).unwrap();
        assert!(stopped.interrupted, "{recipe}");
        assert_eq!(workspace.metrics(&parts).len(), 3, "{recipe}");
        let resumed = workspace.run(&parts, &[precision, steps, "run.existing=resume"]).unwrap();
        assert_eq!(resumed.summary, expected.summary, "{recipe}");
        assert_same_run(&workspace, &parts, &whole, recipe.name());
    }
}

/// Stopped after any step, and stopped after every step.
#[test]
fn o19_a_stop_after_any_step_changes_nothing() {
    let workspace = Workspace::new("deepseek-v3");
    let settings = ["precision.recipe=nvfp4-dequantized", "run.steps=6", "checkpoint.keep_last=1", "eval.every=2"];
    let eval = format!("data.eval={}", workspace.path("eval.jsonl").display());
    let settings = [&settings[..], &[eval.as_str()]].concat();
    let expected = workspace.run("whole", &settings).unwrap();
    let resume = [&settings[..], &["run.existing=resume"]].concat();
    for step in 1..STEPS {
        let out = format!("stopped-{step}");
        assert!(workspace.run_until(&out, &settings, step).unwrap().interrupted);
        assert_eq!(workspace.run(&out, &resume).unwrap().summary, expected.summary, "stopped after step {step}");
        assert_same_run(&workspace, &out, "whole", &format!("stopped after step {step}"));
        assert!(workspace.run_until("every", &resume, step).unwrap().interrupted);
    }
    assert_eq!(workspace.run("every", &resume).unwrap().summary, expected.summary, "stopped after every step");
    assert_same_run(&workspace, "every", "whole", "stopped after every step");
}

/// One seed gives one policy, on any number of threads, with a stop on another number of threads between; another seed
/// gives another policy.
#[test]
fn one_seed_gives_one_policy_on_any_threads() {
    let workspace = Workspace::new("qwen3-moe");
    let settings = ["precision.recipe=mxfp8", "run.steps=6"];
    let with = |more: &[&'static str]| [&settings[..], more].concat();
    let expected = workspace.run("one", &with(&["run.threads=1"])).unwrap();
    for (out, threads) in [("two", "run.threads=2"), ("three", "run.threads=3")] {
        assert_eq!(workspace.run(out, &with(&[threads])).unwrap().summary, expected.summary, "{out}");
        assert_same_run(&workspace, out, "one", out);
    }
    workspace.run_until("mixed", &with(&["run.threads=3"]), 2).unwrap();
    workspace.run("mixed", &with(&["run.threads=1", "run.existing=resume"])).unwrap();
    assert_same_run(&workspace, "mixed", "one", "stopped on three threads, resumed on one");
    let other = workspace.run("other", &with(&["run.seed=12"])).unwrap();
    assert_ne!(other.summary.policy, expected.summary.policy);
}
