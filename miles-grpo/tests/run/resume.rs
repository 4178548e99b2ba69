//! Stopping and going on changes nothing.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use miles_core::plugin::{Schedule, ScheduleView, Scheduler, StepRecord};
use miles_grpo::checkpoint::ResumeError;
use miles_grpo::{Error, Interrupt};
use serde_json::{Map, Value, json};

use crate::fake::{Workspace, digest_of_policy, finish, metrics};

/// O19: a run stopped after any step and resumed has the rollouts, metrics, ledger and weights of a run without stop.
#[test]
fn o19_resume_after_every_step_equals_no_stop() {
    let workspace = Workspace::new();
    let whole = workspace.run("whole", &[]).unwrap();
    let sampled = std::mem::take(&mut *workspace.probe.sampled.lock().unwrap());
    let ledger = fs::read(workspace.path("whole/ledger.jsonl")).unwrap();
    let moved = |pair: &[StepRecord]| pair[0].values["policy_digest"] != pair[1].values["policy_digest"];
    assert!(metrics(&workspace.path("whole")).windows(2).all(moved), "every step has to learn something");
    for step in 1..6 {
        let out = format!("stopped-{step}");
        let stopped = workspace.run_until(&out, &[], step).unwrap();
        assert!(stopped.interrupted);
        assert_eq!(metrics(&workspace.path(&out)).len() as u64, step);
        assert!(!workspace.path(&out).join("policy").exists());
        let resumed = workspace.run(&out, &["run.existing=resume"]).unwrap();
        assert_eq!(resumed.summary, whole.summary, "stopped after step {step}");
        assert_eq!(metrics(&workspace.path(&out)), metrics(&workspace.path("whole")));
        assert_eq!(digest_of_policy(&workspace.path(&out)), digest_of_policy(&workspace.path("whole")));
        assert_eq!(fs::read(workspace.path(&out).join("ledger.jsonl")).unwrap(), ledger);
        assert_eq!(std::mem::take(&mut *workspace.probe.sampled.lock().unwrap()), sampled);
    }
}

#[test]
fn steps_after_the_checkpoint_are_forgotten_when_a_run_died() {
    let workspace = Workspace::new();
    let whole = workspace.run("whole", &[]).unwrap();
    // Killed during step 5: four steps recorded, a checkpoint after step 2 only.
    let saved = ["checkpoint.every=2", "checkpoint.at_end=false"];
    finish(workspace.builder("died", &[&saved[..], &["run.steps=3"]].concat())).unwrap();
    assert_eq!(metrics(&workspace.path("died")).len(), 3);
    let resumed = workspace.run("died", &[&saved[..], &["run.existing=resume"]].concat()).unwrap();
    assert_eq!(resumed.summary.policy, whole.summary.policy);
    assert_eq!(metrics(&workspace.path("died")), metrics(&workspace.path("whole")));
}

