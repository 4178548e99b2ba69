//! A config that was checked: what stages read. `Option` stands only for things that a run may be without.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use miles_core::plugin::{ActivationDtype, AdamW, MasterDtype, PublicationMode, Sampling};
use miles_core::precision::{PartitionPlan, Recipe, Rule};
use serde_json::Value;

use super::read::TEXT;
use super::{ConfigErrors, ConfigFingerprint, ConfigIssue, ExistingOutput, RunConfig, StoreKind, check};
use crate::data::{Date, Fields};
use crate::export::ExportPlan;
use crate::learning_rate::LearningRate;

/// A checked run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The run as a whole.
    pub run: RunPlan,
    /// What training starts from.
    pub model: ModelPlan,
    /// Formats.
    pub precision: PrecisionPlan,
    /// Prompts.
    pub data: DataPlan,
    /// What a step samples.
    pub rollout: RolloutPlan,
    /// Reward.
    pub reward: NamedPlugin,
    /// What happens to completions that could not be judged.
    pub on_reward_error: OnRewardError,
    /// Advantage.
    pub advantage: NamedPlugin,
    /// Loss.
    pub loss: NamedPlugin,
    /// Scheduler.
    pub scheduler: NamedPlugin,
    /// Optimizer.
    pub train: TrainPlan,
    /// Held-out evaluation.
    pub evaluation: Option<EvaluationPlan>,
    /// Where versions live.
    pub store: StorePlan,
    /// Saving.
    pub checkpoint: CheckpointPlan,
    /// Final export.
    pub export: ExportPlan,
    /// The config that it came from, as TOML.
    pub config_toml: String,
    /// The keys that change results, for resume.
    pub fingerprint: ConfigFingerprint,
}

impl Plan {
    /// Checks a config against itself, the registered names, the model's `config.json` and the data files' presence.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn new(config: &RunConfig) -> Result<Self, ConfigErrors> {
        check::plan(config)
    }

    /// Reads a TOML text and `key=value` overrides over `defaults` and checks the result: the faults of reading and
    /// of checking in one go.
    ///
    /// # Errors
    /// Everything that is wrong, at once. A key that could not be read is not complained about twice.
    pub fn read(defaults: RunConfig, text: &str, overrides: &[String]) -> Result<Self, ConfigErrors> {
        Self::checked(defaults.over(text, TEXT, overrides))
    }

    /// As [`Plan::read`], from a file, which errors name.
    ///
    /// # Errors
    /// As [`Plan::read`]; a file that cannot be read is one of the faults.
    pub fn read_file(defaults: RunConfig, path: &Path, overrides: &[String]) -> Result<Self, ConfigErrors> {
        Self::checked(defaults.over_file(path, overrides))
    }

    fn checked((config, mut issues): (RunConfig, Vec<ConfigIssue>)) -> Result<Self, ConfigErrors> {
        match check::plan(&config) {
            Ok(plan) if issues.is_empty() => return Ok(plan),
            Ok(_) => {}
            Err(errors) => {
                let is_new = |issue: &ConfigIssue| issues.iter().all(|earlier| earlier.key != issue.key);
                let more: Vec<ConfigIssue> = errors.issues.into_iter().filter(is_new).collect();
                issues.extend(more);
            }
        }
        Err(ConfigErrors { issues })
    }
}

/// The run as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPlan {
    /// Name.
    pub name: String,
    /// Output directory.
    pub out: PathBuf,
    /// What to do with an output directory that holds a run.
    pub existing: ExistingOutput,
    /// Seed.
    pub seed: u64,
    /// Steps.
    pub steps: u64,
    /// Worker threads; `None` uses every core.
    pub threads: Option<usize>,
    /// Registered name of the backend, used when none is passed as a value.
    pub backend: String,
}

/// What training starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// Checkpoint directory.
    pub dir: PathBuf,
    /// Longest sequence, in tokens; at most the model's own.
    pub context_tokens: usize,
}

/// Formats.
#[derive(Clone, Debug, PartialEq)]
pub struct PrecisionPlan {
    /// Recipe.
    pub recipe: Recipe,
    /// Rules over it.
    pub rules: Vec<Rule>,
    /// Activation type.
    pub activations: ActivationDtype,
    /// How routed experts are cut.
    pub partition: PartitionPlan,
}

/// Prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPlan {
    /// Training prompts.
    pub train: PathBuf,
    /// Field names.
    pub fields: Fields,
    /// The date that the chat template sees, if prompts go through one.
    pub chat_template: Option<Date>,
}

/// What a step samples.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutPlan {
    /// Prompts per step.
    pub prompts_per_step: usize,
    /// Completions per prompt.
    pub group_size: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Completions that decode at the same time.
    pub max_running: usize,
    /// What becomes of running completions when a version is published.
    pub publication: PublicationMode,
}

/// A registered name and its options.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPlugin {
    /// Name.
    pub name: String,
    /// Options; `Null` when there are none.
    pub options: Value,
}

/// What happens to a completion that could not be judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnRewardError {
    /// It is left out of the group.
    Drop,
    /// The run ends with the error.
    Fail,
    /// It gets this reward.
    Score(f32),
}

/// Optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainPlan {
    /// Learning rate of each step.
    pub learning_rate: LearningRate,
    /// AdamW.
    pub optimizer: AdamW,
    /// Largest gradient norm; `None` never clips.
    pub max_grad_norm: Option<f64>,
    /// Most tokens in one micro-batch.
    pub micro_batch_tokens: usize,
    /// Optimizer steps per rollout.
    pub mini_batches: usize,
    /// Whether routers are trained.
    pub train_router: bool,
    /// Number type of the master weights.
    pub masters: MasterDtype,
}

/// Held-out evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationPlan {
    /// Held-out prompts.
    pub data: PathBuf,
    /// Steps between evaluations; `None` only before the first and after the last.
    pub every: Option<u64>,
    /// Completions per prompt.
    pub samples: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
}

/// Where versions live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// In memory or in a directory.
    pub kind: StoreKind,
    /// Newest versions kept.
    pub keep_last: usize,
    /// Whether digests are computed again.
    pub verified: bool,
    /// Changed bytes that a publication takes in a second.
    pub bytes_per_second: Option<NonZeroU64>,
}

/// Saving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPlan {
    /// Steps between checkpoints; `None` only at an interruption or the end.
    pub every: Option<u64>,
    /// Checkpoints kept.
    pub keep_last: usize,
    /// Whether one is written at the end.
    pub at_end: bool,
}
