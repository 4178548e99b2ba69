//! What a user can replace: every part by value, every named part by name.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use miles_core::format::{FormatId, QuantizeCounts, QuantizeSpec, QuantizedTensor, Source};
use miles_core::plugin::{
    Advantage, Backend, Quantizer, Reward, RewardError, RewardInput, Schedule, ScheduleView, Scheduler, Support,
};
use miles_core::registry::{self, RegistryError};
use miles_core::{Error, Result, register_advantage, register_backend, register_reward, register_scheduler};
use miles_grpo::config::Why;
use miles_grpo::{Plan, Run};
use serde_json::Value;

use crate::support::backend;
use crate::support::workspace::{Workspace, finish, same_metrics};

#[test]
fn the_registry_holds_what_the_crates_bring() {
    let holds = |found: Vec<&'static str>, expected: &[&str]| {
        for name in expected {
            assert!(found.contains(name), "`{name}` is not among {found:?}");
        }
    };
    holds(registry::backend_names(), &["cpu-ref"]);
    holds(registry::reward_names(), &["arithmetic", "exact-match"]);
    holds(registry::advantage_names(), &["centered", "group-normalized"]);
    holds(registry::loss_names(), &["clipped", "cross-entropy"]);
    holds(registry::scheduler_names(), &["synchronous"]);
    let backend = registry::backend("cpu-ref", &Value::Null).unwrap();
    for format in [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block()] {
        assert_eq!(backend.capabilities.format(&format), Support::Native, "{format}");
    }
}

#[test]
fn an_unknown_name_lists_the_known_ones_and_the_nearest() {
    type Lookup = fn(&str) -> Result<()>;
    let cases: [(&str, &str, &str, Lookup); 5] = [
        ("backend", "cpu-rev", "cpu-ref", |name| registry::backend(name, &Value::Null).map(drop)),
        ("reward", "arithmetics", "arithmetic", |name| registry::reward(name, &Value::Null).map(drop)),
        ("advantage", "group-normalised", "group-normalized", |name| registry::advantage(name, &Value::Null).map(drop)),
        ("loss", "cliped", "clipped", |name| registry::loss(name, &Value::Null).map(drop)),
        ("scheduler", "synchronus", "synchronous", |name| registry::scheduler(name, &Value::Null).map(drop)),
    ];
    for (wanted, name, near, look) in cases {
        let error = look(name).unwrap_err();
        let Error::Registry(RegistryError::Unknown { kind, name: named, nearest, known }) = &error else {
            panic!("{error}")
        };
        assert_eq!((*kind, named.as_str(), nearest.as_deref()), (wanted, name, Some(near)));
        assert!(known.iter().any(|known| known == near), "{known:?}");
        assert!(error.to_string().contains(near), "{error}");
        let far = look("qqqqqqqq").unwrap_err();
        assert!(matches!(&far, Error::Registry(RegistryError::Unknown { nearest: None, .. })), "{far}");
        assert!(far.to_string().contains(near), "{far}");
    }
}

/// Points for small ids.
struct SmallIds;

#[async_trait]
impl Reward for SmallIds {
    async fn score(&self, input: &RewardInput<'_>) -> std::result::Result<f32, RewardError> {
        Ok(input.completion_tokens.iter().filter(|&&id| id < 40).count() as f32)
    }
}

/// The last prompts, always.
struct Last;

impl Scheduler for Last {
    fn next(&mut self, view: &ScheduleView) -> Schedule {
        Schedule::Step { prompts: (view.prompts - view.prompts_per_step..view.prompts).collect() }
    }
}

/// One for the best completions of a group, minus one for the others.
struct BestOrNot;

impl Advantage for BestOrNot {
    fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
        let best = rewards.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        rewards.iter().map(|&reward| if reward == best { 1.0 } else { -1.0 }).collect()
    }
}

register_reward!("test-small-ids", |_options| Ok(Box::new(SmallIds)));
register_scheduler!("test-last", |_options| Ok(Box::new(Last)));
register_advantage!("test-best-or-not", |_options| Ok(Box::new(BestOrNot)));

#[test]
fn parts_by_value_and_by_name_make_the_same_run() {
    let workspace = Workspace::new("qwen3");
    let by_value = workspace.builder("value", &[]).reward(SmallIds).scheduler(Last).advantage(BestOrNot);
    let by_value = finish(by_value).unwrap();
    let names = ["reward.name=test-small-ids", "scheduler.name=test-last", "advantage.name=test-best-or-not"];
    let by_name = workspace.run("name", &names).unwrap();
    assert_eq!(by_value.summary, by_name.summary);
    same_metrics(&workspace.metrics("value"), &workspace.metrics("name"), "by value and by name");
    for left_out in 0..names.len() {
        let others: Vec<&str> = names.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, n)| *n).collect();
        let out = format!("without-{left_out}");
        let outcome = workspace.run(&out, &others).unwrap();
        assert_ne!(outcome.summary.policy, by_name.summary.policy, "{} makes no difference", names[left_out]);
    }
}

