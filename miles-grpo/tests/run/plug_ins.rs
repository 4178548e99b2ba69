//! A user's own parts: as values, and by name from a config.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use miles_core::plugin::{
    Advantage, BatchTotals, Event, Loss, LossInput, LossTerms, Observer, Reward, RewardError, RewardInput, Schedule,
    ScheduleView, Scheduler,
};
use miles_core::policy::{MemoryStore, PolicyError, PolicyStamp, PolicyStore, PolicyVersion, Snapshot};
use miles_core::{register_backend, register_reward, register_scheduler};
use miles_grpo::stages::StageError;
use miles_grpo::{Error, Plan, Run};

use crate::fake::{Probe, Workspace, backend, finish, metrics};

/// One point per even digit.
struct Evens;

#[async_trait]
impl Reward for Evens {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        Ok(input.completion.bytes().filter(|byte| byte.is_ascii_digit() && byte % 2 == 0).count() as f32)
    }
}

register_reward!("test-evens", |_options| Ok(Box::new(Evens)));

/// The first prompts, always.
struct Same;

impl Scheduler for Same {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        Schedule::Step { prompts: (0..view.prompts_per_step).collect() }
    }
}

register_scheduler!("test-same", |_options| Ok(Box::new(Same)));
register_backend!("fake", |_options| Ok(backend(&Probe::default())));

#[test]
fn a_reward_and_a_scheduler_by_value_and_by_name_are_the_same_run() {
    let workspace = Workspace::new();
    let by_value = workspace.builder("value", &[]).reward(Evens).scheduler(Same);
    let by_value = finish(by_value).unwrap();
    let by_name = workspace.run("name", &["reward.name=test-evens", "scheduler.name=test-same"]).unwrap();
    assert_eq!(by_value.summary, by_name.summary);
    assert_eq!(metrics(&workspace.path("value")), metrics(&workspace.path("name")));
    let default = workspace.run("default", &[]).unwrap();
    assert_ne!(default.summary.policy, by_name.summary.policy);
}

#[test]
fn a_backend_is_found_by_name_too() {
    let workspace = Workspace::new();
    let plan = Plan::new(&workspace.config("name", &[])).unwrap();
    let by_name = finish(Run::builder(plan)).unwrap();
    assert_eq!(by_name.summary, workspace.run("value", &[]).unwrap().summary);
    let plan = Plan::new(&workspace.config("none", &["run.backend=fakes"])).unwrap();
    let error = finish(Run::builder(plan)).unwrap_err().to_string();
    assert!(error.contains("`fakes`") && error.contains("`fake`"), "{error}");
    assert!(!workspace.path("none").exists());
}

struct Counting(Arc<AtomicUsize>);

impl Advantage for Counting {
    fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
        self.0.fetch_add(1, Ordering::Relaxed);
        rewards.to_vec()
    }
}

struct NoLoss;

impl Loss for NoLoss {
    fn evaluate(&self, _input: &LossInput<'_>, _totals: &BatchTotals, _gradient: &mut [f32]) -> LossTerms {
        LossTerms::default()
    }
}

#[test]
fn an_advantage_and_a_loss_by_value_are_used() {
    let workspace = Workspace::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let run = workspace.builder("out", &["run.steps=3"]).advantage(Counting(Arc::clone(&calls))).loss(NoLoss);
    finish(run).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 3 * 4);
    let records = metrics(&workspace.path("out"));
    assert!(records.iter().all(|record| record.number("train/grad_norm") == Some(0.0)));
    assert!(records.windows(2).all(|pair| pair[0].values["policy_digest"] == pair[1].values["policy_digest"]));
}

/// Answers with the first version for ever: a sync hook that does nothing.
struct Deaf {
    inner: MemoryStore,
}

#[async_trait]
impl PolicyStore for Deaf {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> miles_core::Result<()> {
        match snapshot.stamp().version {
            PolicyVersion(0) => self.inner.publish(snapshot).await,
            _ => Ok(()),
        }
    }

    async fn latest(&self) -> miles_core::Result<Option<Arc<Snapshot>>> {
        self.inner.latest().await
    }

    async fn version(&self, version: PolicyVersion) -> miles_core::Result<Arc<Snapshot>> {
        self.inner.version(version).await
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> miles_core::Result<Arc<Snapshot>> {
        self.inner.newer_than(version).await
    }
}

/// O10: new weights that never reach the engine stop the run at the next step, naming both policies.
#[test]
fn o10_a_sync_that_does_nothing_is_an_error_at_the_next_step() {
    let workspace = Workspace::new();
    let store = Arc::new(Deaf { inner: MemoryStore::new(2) });
    let error = finish(workspace.builder("out", &["eval.every=0"]).store(store)).unwrap_err();
    let Error::Core(miles_core::Error::Policy(PolicyError::StaleVersion { expected, actual, .. })) = &error else {
        panic!("{error}")
    };
    assert_eq!((expected.version, actual.version), (PolicyVersion(1), PolicyVersion(0)));
    assert_eq!(metrics(&workspace.path("out")).len(), 1, "the first step was good");
}

struct Names(Vec<usize>);

impl Scheduler for Names {
    fn next(&mut self, _view: &ScheduleView) -> Schedule {
        Schedule::Step { prompts: self.0.clone() }
    }
}

#[test]
fn schedules_that_cannot_be_sampled_are_refused() {
    for (place, (prompts, word)) in
        [(vec![], "no prompt"), (vec![0, 6], "prompt 6 of 6"), (vec![2, 1, 2], "prompt 2 twice")]
            .into_iter()
            .enumerate()
    {
        let workspace = Workspace::new();
        let error = finish(workspace.builder(&place.to_string(), &[]).scheduler(Names(prompts))).unwrap_err();
        assert!(matches!(&error, Error::Stage(StageError::BadSchedule { step: 0, .. })), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[derive(Default, Clone)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Observer for Events {
    fn observe(&mut self, event: &Event<'_>) -> miles_core::Result<()> {
        let version = |stamp: &PolicyStamp| stamp.version;
        self.0.lock().unwrap().push(match event {
            Event::Started { step, steps, stamp } => format!("started {step}/{steps} at {}", version(stamp)),
            Event::Step(record) => format!("step {}", record.step),
            Event::Finished { steps, interrupted, stamp } => {
                format!("finished {steps} {interrupted} at {}", version(stamp))
            }
            other => format!("{other:?}"),
        });
        Ok(())
    }
}

#[test]
fn observers_see_every_event_in_order() {
    let workspace = Workspace::new();
    let events = Events::default();
    finish(workspace.builder("out", &["run.steps=2"]).observer(events.clone())).unwrap();
    assert_eq!(*events.0.lock().unwrap(), ["started 0/2 at 0", "step 0", "step 1", "finished 2 false at 2"]);
}

struct Broken;

impl Observer for Broken {
    fn observe(&mut self, event: &Event<'_>) -> miles_core::Result<()> {
        match event {
            Event::Step(record) if record.step == 2 => {
                Err(miles_core::Error::Plugin { plugin: "broken".to_owned(), source: "log is full".into() })
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn an_observer_that_fails_ends_the_run_after_the_step_is_saved() {
    let workspace = Workspace::new();
    let error = finish(workspace.builder("out", &[]).observer(Broken)).unwrap_err().to_string();
    assert!(error.contains("broken: log is full"), "{error}");
    let resumed = workspace.run("out", &["run.existing=resume"]).unwrap();
    assert_eq!(resumed.summary.policy, workspace.run("whole", &[]).unwrap().summary.policy);
}
