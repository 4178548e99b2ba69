//! Everything between a plan and the first step.

use std::path::Path;
use std::sync::Arc;

use miles_core::checkpoint::Checkpoint;
use miles_core::format::{FormatId, FormatRule, builtin_rule};
use miles_core::model::ModelConfig;
use miles_core::network::Network;
use miles_core::plugin::{Backend, EngineOptions, RolloutEngine, Support, Trainer, TrainerInputs, TrainerOptions};
use miles_core::policy::{KnownPolicy, Ledger, PolicyContext, PolicyStamp, PolicyVersion, Snapshot};
use miles_core::precision::{PrecisionMap, PrecisionTable, TensorFormat, resolve_with};
use miles_core::{Error as CoreError, registry};

use crate::builder::RunBuilder;
use crate::checkpoint::{ResumeError, SavedLoop};
use crate::config::{ConfigErrors, ConfigIssue, Plan, PrecisionPlan, Why, check_held_out};
use crate::data::{ChatTemplate, PromptReader, PromptSet, TextTokenizer};
use crate::output::{OutputDir, truncate, write_whole};
use crate::parts::{Facts, Parts};
use crate::run::Run;
use crate::stages::publish;
use crate::track::MetricsFile;
use crate::{Error, Result};
use crate::{run_audit, store};

/// Prompts and the tokenizer that encoded them.
pub(crate) struct Data {
    pub tokenizer: TextTokenizer,
    pub train: PromptSet,
    pub held_out: Option<PromptSet>,
}

pub(crate) async fn setup(builder: RunBuilder) -> Result<Run> {
    let RunBuilder { plan, backend, reward, advantage, loss, scheduler, store, observers, interrupt } = builder;
    let backend = backend.map_or_else(|| registry::backend(&plan.run.backend, &serde_json::Value::Null), Ok)?;
    let reward = reward.map_or_else(|| registry::reward(&plan.reward.name, &plan.reward.options), Ok)?;
    let advantage = advantage.map_or_else(|| registry::advantage(&plan.advantage.name, &plan.advantage.options), Ok)?;
    let loss = loss.map_or_else(|| registry::loss(&plan.loss.name, &plan.loss.options), Ok)?;
    let scheduler = scheduler.map_or_else(|| registry::scheduler(&plan.scheduler.name, &plan.scheduler.options), Ok)?;

    let checkpoint = Checkpoint::open(&plan.model.dir)?;
    let map = Arc::new(precision_map(checkpoint.network(), &plan.precision)?);
    let notes = notes(&checkpoint, &map, &plan, &backend)?;
    let data = data(&plan, &checkpoint.network().config)?;

    let (out, is_resumed) = OutputDir::inspect(&plan.run.out, plan.run.existing)?;
    let saved = is_resumed.then(|| SavedLoop::newest(&out.checkpoints())).transpose()?;
    if let Some(saved) = &saved {
        saved.check_config(&plan.fingerprint)?;
        run_audit::check_saved(&out, saved, &KnownPolicy::of(checkpoint.network(), &map))?;
    }
    let saved = saved.map(|saved| saved.trainer_dir().map(|dir| (saved, dir))).transpose()?;
    let engine = engine(&plan, &backend, &checkpoint, &map)?;
    let trainer = trainer(&plan, &backend, &checkpoint, &map, &out)?;

    // Everything that may be refused was looked at: from here on the run writes.
    out.claim(is_resumed)?;
    let state = saved.as_ref().map(|(saved, _)| &saved.state);
    let metrics = MetricsFile::open(&out.metrics(), state.map_or(0, |state| state.metrics_bytes))?;
    truncate(&out.ledger(), state.map_or(0, |state| state.ledger_bytes))?;
    write_whole(&out.config(), plan.config_toml.as_bytes())?;
    let ledger = Ledger::append(&out.ledger()).map_err(CoreError::from)?;

    let store = match store {
        Some(store) => store,
        None => store::open(&plan.store, &out, checkpoint.network(), &map, state.map(|state| state.policy.version))?,
    };
    let mut parts = Parts { engine, trainer, store, reward, advantage, loss, scheduler, observers };
    let started = match &saved {
        None => start(&plan, &mut parts, &ledger)?,
        Some((saved, trainer_dir)) => resume(&plan, &mut parts, saved, trainer_dir)?,
    };
    publish::deliver(parts.store.as_ref(), parts.engine.as_ref(), &started.published).await?;
    let facts = Facts {
        template: checkpoint.template(),
        precision: PrecisionTable::new(checkpoint.network(), &map),
        map_digest: map.digest(),
        backend: format!("{} on {}", backend.name, backend.device),
        notes,
        reference: started.reference,
    };
    Ok(Run::new(plan, parts, data, out, metrics, ledger, interrupt, facts, started))
}

