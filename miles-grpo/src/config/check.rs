//! From a [`RunConfig`] to a [`Plan`]: every range, name and contradiction.

use std::num::NonZeroU64;
use std::path::Path;

use miles_core::model::ModelConfig;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::plugin::{AdamW, Sampling};
use miles_core::precision::{PartitionPlan, Recipe};
use miles_core::registry;
use serde_json::{Map, Value};

use super::{
    CheckpointPlan, ConfigErrors, ConfigFingerprint, ConfigIssue, DataPlan, EvaluationPlan, ModelPlan, NamedPlugin,
    OnRewardError, Plan, PrecisionPlan, RolloutPlan, RunConfig, RunPlan, StorePlan, TrainPlan, Why,
};
use crate::data::{Date, Fields};
use crate::export::{ExportExperts, ExportForm, ExportPlan};
use crate::learning_rate::LearningRate;

/// Checks everything and builds the plan.
pub(super) fn plan(config: &RunConfig) -> Result<Plan, ConfigErrors> {
    let mut issues = Issues::default();
    let model = model(config, &mut issues);
    let context_tokens = context(config, model.as_ref(), &mut issues);
    run_and_rollout(config, context_tokens, &mut issues);
    train(config, &mut issues);
    evaluation(config, &mut issues);
    files(config, &mut issues);
    store(config, &mut issues);
    export(config, &mut issues);
    let recipe = issues.take("precision.recipe", &config.precision.recipe, config.precision.recipe.parse::<Recipe>());
    let (shards, axis) = (config.precision.expert_tensor_parallel, config.precision.partition_axis);
    let partition = issues.take("precision.expert_tensor_parallel", shards, PartitionPlan::new(shards, axis));
    let precision = recipe.zip(partition).map(|(recipe, partition)| PrecisionPlan {
        recipe,
        rules: config.precision.rules.clone(),
        activations: config.precision.activations,
        partition,
    });
    let on_reward_error = on_reward_error(&config.reward.on_error, &mut issues);
    let date = date(config, &mut issues);
    plugins(config, &mut issues);
    match (issues.found.is_empty(), model, precision, on_reward_error) {
        (true, Some(model), Some(precision), Some(on_reward_error)) => {
            Ok(assemble(config, &model, context_tokens, precision, on_reward_error, date))
        }
        _ => Err(ConfigErrors { issues: issues.found }),
    }
}

#[derive(Default)]
struct Issues {
    found: Vec<ConfigIssue>,
}

impl Issues {
    fn add(&mut self, key: &str, value: impl ToString, why: Why) {
        self.found.push(ConfigIssue { key: key.to_owned(), value: value.to_string(), why });
    }

    fn range(&mut self, key: &str, value: impl ToString, fits: bool, range: &'static str) {
        if !fits {
            self.add(key, value, Why::OutOfRange { range });
        }
    }

    fn take<T, E: Into<Why>>(&mut self, key: &str, value: impl ToString, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(key, value, error.into())).ok()
    }
}

fn model(config: &RunConfig, issues: &mut Issues) -> Option<ModelConfig> {
    let dir = &config.model.dir;
    if dir.as_os_str().is_empty() {
        issues.add("model.dir", "", Why::Missing);
        return None;
    }
    let read = issues.take("model.dir", dir.display(), HuggingFaceConfig::read(dir))?;
    Some(read.model().clone())
}

/// Context length in effect; without a model, the one asked for.
fn context(config: &RunConfig, model: Option<&ModelConfig>, issues: &mut Issues) -> usize {
    let of_model = model.map_or(usize::MAX, |model| model.context_tokens);
    let Some(asked) = config.model.context_tokens else {
        return of_model;
    };
    issues.range("model.context_tokens", asked, asked >= 2, "at least 2");
    if asked > of_model {
        let with = format!("the model's context of {of_model} tokens");
        issues.add("model.context_tokens", asked, Why::Contradiction { with, why: "it is longer" });
    }
    asked
}

