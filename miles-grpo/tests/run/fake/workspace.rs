//! A directory with a model, data, and outputs.

use std::fs;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures_lite::future::block_on;
use miles_core::Result as CoreResult;
use miles_core::checkpoint::{Template, WriteOptions, write_values};
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, ParamId};
use miles_core::plugin::{Event, Observer, Reward, RewardError, RewardInput, StepRecord};
use miles_core::policy::WeightSource;
use miles_core::random::{Coordinates, Stream, normal};
use miles_core::register_reward;
use miles_grpo::metrics::deterministic;
use miles_grpo::track::read_metrics;
use miles_grpo::{Error, Interrupt, Outcome, Plan, Run, RunBuilder, RunConfig};
use serde_json::json;
use tempfile::TempDir;

use super::{Probe, backend};

pub struct Workspace {
    dir: TempDir,
    pub probe: Probe,
}

/// One point for a completion that starts with the expected answer: earned often enough to learn from in a few steps.
struct StartsRight;

#[async_trait]
impl Reward for StartsRight {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let answer = input.answer.ok_or(RewardError::MissingField { field: "answer" })?;
        Ok(f32::from(u8::from(input.completion.starts_with(answer))))
    }
}

register_reward!("test-starts-right", |_options| Ok(Box::new(StartsRight)));

/// Small weights, the same for every test.
struct Seeded {
    network: Network,
}

impl WeightSource for Seeded {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> CoreResult<()> {
        let parameter = self.network.parameter(id);
        let at = |index: usize| Coordinates { step: u64::from(id.0), prompt: index as u64, ..Coordinates::default() };
        *into = (0..parameter.elements()).map(|index| 0.2 * normal(5, Stream::Weights, at(index)) as f32).collect();
        Ok(())
    }
}

impl Workspace {
    /// A model of 17 ids and 16 tokens of context that has to learn to begin every answer with `7`.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 17, "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 16, "rope_theta": 10000.0, "eos_token_id": 0, "hidden_act": "silu",
            "tie_word_embeddings": false
        });
        let sidecars = dir.path().join("sidecars");
        fs::create_dir(&sidecars).unwrap();
        fs::write(sidecars.join("tokenizer.json"), include_str!("../../data/tokenizer.json")).unwrap();
        let config = config.as_object().unwrap().clone();
        let template = Template {
            config: HuggingFaceConfig::from_json(Path::new("config.json"), config).unwrap(),
            sidecar_dir: Some(sidecars),
        };
        let source = Seeded { network: Network::new(template.config.model()) };
        write_values(&source, &template, &dir.path().join("model"), &WriteOptions::default()).unwrap();
        let rows = |questions: &[&str]| -> String {
            questions.iter().map(|question| format!("{{\"prompt\":\"{question}\",\"answer\":\"7\"}}\n")).collect()
        };
        fs::write(dir.path().join("train.jsonl"), rows(&["1+6=", "2+5=", "3+4=", "4+3=", "5+2=", "6+1="])).unwrap();
        fs::write(dir.path().join("eval.jsonl"), rows(&["7+0=", "0+7=", "8="])).unwrap();
        Workspace { dir, probe: Probe::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Six steps of 4 prompts x 8 completions, evaluation every 2 steps, into `out`.
    pub fn config(&self, out: &str, overrides: &[&str]) -> RunConfig {
        let text = format!(
            "model.dir = {:?}\ndata.train = {:?}\ndata.eval = {:?}\nrun.out = {:?}\nrun.steps = 6\nrun.seed = 11\n\
             run.backend = \"fake\"\nreward.name = \"test-starts-right\"\nrollout.prompts_per_step = 4\nrollout.max_new_tokens = 3\n\
             train.learning_rate = 2.0\neval.every = 2\n",
            self.path("model"),
            self.path("train.jsonl"),
            self.path("eval.jsonl"),
            self.path(out)
        );
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        RunConfig::parse(&text, &overrides).unwrap()
    }

    pub fn builder(&self, out: &str, overrides: &[&str]) -> RunBuilder {
        let plan = Plan::new(&self.config(out, overrides)).unwrap();
        Run::builder(plan).backend(backend(&self.probe))
    }

    pub fn run(&self, out: &str, overrides: &[&str]) -> Result<Outcome, Error> {
        finish(self.builder(out, overrides))
    }

    /// Runs and is interrupted during the step of this number, counted from 1.
    pub fn run_until(&self, out: &str, overrides: &[&str], step: u64) -> Result<Outcome, Error> {
        let interrupt = Interrupt::new();
        let stop = StopDuring { interrupt: interrupt.clone(), step };
        finish(self.builder(out, overrides).observer(stop).interrupt(interrupt))
    }
}

pub fn finish(builder: RunBuilder) -> Result<Outcome, Error> {
    block_on(async { builder.build().await?.run().await })
}

/// Metrics of a finished run without what depends on time.
pub fn metrics(out: &Path) -> Vec<StepRecord> {
    read_metrics(&out.join("metrics.jsonl")).unwrap().iter().map(deterministic).collect()
}

/// Digest of the exported policy, through the checkpoint reader.
pub fn digest_of_policy(out: &Path) -> miles_core::digest::Digest {
    let bytes = fs::read(out.join("policy").join("model.safetensors")).unwrap();
    miles_core::digest::Digest::of(&bytes)
}

struct StopDuring {
    interrupt: Interrupt,
    step: u64,
}

impl Observer for StopDuring {
    fn observe(&mut self, event: &Event<'_>) -> CoreResult<()> {
        if matches!(event, Event::Step(record) if record.step + 1 == self.step) {
            self.interrupt.request();
        }
        Ok(())
    }
}