/// Where a run stands before its next step.
pub(crate) struct Started {
    pub reference: PolicyStamp,
    pub published: Arc<Snapshot>,
    pub steps_done: u64,
}

fn start(plan: &Plan, parts: &mut Parts, ledger: &Ledger) -> Result<Started> {
    let published = publish::quantize(parts.trainer.as_mut(), first_version(plan, ledger))?;
    Ok(Started { reference: published.stamp(), published, steps_done: 0 })
}

/// Makes the reference and the saved version again and compares both with what was saved. Their quantization is in the
/// ledger already.
fn resume(plan: &Plan, parts: &mut Parts, saved: &SavedLoop, trainer_dir: &Path) -> Result<Started> {
    let (state, ledger) = (&saved.state, Ledger::discard());
    let trainer = parts.trainer.as_mut();
    let reference = publish::quantize(trainer, first_version(plan, &ledger))?.stamp();
    same("reference policy", state.reference, reference)?;
    trainer.restore(trainer_dir)?;
    let step = state.steps_done.saturating_sub(1);
    let context = PolicyContext { run: &plan.run.name, step, version: state.policy.version, ledger: &ledger };
    let published = publish::quantize(trainer, context)?;
    same("live policy", state.policy, published.stamp())?;
    parts.scheduler.restore(&state.scheduler);
    tracing::info!(step = state.steps_done, policy = %state.policy, "resumed");
    Ok(Started { reference, published, steps_done: state.steps_done })
}

fn first_version<'a>(plan: &'a Plan, ledger: &'a Ledger) -> PolicyContext<'a> {
    PolicyContext { run: &plan.run.name, step: 0, version: PolicyVersion(0), ledger }
}

fn same(what: &'static str, saved: PolicyStamp, found: PolicyStamp) -> Result<(), ResumeError> {
    if saved == found { Ok(()) } else { Err(ResumeError::PolicyChanged { what, saved, found }) }
}

/// The precision map; rules may name formats that other crates registered.
pub(crate) fn precision_map(network: &Network, plan: &PrecisionPlan) -> Result<PrecisionMap> {
    let mut registered: Vec<Box<dyn FormatRule>> = Vec::new();
    for rule in &plan.rules {
        if let TensorFormat::Quantized(format) = &rule.format
            && builtin_rule(format).is_none()
        {
            registered.push(registry::format(format.as_str(), &serde_json::Value::Null)?);
        }
    }
    let formats: Vec<&dyn FormatRule> = registered.iter().map(Box::as_ref).collect();
    Ok(resolve_with(network, plan.recipe, &plan.rules, &formats, plan.partition).map_err(CoreError::from)?)
}