fn run_and_rollout(config: &RunConfig, context_tokens: usize, issues: &mut Issues) {
    let (run, rollout) = (&config.run, &config.rollout);
    issues.range("run.name", format!("{:?}", run.name), !run.name.is_empty(), "not empty");
    issues.range("run.out", run.out.display(), !run.out.as_os_str().is_empty(), "a directory");
    issues.range("run.steps", run.steps, run.steps > 0, "at least 1");
    issues.range("run.threads", run.threads.unwrap_or(1), run.threads != Some(0), "at least 1");
    issues.range("rollout.prompts_per_step", rollout.prompts_per_step, rollout.prompts_per_step > 0, "at least 1");
    match rollout.group_size {
        0 => issues.range("rollout.group_size", 0, false, "at least 2"),
        1 => {
            let with = format!("advantage.name = {}", config.advantage.name);
            let why = "a group of one has no other completion to be compared with, so every advantage is 0";
            issues.add("rollout.group_size", 1, Why::Contradiction { with, why });
        }
        _ => {}
    }
    let (t, p, m) = (rollout.temperature, rollout.top_p, rollout.min_p);
    issues.range("rollout.temperature", t, t >= 0.0 && t.is_finite(), "at least 0");
    if t == 0.0 {
        let with = format!("rollout.group_size = {}", rollout.group_size);
        let why = "without randomness the completions of a group are all the same";
        issues.add("rollout.temperature", t, Why::Contradiction { with, why });
    }
    issues.range("rollout.top_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1");
    issues.range("rollout.min_p", m, (0.0..1.0).contains(&m), "at least 0 and below 1");
    issues.range("rollout.max_running", rollout.max_running, rollout.max_running > 0, "at least 1");
    issues.range("rollout.max_new_tokens", rollout.max_new_tokens, rollout.max_new_tokens > 0, "at least 1");
    if rollout.max_new_tokens >= context_tokens {
        let with = format!("the context of {context_tokens} tokens");
        let why = "a prompt needs at least one token beside the completion";
        issues.add("rollout.max_new_tokens", rollout.max_new_tokens, Why::Contradiction { with, why });
    }
}

fn train(config: &RunConfig, issues: &mut Issues) {
    let train = &config.train;
    let at_least_0 = |value: f64| value >= 0.0 && value.is_finite();
    issues.range("train.learning_rate", train.learning_rate, at_least_0(train.learning_rate), "at least 0");
    issues.range("train.beta1", train.beta1, (0.0..1.0).contains(&train.beta1), "at least 0 and below 1");
    issues.range("train.beta2", train.beta2, (0.0..1.0).contains(&train.beta2), "at least 0 and below 1");
    issues.range("train.eps", train.eps, train.eps > 0.0 && train.eps.is_finite(), "above 0");
    issues.range("train.weight_decay", train.weight_decay, at_least_0(train.weight_decay), "at least 0");
    issues.range("train.clip_grad_norm", train.clip_grad_norm, at_least_0(train.clip_grad_norm), "at least 0");
    issues.range("train.micro_batch_tokens", train.micro_batch_tokens, train.micro_batch_tokens > 0, "at least 1");
    issues.range("train.mini_batches", train.mini_batches, train.mini_batches > 0, "at least 1");
    if train.mini_batches > config.rollout.prompts_per_step {
        let with = format!("rollout.prompts_per_step = {}", config.rollout.prompts_per_step);
        let why = "a mini-batch holds whole groups";
        issues.add("train.mini_batches", train.mini_batches, Why::Contradiction { with, why });
    }
}

fn evaluation(config: &RunConfig, issues: &mut Issues) {
    let eval = &config.eval;
    issues.range("eval.samples", eval.samples, eval.samples > 0, "at least 1");
    issues.range(
        "eval.temperature",
        eval.temperature,
        eval.temperature >= 0.0 && eval.temperature.is_finite(),
        "at least 0",
    );
    if eval.temperature == 0.0 && eval.samples > 1 {
        let with = format!("eval.samples = {}", eval.samples);
        let why = "without randomness every sample of a prompt is the same";
        issues.add("eval.temperature", eval.temperature, Why::Contradiction { with, why });
    }
    issues.range("checkpoint.keep_last", config.checkpoint.keep_last, config.checkpoint.keep_last > 0, "at least 1");
}

