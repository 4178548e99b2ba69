//! A directory with a model, its tokenizer, prompts, and the outputs of runs.

use std::fs;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures_lite::future::block_on;
use miles_core::checkpoint::Checkpoint;
use miles_core::plugin::{Backend, Event, Observer, Reward, RewardError, RewardInput, StepRecord};
use miles_core::policy::{LedgerEvent, LedgerFile};
use miles_core::register_reward;
use miles_grpo::metrics::deterministic;
use miles_grpo::track::read_metrics;
use miles_grpo::{Error, Interrupt, Outcome, Plan, Run, RunBuilder, RunConfig};
use tempfile::TempDir;

use super::files::{copy_dir, write_tokenizer};
use super::{backend, checkpoint, fixture};

/// The share of odd token ids in a completion: every model earns some, every group has a spread.
pub struct OddIds;

#[async_trait]
impl Reward for OddIds {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let odd = input.completion_tokens.iter().filter(|&&id| id % 2 == 1).count();
        Ok(odd as f32 / input.completion_tokens.len() as f32)
    }
}

register_reward!("test-odd-ids", |_options| Ok(Box::new(OddIds)));

/// A model directory, prompts of different lengths, and runs.
pub struct Workspace {
    dir: TempDir,
}

impl Workspace {
    /// A writable copy of a fixture model with a tokenizer of its vocabulary.
    pub fn new(family: &str) -> Self {
        let workspace = Workspace { dir: tempfile::tempdir().unwrap() };
        copy_dir(&fixture(family), &workspace.path("model"));
        write_tokenizer(&workspace.path("model"), checkpoint(family).network().config.vocab_size);
        let rows = |prompts: &[&str]| -> String {
            prompts.iter().map(|prompt| format!("{{\"prompt\":\"{prompt}\",\"answer\":\"7\"}}\n")).collect()
        };
        fs::write(workspace.path("train.jsonl"), rows(&["1+6=", "12+25=", "3", "?", "400+31=", "5+2=x"])).unwrap();
        fs::write(workspace.path("eval.jsonl"), rows(&["7+0=", "8="])).unwrap();
        workspace
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The model, opened.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint::open(&self.path("model")).unwrap()
    }

    /// The config of a small run into `out`: 3 steps of 2 prompts x 4 completions of at most 6 tokens.
    pub fn config(&self, out: &str, overrides: &[&str]) -> RunConfig {
        let text = format!(
            "model.dir = {:?}\ndata.train = {:?}\nrun.out = {:?}\nrun.steps = 3\nrun.seed = 11\n\
             reward.name = \"test-odd-ids\"\nrollout.prompts_per_step = 2\nrollout.group_size = 4\n\
             rollout.max_new_tokens = 6\ntrain.learning_rate = 0.01\n",
            self.path("model"),
            self.path("train.jsonl"),
            self.path(out)
        );
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        RunConfig::parse(&text, &overrides).unwrap()
    }

    /// A run on the CPU backend with two threads.
    pub fn builder(&self, out: &str, overrides: &[&str]) -> RunBuilder {
        self.builder_on(backend(2), out, overrides)
    }

    /// A run on another backend.
    pub fn builder_on(&self, backend: Backend, out: &str, overrides: &[&str]) -> RunBuilder {
        Run::builder(Plan::new(&self.config(out, overrides)).unwrap()).backend(backend)
    }

    /// Runs to the end.
    pub fn run(&self, out: &str, overrides: &[&str]) -> Result<Outcome, Error> {
        finish(self.builder(out, overrides))
    }

    /// Runs and is interrupted during the step of this number, counted from 1.
    pub fn run_until(&self, out: &str, overrides: &[&str], step: u64) -> Result<Outcome, Error> {
        let interrupt = Interrupt::new();
        let stop = StopDuring { interrupt: interrupt.clone(), step };
        finish(self.builder(out, overrides).observer(stop).interrupt(interrupt))
    }

    /// Metrics of a run without timings and memory.
    pub fn metrics(&self, out: &str) -> Vec<StepRecord> {
        metrics(&self.path(out))
    }

    /// Every quantization event in a run's ledger.
    pub fn ledger(&self, out: &str) -> Vec<LedgerEvent> {
        let ledger = LedgerFile::open(&self.path(out).join("ledger.jsonl")).unwrap();
        ledger.flat_map(|version| version.unwrap().events().to_vec()).collect()
    }
}

/// Builds and runs to the end.
pub fn finish(builder: RunBuilder) -> Result<Outcome, Error> {
    block_on(async { builder.build().await?.run().await })
}

/// Metrics in an output directory without timings and memory.
pub fn metrics(out: &Path) -> Vec<StepRecord> {
    read_metrics(&out.join("metrics.jsonl")).unwrap().iter().map(deterministic).collect()
}

/// Asserts that two runs have equal metrics, naming the first step and keys that differ.
pub fn same_metrics(found: &[StepRecord], expected: &[StepRecord], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let keys = expected.values.keys().chain(found.values.keys());
        let differing: Vec<&String> = keys.filter(|key| found.values.get(*key) != expected.values.get(*key)).collect();
        assert!(differing.is_empty(), "{what}: step {} differs in {differing:?}", expected.step);
    }
    assert_eq!(found.len(), expected.len(), "{what}: number of steps");
}

struct StopDuring {
    interrupt: Interrupt,
    step: u64,
}

impl Observer for StopDuring {
    fn observe(&mut self, event: &Event<'_>) -> miles_core::Result<()> {
        if matches!(event, Event::Step(record) if record.step + 1 == self.step) {
            self.interrupt.request();
        }
        Ok(())
    }
}
