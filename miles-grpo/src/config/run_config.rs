//! The mirror of a config file. Each field's doc is the key's documentation; `RunConfig::default()` holds every
//! default. Nothing is checked here beyond types.

use std::path::PathBuf;

use miles_core::plugin::{ActivationDtype, MasterDtype, PublicationMode};
use miles_core::precision::{PartitionAxis, Rule};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::export::{ExportExperts, ExportForm};

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }
    };
}

/// A run as written: one field per section of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunConfig {
    /// `[run]`
    pub run: RunSection,
    /// `[model]`
    pub model: ModelSection,
    /// `[precision]`
    pub precision: PrecisionSection,
    /// `[data]`
    pub data: DataSection,
    /// `[rollout]`
    pub rollout: RolloutSection,
    /// `[reward]`
    pub reward: RewardSection,
    /// `[advantage]`
    pub advantage: AdvantageSection,
    /// `[loss]`
    pub loss: LossSection,
    /// `[scheduler]`
    pub scheduler: SchedulerSection,
    /// `[train]`
    pub train: TrainSection,
    /// `[eval]`
    pub eval: EvalSection,
    /// `[store]`
    pub store: StoreSection,
    /// `[checkpoint]`
    pub checkpoint: CheckpointSection,
    /// `[export]`
    pub export: ExportSection,
}

section!(
    /// `[run]`: the run as a whole.
    RunSection {
        /// Name in the ledger and the report.
        name: String = "run".to_owned(),
        /// Output directory.
        out: PathBuf = PathBuf::from("runs/run"),
        /// What to do when the output directory already holds a run: `refuse`, `resume` or `overwrite`.
        existing: ExistingOutput = ExistingOutput::Refuse,
        /// Seed of every random stream.
        seed: u64 = 0,
        /// Steps of the whole run.
        steps: u64 = 100,
        /// Worker threads of the backend; left out, every core.
        threads: Option<usize> = None,
        /// Backend.
        backend: String = "cpu-ref".to_owned(),
    }
);

section!(
    /// `[model]`: what training starts from.
    ModelSection {
        /// Hugging Face checkpoint directory, with its `tokenizer.json`. Required.
        dir: PathBuf = PathBuf::new(),
        /// Longest sequence (prompt and completion), in tokens; left out, the model's own.
        context_tokens: Option<usize> = None,
    }
);

section!(
    /// `[precision]`: which tensor has which format.
    PrecisionSection {
        /// Recipe.
        recipe: String = "bf16".to_owned(),
        /// Rules that override the recipe, first match first.
        rules: Vec<Rule> = Vec::new(),
        /// Activation type, `bf16` or `f32`.
        activations: ActivationDtype = ActivationDtype::Bf16,
        /// Shards that each routed expert is cut into, every one quantized apart.
        expert_tensor_parallel: u16 = 1,
        /// The dimension of the experts that is cut, `intermediate` or `hidden`.
        partition_axis: PartitionAxis = PartitionAxis::Intermediate,
    }
);

section!(
    /// `[data]`: prompts.
    DataSection {
        /// JSONL file of training prompts. Required.
        train: PathBuf = PathBuf::new(),
        /// JSONL file of held-out prompts; left out, no evaluation.
        eval: Option<PathBuf> = None,
        /// Field of the prompt text.
        prompt: String = "prompt".to_owned(),
        /// Field of the expected answer.
        answer: String = "answer".to_owned(),
        /// Field of a conversation, used instead of the prompt in rows that have it.
        messages: String = "messages".to_owned(),
        /// Whether prompts are rendered with the model's chat template.
        chat_template: bool = false,
        /// The date that chat templates see as today, `YYYY-MM-DD`.
        date: String = "2024-07-26".to_owned(),
    }
);

section!(
    /// `[rollout]`: what a step samples and how.
    RolloutSection {
        /// Prompts per step.
        prompts_per_step: usize = 8,
        /// Completions per prompt.
        group_size: usize = 8,
        /// Divisor of the logits; 0 takes the largest logit.
        temperature: f64 = 1.0,
        /// Smallest set of tokens whose probability reaches this (1: all).
        top_p: f64 = 1.0,
        /// The k most likely tokens (0: all).
        top_k: usize = 0,
        /// Tokens at least this fraction as likely as the likeliest (0: all).
        min_p: f64 = 0.0,
        /// Longest completion, in tokens.
        max_new_tokens: usize = 64,
        /// Completions that decode at the same time.
        max_running: usize = 64,
        /// What becomes of running completions when a version is published: `finish` on the old one, `continue` on the
        /// new one between two tokens, `abort-and-resubmit` their groups.
        publication: PublicationMode = PublicationMode::Finish,
    }
);