/// Another quantizer in the place of the backend's own: the same bytes, and every call counted.
struct Counting {
    inner: Arc<dyn Quantizer>,
    tensors: Arc<AtomicUsize>,
}

#[deny(clippy::missing_trait_methods)]
impl Quantizer for Counting {
    fn id(&self) -> &str {
        "counting/1"
    }

    fn support(&self, format: &FormatId) -> Support {
        self.inner.support(format)
    }

    fn concurrency(&self) -> usize {
        self.inner.concurrency()
    }

    fn scratch_bytes(&self, spec: &QuantizeSpec, elements: usize) -> u64 {
        self.inner.scratch_bytes(spec, elements)
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        self.tensors.fetch_add(sources.len(), Ordering::Relaxed);
        self.inner.quantize(sources, spec)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        self.inner.dequantize(tensor)
    }

    fn count(&self, source: &Source<'_>, tensor: &QuantizedTensor) -> Result<Option<QuantizeCounts>> {
        self.inner.count(source, tensor)
    }
}

fn counting(tensors: &Arc<AtomicUsize>) -> Backend {
    let own = backend(2);
    let quantizer = Counting { inner: Arc::clone(&own.quantizer), tensors: Arc::clone(tensors) };
    Backend { name: "counting".to_owned(), quantizer: Arc::new(quantizer), ..own }
}

register_backend!("test-counting", |_options| Ok(counting(&Arc::default())));

/// A backend with one part replaced is a value like any other, and a name like any other.
#[test]
fn one_part_of_a_backend_can_be_replaced() {
    let workspace = Workspace::new("qwen3-moe");
    let tensors = Arc::new(AtomicUsize::new(0));
    let settings = ["precision.recipe=nvfp4-dequantized", "run.steps=2"];
    let outcome = finish(workspace.builder_on(counting(&tensors), "replaced", &settings)).unwrap();
    let quantized = workspace.ledger("replaced").iter().filter(|event| event.format == "nvfp4").count();
    assert!(quantized > 0);
    assert!(tensors.load(Ordering::Relaxed) >= quantized, "weights of 3 versions, and activations");
    assert!(workspace.ledger("replaced").iter().all(|event| event.quantizer == "counting/1"));
    let report = fs::read_to_string(workspace.path("replaced/report.html")).unwrap();
    assert!(report.contains("counting on"), "the report names the backend");

    let own = workspace.run("own", &settings).unwrap();
    assert_eq!(outcome.summary, own.summary, "the same arithmetic is the same run");
    let by_name = [&settings[..], &["run.backend=test-counting"]].concat();
    let by_name = Run::builder(Plan::new(&workspace.config("by-name", &by_name)).unwrap());
    assert_eq!(finish(by_name).unwrap().summary, own.summary);
    assert!(workspace.ledger("by-name").iter().all(|event| event.quantizer == "counting/1"));
}

/// A format that the backend does not do is refused before anything is written.
#[test]
fn what_a_backend_does_not_declare_is_refused() {
    let workspace = Workspace::new("qwen3-moe");
    let mut limited = backend(2);
    limited.capabilities.formats.retain(|(format, _)| *format != FormatId::mxfp8());
    let error = finish(workspace.builder_on(limited, "out", &["precision.recipe=mxfp8"])).unwrap_err();
    let miles_grpo::Error::Core(Error::Unsupported { operation, backend, .. }) = &error else { panic!("{error}") };
    assert!(operation.contains("mxfp8") && backend == "cpu-ref", "{error}");
    assert!(!workspace.path("out").exists());
}

/// Names in a config are checked with everything else, before a run is built.
#[test]
fn unknown_names_in_a_config_are_found_by_the_plan() {
    let workspace = Workspace::new("qwen3");
    let overrides = ["reward.name=exact-mach", "loss.name=clip", "scheduler.name=sync", "advantage.name=centred"];
    let errors = Plan::new(&workspace.config("out", &overrides)).unwrap_err();
    let keys: Vec<&str> = errors.issues.iter().map(|issue| issue.key.as_str()).collect();
    assert_eq!(keys, ["reward.name", "advantage.name", "loss.name", "scheduler.name"]);
    for issue in &errors.issues {
        assert!(matches!(&issue.why, Why::Plugin(Error::Registry(RegistryError::Unknown { .. }))), "{issue}");
    }
    let text = errors.to_string();
    for near in ["`exact-match`", "`clipped`", "`synchronous`", "`centered`"] {
        assert!(text.contains(near), "{near} in {text}");
    }
}