fn files(config: &RunConfig, issues: &mut Issues) {
    let mut file = |key: &str, path: &Path| {
        if !path.is_file() {
            issues.add(key, path.display(), Why::NoSuchFile);
        }
    };
    if let Some(eval) = &config.data.eval {
        file("data.eval", eval);
    }
    match config.data.train.as_os_str().is_empty() {
        true => issues.add("data.train", "", Why::Missing),
        false => file("data.train", &config.data.train),
    }
}

fn store(config: &RunConfig, issues: &mut Issues) {
    let store = &config.store;
    issues.range("store.keep_last", store.keep_last, store.keep_last > 0, "at least 1");
    let rate = store.bytes_per_second;
    issues.range("store.bytes_per_second", rate.unwrap_or(1), rate != Some(0), "at least 1");
}

fn export(config: &RunConfig, issues: &mut Issues) {
    if config.export.experts == ExportExperts::Packed && config.export.form == ExportForm::AsHeld {
        let with = "export.form = as-held".to_owned();
        let why = "packed experts are stored in high precision only";
        issues.add("export.experts", "packed", Why::Contradiction { with, why });
    }
}

fn on_reward_error(value: &Value, issues: &mut Issues) -> Option<OnRewardError> {
    match value {
        Value::String(word) if word == "drop" => Some(OnRewardError::Drop),
        Value::String(word) if word == "fail" => Some(OnRewardError::Fail),
        Value::Number(number) => number.as_f64().map(|reward| OnRewardError::Score(reward as f32)),
        _ => {
            issues.range("reward.on_error", value, false, "\"drop\", \"fail\" or a number");
            None
        }
    }
}

fn date(config: &RunConfig, issues: &mut Issues) -> Option<Date> {
    let date = Date::parse(&config.data.date);
    issues.range("data.date", &config.data.date, date.is_some(), "a date, YYYY-MM-DD");
    date.filter(|_| config.data.chat_template)
}

/// Makes every named plug-in once, to learn whether its name and options are good.
fn plugins(config: &RunConfig, issues: &mut Issues) {
    let mut tried = |section: &str, name: &str, options: &Map<String, Value>, made: miles_core::Result<()>| {
        if let Err(error) = made {
            let is_unknown = matches!(&error, miles_core::Error::Registry(registry::RegistryError::Unknown { .. }));
            match is_unknown || options.is_empty() {
                true => issues.add(&format!("{section}.name"), name, Why::Plugin(error)),
                false => issues.add(&format!("{section}.options"), Value::Object(options.clone()), Why::Plugin(error)),
            }
        }
    };
    let (reward, advantage) = (&config.reward, &config.advantage);
    let (loss, scheduler) = (&config.loss, &config.scheduler);
    tried("reward", &reward.name, &reward.options, registry::reward(&reward.name, &options(&reward.options)).map(drop));
    let made = registry::advantage(&advantage.name, &options(&advantage.options)).map(drop);
    tried("advantage", &advantage.name, &advantage.options, made);
    tried("loss", &loss.name, &loss.options, registry::loss(&loss.name, &options(&loss.options)).map(drop));
    let made = registry::scheduler(&scheduler.name, &options(&scheduler.options)).map(drop);
    tried("scheduler", &scheduler.name, &scheduler.options, made);
}

fn options(table: &Map<String, Value>) -> Value {
    if table.is_empty() { Value::Null } else { Value::Object(table.clone()) }
}

fn assemble(
    config: &RunConfig,
    model: &ModelConfig,
    context_tokens: usize,
    precision: PrecisionPlan,
    on_reward_error: OnRewardError,
    chat_template: Option<Date>,
) -> Plan {
    let (run, data, rollout, train) = (&config.run, &config.data, &config.rollout, &config.train);
    let sampling = Sampling {
        temperature: rollout.temperature,
        top_p: rollout.top_p,
        top_k: rollout.top_k,
        min_p: rollout.min_p,
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
            sampling: Sampling { temperature: config.eval.temperature, ..sampling.clone() },
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
        config_toml: config.to_toml(),
        fingerprint: ConfigFingerprint::of(config),
    }
}