/// Refuses what the backend cannot do; tells what a person should know.
fn notes(checkpoint: &Checkpoint, map: &PrecisionMap, plan: &Plan, backend: &Backend) -> Result<Vec<String>> {
    let mut notes = plan.precision.recipe.notes(checkpoint.network());
    let unsupported = |operation: String, why: &str| {
        Error::from(CoreError::Unsupported { operation, backend: backend.name.clone(), why: why.to_owned() })
    };
    let activations = plan.precision.activations;
    if !backend.capabilities.activations.contains(&activations) {
        return Err(unsupported(format!("{activations:?} activations"), "it does not declare this activation type"));
    }
    let masters = plan.train.masters;
    if !backend.capabilities.masters.contains(&masters) {
        return Err(unsupported(
            format!("{masters:?} master weights"),
            "it does not declare this number type of masters",
        ));
    }
    backend.capabilities.check_publication(&backend.name, plan.rollout.publication)?;
    let mut formats: Vec<&FormatId> = Vec::new();
    for entry in map.entries() {
        if let TensorFormat::Quantized(format) = &entry.format
            && !formats.contains(&format)
        {
            formats.push(format);
        }
    }
    for format in formats {
        match backend.capabilities.format(format) {
            Support::Native => {}
            Support::Emulated => notes.push(format!("{format} is emulated on {}", backend.name)),
            Support::Unsupported => {
                return Err(unsupported(format!("format {format}"), "it does not declare this format"));
            }
        }
    }
    notes.iter().for_each(|note| tracing::info!("{note}"));
    Ok(notes)
}

fn data(plan: &Plan, model: &ModelConfig) -> Result<Data> {
    let tokenizer = TextTokenizer::read(&plan.model.dir)?;
    let template = plan.data.chat_template.map(|date| ChatTemplate::read(&plan.model.dir, date)).transpose()?;
    let reader = PromptReader {
        tokenizer: &tokenizer,
        template: template.as_ref(),
        fields: &plan.data.fields,
        context_tokens: plan.model.context_tokens,
        max_new_tokens: plan.rollout.sampling.max_new_tokens,
        vocab_size: model.vocab_size,
    };
    let train = reader.read(&plan.data.train)?;
    let held_out = plan.evaluation.as_ref().map(|evaluation| reader.read(&evaluation.data)).transpose()?;
    if let (Some(evaluation), Some(held_out)) = (&plan.evaluation, &held_out) {
        check_held_out(evaluation, held_out.len())?;
    }
    if train.len() < plan.rollout.prompts_per_step {
        let with = format!("data.train = {}, which has {} prompts", plan.data.train.display(), train.len());
        let issue = ConfigIssue {
            key: "rollout.prompts_per_step".to_owned(),
            value: plan.rollout.prompts_per_step.to_string(),
            why: Why::Contradiction { with, why: "a step holds no prompt twice" },
        };
        return Err(ConfigErrors { issues: vec![issue] }.into());
    }
    Ok(Data { tokenizer, train, held_out })
}

fn engine(
    plan: &Plan,
    backend: &Backend,
    checkpoint: &Checkpoint,
    map: &PrecisionMap,
) -> Result<Arc<dyn RolloutEngine>> {
    Ok((backend.engine)(EngineOptions {
        network: Arc::clone(checkpoint.network()),
        activations: plan.precision.activations,
        max_running: plan.rollout.max_running,
        context_tokens: plan.model.context_tokens,
        threads: plan.run.threads,
        partition: map.plan(),
        publication: plan.rollout.publication,
    })?)
}

fn trainer(
    plan: &Plan,
    backend: &Backend,
    checkpoint: &Checkpoint,
    map: &Arc<PrecisionMap>,
    out: &OutputDir,
) -> Result<Box<dyn Trainer>> {
    let train = &plan.train;
    Ok((backend.trainer)(TrainerInputs {
        network: Arc::clone(checkpoint.network()),
        map: Arc::clone(map),
        weights: checkpoint,
        quantizer: Arc::clone(&backend.quantizer),
        options: TrainerOptions {
            activations: plan.precision.activations,
            optimizer: train.optimizer.clone(),
            max_grad_norm: train.max_grad_norm,
            micro_batch_tokens: train.micro_batch_tokens,
            train_router: train.train_router,
            masters: train.masters,
            seed: plan.run.seed,
            threads: plan.run.threads,
        },
        scratch: Some(out.scratch()),
    })?)
}
