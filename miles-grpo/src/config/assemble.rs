//! From a config in which nothing is wrong to its [`Plan`].

use std::num::NonZeroU64;

use miles_core::model::ModelConfig;
use miles_core::plugin::{AdamW, Sampling};
use serde_json::{Map, Value};

use super::{
    CheckpointPlan, ConfigFingerprint, DataPlan, EvaluationPlan, ModelPlan, NamedPlugin, OnRewardError, Plan,
    PrecisionPlan, RolloutPlan, RunConfig, RunPlan, StorePlan, TrainPlan,
};
use crate::data::{Date, Fields};
use crate::export::ExportPlan;
use crate::learning_rate::LearningRate;

/// The plan of a config in which nothing is wrong.
pub(super) fn assemble(
    config: &RunConfig,
    model: &ModelConfig,
    context_tokens: usize,
    precision: PrecisionPlan,
    on_reward_error: OnRewardError,
    chat_template: Option<Date>,
    config_toml: String,
) -> Plan {
    let (run, data, rollout, train) = (&config.run, &config.data, &config.rollout, &config.train);
    let sampling = Sampling {
        temperature: rollout.temperature as f32,
        top_p: rollout.top_p as f32,
        top_k: rollout.top_k,
        min_p: rollout.min_p as f32,
        max_new_tokens: rollout.max_new_tokens,
        eos_token_ids: model.eos_token_ids.clone(),
    };
    let named = |name: &str, table| NamedPlugin { name: name.to_owned(), options: options(table) };
    Plan {
        run: RunPlan {
            name: run.name.clone(),
            out: run.out.clone(),
            existing: run.existing,
            seed: run.seed,
            steps: run.steps,
            threads: run.threads,
            backend: run.backend.clone(),
        },
        model: ModelPlan { dir: config.model.dir.clone(), context_tokens },
        precision,
        data: DataPlan {
            train: data.train.clone(),
            fields: Fields {
                prompt: data.prompt.clone(),
                answer: data.answer.clone(),
                messages: data.messages.clone(),
            },
            chat_template,
        },
        evaluation: data.eval.as_ref().map(|path| EvaluationPlan {
            data: path.clone(),
            every: (config.eval.every > 0).then_some(config.eval.every),
            samples: config.eval.samples,
            sampling: Sampling { temperature: config.eval.temperature as f32, ..sampling.clone() },
        }),
        rollout: RolloutPlan {
            prompts_per_step: rollout.prompts_per_step,
            group_size: rollout.group_size,
            sampling,
            max_running: rollout.max_running,
            publication: rollout.publication,
        },
        reward: named(&config.reward.name, &config.reward.options),
        on_reward_error,
        advantage: named(&config.advantage.name, &config.advantage.options),
        loss: named(&config.loss.name, &config.loss.options),
        scheduler: named(&config.scheduler.name, &config.scheduler.options),
        train: TrainPlan {
            learning_rate: LearningRate {
                base: train.learning_rate,
                warmup_steps: train.warmup_steps,
                schedule: train.schedule,
                steps: run.steps,
            },
            optimizer: AdamW {
                beta1: train.beta1,
                beta2: train.beta2,
                eps: train.eps,
                weight_decay: train.weight_decay,
            },
            max_grad_norm: (train.clip_grad_norm > 0.0).then_some(train.clip_grad_norm),
            micro_batch_tokens: train.micro_batch_tokens,
            mini_batches: train.mini_batches,
            train_router: train.train_router,
            masters: train.masters,
        },
        store: StorePlan {
            kind: config.store.kind,
            keep_last: config.store.keep_last,
            verified: config.store.verified,
            bytes_per_second: config.store.bytes_per_second.and_then(NonZeroU64::new),
        },
        checkpoint: CheckpointPlan {
            every: (config.checkpoint.every > 0).then_some(config.checkpoint.every),
            keep_last: config.checkpoint.keep_last,
            at_end: config.checkpoint.at_end,
        },
        export: ExportPlan { form: config.export.form, experts: config.export.experts },
        config_toml,
        fingerprint: ConfigFingerprint::of(config),
    }
}

/// The options of a plug-in; `Null` when there are none.
pub(super) fn options(table: &Map<String, Value>) -> Value {
    if table.is_empty() { Value::Null } else { Value::Object(table.clone()) }
}