section!(
    /// `[reward]`: how completions are judged.
    RewardSection {
        /// Registered name.
        name: String = "exact-match".to_owned(),
        /// Its options.
        options: Map<String, Value> = Map::new(),
        /// What happens to a completion that could not be judged: `"drop"`, `"fail"`, or a reward to give it.
        on_error: Value = Value::from("drop"),
    }
);

section!(
    /// `[advantage]`: from rewards to advantages.
    AdvantageSection {
        /// Registered name.
        name: String = "group-normalized".to_owned(),
        /// Its options.
        options: Map<String, Value> = Map::new(),
    }
);

section!(
    /// `[loss]`: the objective.
    LossSection {
        /// Registered name.
        name: String = "clipped".to_owned(),
        /// Its options.
        options: Map<String, Value> = Map::new(),
    }
);

section!(
    /// `[scheduler]`: which prompts when.
    SchedulerSection {
        /// Registered name.
        name: String = "synchronous".to_owned(),
        /// Its options.
        options: Map<String, Value> = Map::new(),
    }
);

section!(
    /// `[train]`: the optimizer.
    TrainSection {
        /// Learning rate after warm-up.
        learning_rate: f64 = 1e-5,
        /// Steps over which the rate rises from 0; a shorter run ends while it rises.
        warmup_steps: u64 = 0,
        /// What the rate does after warm-up: `constant`, `linear` or `cosine` (both fall to 0 at the last step).
        schedule: LearningRateSchedule = LearningRateSchedule::Constant,
        /// AdamW: decay of the first moment.
        beta1: f64 = 0.9,
        /// AdamW: decay of the second moment.
        beta2: f64 = 0.999,
        /// AdamW: added to the root of the second moment.
        eps: f64 = 1e-8,
        /// AdamW: decoupled weight decay.
        weight_decay: f64 = 0.0,
        /// Largest norm of the whole gradient; 0 never clips.
        clip_grad_norm: f64 = 1.0,
        /// Most tokens in one micro-batch.
        micro_batch_tokens: usize = 4096,
        /// Optimizer steps per rollout; each makes a policy version.
        mini_batches: usize = 1,
        /// Whether routers are trained.
        train_router: bool = true,
        /// Number type of the master weights: `f32`, or `bf16`, half as large, whose updates are rounded stochastically.
        masters: MasterDtype = MasterDtype::F32,
    }
);

section!(
    /// `[eval]`: measuring on held-out prompts.
    EvalSection {
        /// Steps between evaluations (0: only before the first and after the last step).
        every: u64 = 10,
        /// Completions per prompt.
        samples: usize = 1,
        /// Temperature; 0 takes the largest logit.
        temperature: f64 = 0.0,
    }
);

section!(
    /// `[store]`: where policy versions live while the run goes on. A store passed as a value is used instead.
    StoreSection {
        /// `memory`, or `directory`: one folder per version in `versions/` of the output directory.
        kind: StoreKind = StoreKind::Memory,
        /// Newest versions kept.
        keep_last: usize = 2,
        /// Whether every digest is computed again when a version is published and when it is read.
        verified: bool = false,
        /// Changed bytes that a publication takes in a second; left out, as many as there are.
        bytes_per_second: Option<u64> = None,
    }
);

section!(
    /// `[checkpoint]`: saving for resume.
    CheckpointSection {
        /// Steps between checkpoints (0: only when interrupted and, with `at_end`, at the end).
        every: u64 = 0,
        /// Checkpoints kept.
        keep_last: usize = 2,
        /// Whether one is written when the run ends.
        at_end: bool = true,
    }
);

section!(
    /// `[export]`: the final policy.
    ExportSection {
        /// Precision of the stored tensors: `as-held` (codes and scales where the policy has them), `bf16` or `f32`.
        form: ExportForm = ExportForm::AsHeld,
        /// Routed experts: `per-expert` tensors or `packed` ones (high precision only).
        experts: ExportExperts = ExportExperts::PerExpert,
    }
);

/// What to do with an output directory that already holds a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExistingOutput {
    /// Stop with an error.
    Refuse,
    /// Go on from its newest checkpoint; an empty directory starts from the beginning.
    Resume,
    /// Delete what the old run left and start from the beginning.
    Overwrite,
}

/// Where policy versions live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// In memory.
    Memory,
    /// In a directory.
    Directory,
}

/// Course of the learning rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LearningRateSchedule {
    /// Stays.
    Constant,
    /// Falls on a line to 0.
    Linear,
    /// Falls on half a cosine wave to 0.
    Cosine,
}
