//! From a [`RunConfig`] to a [`Plan`]: every range, name and contradiction.

use miles_core::model::ModelConfig;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::precision::{PartitionPlan, Recipe};
use miles_core::registry;
use serde_json::{Map, Value};

use super::assemble::{assemble, options};
use super::limits::{LIMITS, OPTIONAL};
use super::{ConfigErrors, ConfigIssue, OnRewardError, Plan, PrecisionPlan, RunConfig, Why, products};
use crate::data::Date;
use crate::export::{ExportExperts, ExportForm};
use crate::output::replaced_by;

/// Checks everything and builds the plan.
pub(super) fn plan(config: &RunConfig) -> Result<Plan, ConfigErrors> {
    let mut issues = Issues::default();
    let model = model(config, &mut issues);
    run(config, &mut issues);
    numbers(config, &mut issues);
    let context_tokens = context(config, model.as_ref(), &mut issues);
    rollout(config, context_tokens, &mut issues);
    train(config, &mut issues);
    evaluation(config, &mut issues);
    files(config, &mut issues);
    export(config, &mut issues);
    let recipe = issues.take("precision.recipe", &config.precision.recipe, config.precision.recipe.parse::<Recipe>());
    let (shards, axis) = (config.precision.expert_tensor_parallel, config.precision.partition_axis);
    // No shards at all were refused with the other numbers.
    let partition = PartitionPlan::new(shards, axis).ok();
    let precision = recipe.zip(partition).map(|(recipe, partition)| PrecisionPlan {
        recipe,
        rules: config.precision.rules.clone(),
        activations: config.precision.activations,
        partition,
    });
    let on_reward_error = on_reward_error(&config.reward.on_error, &mut issues);
    let date = date(config, &mut issues);
    plugins(config, &mut issues);
    let config_toml = issues.take("(config)", "", config.to_toml());
    match (issues.found.is_empty(), model, precision, on_reward_error, config_toml) {
        (true, Some(model), Some(precision), Some(on_reward_error), Some(config_toml)) => {
            Ok(assemble(config, &model, context_tokens, precision, on_reward_error, date, config_toml))
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

    /// As [`Issues::add`], unless something is wrong with the key already.
    fn once(&mut self, key: &str, value: impl ToString, why: Why) {
        if self.found.iter().all(|issue| issue.key != key) {
            self.add(key, value, why);
        }
    }

    fn range(&mut self, key: &str, value: impl ToString, fits: bool, range: &'static str) {
        if !fits {
            self.add(key, value, Why::OutOfRange { range: range.to_owned() });
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

/// Every number against the table of limits, and counts against one another.
fn numbers(config: &RunConfig, issues: &mut Issues) {
    for (key, value) in config.flattened() {
        let Some((_, limit)) = LIMITS.iter().find(|(known, _)| *known == key) else { continue };
        let is_left_out = value.is_null() && OPTIONAL.contains(&key.as_str());
        if !is_left_out && !limit.holds(&value) {
            // A number that is not finite is no JSON.
            let shown = if value.is_null() { "not finite".to_owned() } else { value.to_string() };
            issues.add(&key, shown, Why::OutOfRange { range: limit.to_string() });
        }
    }
    if issues.found.iter().all(|issue| !matches!(issue.why, Why::OutOfRange { .. })) {
        issues.found.extend(products::too_large(config));
    }
}

/// Context length in effect; without a model, the one asked for.
fn context(config: &RunConfig, model: Option<&ModelConfig>, issues: &mut Issues) -> usize {
    let of_model = model.map_or(usize::MAX, |model| model.context_tokens);
    let Some(asked) = config.model.context_tokens else {
        return of_model;
    };
    if asked > of_model {
        let with = format!("the model's context of {of_model} tokens");
        issues.once("model.context_tokens", asked, Why::Contradiction { with, why: "it is longer" });
    }
    asked
}

fn run(config: &RunConfig, issues: &mut Issues) {
    let run = &config.run;
    issues.range("run.name", format!("{:?}", run.name), !run.name.is_empty(), "not empty");
    issues.range("run.out", run.out.display(), !run.out.as_os_str().is_empty(), "a directory");
}

fn rollout(config: &RunConfig, context_tokens: usize, issues: &mut Issues) {
    let rollout = &config.rollout;
    let equal_draws = [
        ("rollout.temperature", rollout.temperature, rollout.temperature == 0.0),
        ("rollout.top_k", rollout.top_k as f64, rollout.top_k == 1),
        ("rollout.min_p", rollout.min_p, rollout.min_p == 1.0),
    ];
    for (key, value, _) in equal_draws.into_iter().filter(|(_, _, is_greedy)| *is_greedy) {
        let with = format!("rollout.group_size = {}", rollout.group_size);
        let why = "without randomness the completions of a group are all the same";
        issues.add(key, value, Why::Contradiction { with, why });
    }
    if rollout.max_new_tokens >= context_tokens {
        let with = format!("the context of {context_tokens} tokens");
        let why = "a prompt needs at least one token beside the completion";
        issues.once("rollout.max_new_tokens", rollout.max_new_tokens, Why::Contradiction { with, why });
    }
}

fn train(config: &RunConfig, issues: &mut Issues) {
    let train = &config.train;
    if train.mini_batches > config.rollout.prompts_per_step {
        let with = format!("rollout.prompts_per_step = {}", config.rollout.prompts_per_step);
        let why = "a mini-batch holds whole groups";
        issues.once("train.mini_batches", train.mini_batches, Why::Contradiction { with, why });
    }
    if train.learning_rate * train.weight_decay > 1.0 {
        let with = format!("train.learning_rate = {:?}", train.learning_rate);
        let why = "their product is above 1, so that each step would turn the weights around";
        issues.once("train.weight_decay", format!("{:?}", train.weight_decay), Why::Contradiction { with, why });
    }
}

fn evaluation(config: &RunConfig, issues: &mut Issues) {
    let eval = &config.eval;
    if eval.temperature == 0.0 && eval.samples > 1 {
        let with = format!("eval.samples = {}", eval.samples);
        let why = "without randomness every sample of a prompt is the same";
        issues.add("eval.temperature", eval.temperature, Why::Contradiction { with, why });
    }
}

/// That every file is there, and none of them is one that the run itself replaces.
fn files(config: &RunConfig, issues: &mut Issues) {
    let (train, eval) = (&config.data.train, config.data.eval.as_ref());
    let is_named = !train.as_os_str().is_empty();
    if !is_named {
        issues.add("data.train", "", Why::Missing);
    }
    let data = [("data.train", is_named.then_some(train)), ("data.eval", eval)];
    for (key, path) in data.into_iter().filter_map(|(key, path)| Some((key, path?))) {
        if !path.is_file() {
            issues.add(key, path.display(), Why::NoSuchFile);
        }
    }
    for (key, path) in [("model.dir", Some(&config.model.dir)), ("data.train", Some(train)), ("data.eval", eval)] {
        if let Some((path, output)) = path.and_then(|path| Some((path, replaced_by(&config.run.out, path)?))) {
            issues.once(key, path.display(), Why::Replaced { output });
        }
    }
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
        Value::Number(number) if fits_f32(number.as_f64()) => {
            number.as_f64().map(|reward| OnRewardError::Score(reward as f32))
        }
        _ => {
            let range = "\"drop\", \"fail\" or a number that an F32 can hold";
            issues.range("reward.on_error", value, false, range);
            None
        }
    }
}

/// Whether a number stays finite, and 0 only what was 0, when it is rounded to F32.
fn fits_f32(number: Option<f64>) -> bool {
    number.is_some_and(|number| (number as f32).is_finite() && ((number as f32) != 0.0 || number == 0.0))
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
