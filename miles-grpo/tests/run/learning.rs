//! A whole run: what it leaves and that it learns.

use std::fs;

use miles_core::checkpoint::Checkpoint;

use crate::fake::{Workspace, metrics};

#[test]
fn a_run_learns_and_leaves_everything_it_promises() {
    let workspace = Workspace::new();
    let outcome = workspace.run("out", &["run.steps=30"]).unwrap();
    let summary = &outcome.summary;
    assert!(!outcome.interrupted);
    assert!(summary.reward_first < 0.4 && summary.reward_last > 0.8, "{summary}");
    assert!(summary.held_out_last.unwrap() > summary.held_out_first.unwrap(), "{summary}");
    assert_eq!((summary.mismatch_max, summary.versions), (0.0, 31));

    let out = workspace.path("out");
    let ledger = fs::read_to_string(out.join("ledger.jsonl")).unwrap();
    let checkpoint = Checkpoint::open(&out.join("policy")).unwrap();
    assert_eq!(ledger.lines().count(), 31 * checkpoint.network().parameters.len() + 1, "the last line is the export's");
    assert!(out.join("policy/tokenizer.json").exists());
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("fake on nothing") && report.contains("Precision map"));
    assert!(fs::read_to_string(out.join("run.toml")).unwrap().contains("learning_rate = 2.0"));
}

#[test]
fn every_step_has_every_promised_metric() {
    let workspace = Workspace::new();
    workspace.run("out", &[]).unwrap();
    let text = fs::read_to_string(workspace.path("out").join("metrics.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 6);
    for (index, line) in text.lines().enumerate() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["step"], index);
        for key in [
            "rollout/reward_mean",
            "rollout/reward_std",
            "rollout/response_tokens_mean",
            "rollout/truncated_fraction",
            "rollout/recomputed_tokens",
            "rollout/aborted_completions",
            "rollout/aborted_tokens",
            "train/loss",
            "train/kl_ref",
            "train/mismatch_max_abs",
            "train/mismatch_k3",
            "train/clip_fraction",
            "train/entropy",
            "train/grad_norm",
            "train/grad_norm/embedding",
            "train/grad_norm/head",
            "train/zero_std_groups",
            "train/learning_rate",
            "reward/errors",
            "perf/rollout_tokens_per_s",
            "perf/seconds_rollout",
            "perf/seconds_reward",
            "perf/seconds_train",
            "perf/seconds_quantize",
            "perf/seconds_publish",
            "policy_version",
        ] {
            assert!(record[key].is_number(), "step {index}: {key} is {}", record[key]);
        }
        assert_eq!(record["policy_version"], index + 1);
        assert_eq!(record["policy_digest"].as_str().unwrap().len(), 64);
        assert_eq!(record["eval/accuracy"].is_number(), index % 2 == 1, "step {index}");
        assert_eq!(record["eval/accuracy_before"].is_number(), index == 0, "step {index}");
    }
    // The first step's policy is the reference itself; later ones have moved away from it.
    let records = metrics(&workspace.path("out"));
    assert_eq!(records[0].number("train/kl_ref"), Some(0.0));
    assert!(records[5].number("train/kl_ref").unwrap() > 0.0);
}

#[test]
fn one_seed_gives_one_run_and_another_seed_another() {
    let workspace = Workspace::new();
    let first = workspace.run("a", &[]).unwrap();
    let again = workspace.run("b", &["rollout.max_running=1", "run.threads=1"]).unwrap();
    let other = workspace.run("c", &["run.seed=12"]).unwrap();
    assert_eq!(first.summary.policy, again.summary.policy);
    assert_eq!(metrics(&workspace.path("a")), metrics(&workspace.path("b")));
    assert_ne!(first.summary.policy, other.summary.policy);
}

#[test]
fn mini_batches_make_a_version_each_and_measure_the_mismatch_before_them() {
    let workspace = Workspace::new();
    let outcome = workspace.run("out", &["train.mini_batches=2", "run.steps=3", "train.learning_rate=4.0"]).unwrap();
    assert_eq!((outcome.summary.versions, outcome.summary.mismatch_max), (7, 0.0));
    let versions: Vec<f64> =
        metrics(&workspace.path("out")).iter().map(|record| record.number("policy_version").unwrap()).collect();
    assert_eq!(versions, [2.0, 4.0, 6.0]);
    assert_eq!(workspace.probe.trained.lock().unwrap().len(), 3 * 4 * 8);
}

#[test]
fn a_trainer_that_computes_something_else_is_seen_in_the_mismatch() {
    let workspace = Workspace::new();
    workspace.probe.trainer_is_off.store(true, std::sync::atomic::Ordering::Relaxed);
    let outcome = workspace.run("out", &["run.steps=2"]).unwrap();
    assert!((outcome.summary.mismatch_max - 1e-3).abs() < 1e-5, "{}", outcome.summary);
}