/// The versions that a dead run made after its checkpoint are on disk; they go, and are made again.
#[test]
fn a_run_with_its_versions_on_disk_goes_on_from_its_checkpoint() {
    let workspace = Workspace::new();
    let whole = workspace.run("whole", &[]).unwrap();
    let keys = ["checkpoint.every=2", "checkpoint.at_end=false", "store.kind=directory", "store.keep_last=3"];
    let keys = [&keys[..], &["store.verified=true", "store.bytes_per_second=1000000000"]].concat();
    finish(workspace.builder("died", &[&keys[..], &["run.steps=5"]].concat())).unwrap();
    let versions = || {
        let entries = fs::read_dir(workspace.path("died/versions")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(versions(), ["version-0000000003", "version-0000000004", "version-0000000005"]);
    let resumed = workspace.run("died", &[&keys[..], &["run.existing=resume"]].concat()).unwrap();
    assert_eq!(resumed.summary.policy, whole.summary.policy);
    assert_eq!(metrics(&workspace.path("died")), metrics(&workspace.path("whole")));
    let last = format!("version-{:010}", whole.summary.policy.version.0);
    assert_eq!((versions().len(), versions().last()), (3, Some(&last)));
}

#[test]
fn a_run_with_a_constant_rate_can_be_prolonged_and_only_the_newest_checkpoints_are_kept() {
    let workspace = Workspace::new();
    let whole = workspace.run("whole", &[]).unwrap();
    workspace.run("out", &["run.steps=4", "checkpoint.every=1", "checkpoint.keep_last=2"]).unwrap();
    let mut kept: Vec<String> = fs::read_dir(workspace.path("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, ["step-00000003", "step-00000004"]);
    let prolonged = workspace.run("out", &["run.existing=resume"]).unwrap();
    assert_eq!(prolonged.summary.policy, whole.summary.policy);
}

#[test]
fn a_config_that_changes_results_is_refused_with_every_such_key() {
    let workspace = Workspace::new();
    workspace.run_until("out", &[], 2).unwrap();
    let changed = ["run.existing=resume", "run.seed=12", "rollout.temperature=0.5", "run.threads=1"];
    let error = workspace.run("out", &changed).unwrap_err();
    let Error::Resume(ResumeError::ConfigChanged { differences, .. }) = &error else { panic!("{error}") };
    assert_eq!(differences, &["rollout.temperature: 1.0 -> 0.5", "run.seed: 11 -> 12"]);
}

#[test]
fn a_changed_model_is_noticed() {
    let workspace = Workspace::new();
    workspace.run_until("out", &[], 2).unwrap();
    let path = workspace.path("model").join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = workspace.run("out", &["run.existing=resume"]).unwrap_err();
    let changed = matches!(&error, Error::Resume(ResumeError::PolicyChanged { what: "reference policy", .. }));
    assert!(changed, "{error}");
}

#[test]
fn one_changed_byte_in_any_trainer_file_is_refused_by_name() {
    let workspace = Workspace::new();
    workspace.run_until("out", &[], 2).unwrap();
    let folder = workspace.path("out/checkpoints/step-00000002/trainer");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for path in files {
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = workspace.run("out", &["run.existing=resume"]).unwrap_err();
        assert!(
            matches!(&error, Error::Resume(ResumeError::Damaged { path: named, .. }) if *named == path),
            "{}: {error}",
            path.display()
        );
        fs::write(&path, whole).unwrap();
    }
    assert!(workspace.run("out", &["run.existing=resume"]).is_ok());
}

#[test]
fn a_trainer_file_without_a_digest_is_refused_by_name() {
    let workspace = Workspace::new();
    workspace.run_until("out", &[], 2).unwrap();
    let step = workspace.path("out/checkpoints/step-00000002");
    let list = step.join("trainer.json");
    let whole = fs::read(&list).unwrap();
    let refused = |path: &Path| {
        let error = workspace.run("out", &["run.existing=resume"]).unwrap_err();
        let named = matches!(&error, Error::Resume(ResumeError::Unlisted { path: named, .. }) if named == path);
        assert!(named, "{}: {error}", path.display());
    };
    let saved = fs::read_dir(step.join("trainer")).unwrap().next().unwrap().unwrap().path();
    fs::write(&list, "{}").unwrap();
    refused(&saved);
    fs::write(&list, &whole).unwrap();
    let added = step.join("trainer/added");
    fs::create_dir(&added).unwrap();
    refused(&added);
    fs::remove_dir(&added).unwrap();
    // Digests of files elsewhere: reading one may have no end.
    for outside in ["/dev/zero", "../loop.json", "sub/../masters", ""] {
        let mut digests: Map<String, Value> = serde_json::from_slice(&whole).unwrap();
        let any = digests.values().next().unwrap().clone();
        digests.insert(outside.to_owned(), any);
        fs::write(&list, Value::Object(digests).to_string()).unwrap();
        refused(&step.join("trainer").join(outside));
    }
    fs::write(&list, &whole).unwrap();
    assert!(workspace.run("out", &["run.existing=resume"]).is_ok());
}

#[test]
fn a_full_disk_is_an_error_and_leaves_the_older_checkpoint_whole() {
    let workspace = Workspace::new();
    workspace.run_until("out", &[], 2).unwrap();
    let folder = workspace.path("out/checkpoints");
    let listing = || -> Vec<String> {
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    workspace.probe.disk_is_full.store(true, Ordering::Relaxed);
    let error = workspace.run_until("out", &["run.existing=resume"], 4).unwrap_err().to_string();
    assert!(error.contains("step-00000004"), "{error}");
    assert_eq!(listing(), ["step-00000002"]);
    workspace.probe.disk_is_full.store(false, Ordering::Relaxed);
    let whole = workspace.run("whole", &[]).unwrap();
    let resumed = workspace.run("out", &["run.existing=resume"]).unwrap();
    assert_eq!(resumed.summary.policy, whole.summary.policy);
}

/// Remembers what it was told: each step takes the prompts that earned least so far.
#[derive(Default)]
struct Hardest {
    seen: Vec<(usize, f32)>,
}

impl Scheduler for Hardest {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        let earned = |prompt: usize| self.seen.iter().filter(|(seen, _)| *seen == prompt).map(|(_, r)| r).sum::<f32>();
        let mut prompts: Vec<usize> = (0..view.prompts).collect();
        prompts.sort_by(|&a, &b| earned(a).total_cmp(&earned(b)));
        prompts.truncate(view.prompts_per_step);
        Schedule::Step { prompts }
    }

    fn observe(&mut self, _step: u64, rewards: &[(usize, f32)]) {
        self.seen.extend_from_slice(rewards);
    }

    fn state(&self) -> Value {
        json!(self.seen)
    }

    fn restore(&mut self, state: &Value) {
        self.seen = serde_json::from_value(state.clone()).unwrap();
    }
}

#[test]
fn o19_what_a_scheduler_remembers_is_saved_too() {
    let workspace = Workspace::new();
    let whole = finish(workspace.builder("whole", &[]).scheduler(Hardest::default())).unwrap();
    let interrupt = Interrupt::new();
    interrupt.request();
    let stopped = workspace.builder("out", &[]).scheduler(Hardest::default()).interrupt(interrupt);
    assert!(finish(stopped).unwrap().interrupted);
    let resumed = workspace.builder("out", &["run.existing=resume"]).scheduler(Hardest::default());
    let resumed = finish(resumed).unwrap();
    assert_eq!(resumed.summary.policy, whole.summary.policy);
    assert_eq!(metrics(&workspace.path("out")), metrics(&workspace.path("whole")));
}
