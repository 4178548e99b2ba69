//! How a run ends.

use std::fs;

use async_trait::async_trait;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_grpo::{Error, Interrupt};

use crate::fake::{Workspace, finish, metrics};

#[test]
fn an_interrupted_run_finishes_its_step_saves_and_reports() {
    let workspace = Workspace::new();
    let interrupt = Interrupt::new();
    interrupt.request();
    let outcome = finish(workspace.builder("out", &["checkpoint.at_end=false"]).interrupt(interrupt)).unwrap();
    assert!(outcome.interrupted);
    let out = workspace.path("out");
    assert_eq!(metrics(&out).len(), 1);
    assert!(out.join("checkpoints/step-00000001/loop.json").exists());
    assert!(out.join("report.html").exists() && !out.join("policy").exists());
}

#[test]
fn an_interruption_in_the_last_step_is_a_complete_run() {
    let workspace = Workspace::new();
    let outcome = workspace.run_until("out", &[], 6).unwrap();
    assert!(!outcome.interrupted && workspace.path("out/policy").exists());
}

/// Cannot judge completions that start with an even digit.
struct Picky;

#[async_trait]
impl Reward for Picky {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let first = input.completion.bytes().next().unwrap_or(b'0');
        assert!(first % 2 == 1, "even");
        Ok(f32::from(u8::from(input.completion == "7")))
    }
}

/// O20, through the whole loop: errors are counted under each policy, and under `fail` they end the run.
#[test]
fn o20_reward_errors_follow_the_policy_of_the_config() {
    let workspace = Workspace::new();
    for on_error in ["drop", "-1.0"] {
        let out = format!("out{on_error}");
        let setting = format!("reward.on_error={on_error}");
        finish(workspace.builder(&out, &[&setting, "run.steps=2"]).reward(Picky)).unwrap();
        let records = metrics(&workspace.path(&out));
        assert!(records[0].number("reward/errors").unwrap() > 0.0);
        assert_eq!(records[0].number("rollout/reward_mean").unwrap() < 0.0, on_error == "-1.0");
    }
    let error = finish(workspace.builder("out", &["reward.on_error=fail"]).reward(Picky)).unwrap_err();
    assert!(matches!(&error, Error::Stage(_)) && error.to_string().contains("even"), "{error}");
    assert!(!fs::exists(workspace.path("out/policy")).unwrap());
}
