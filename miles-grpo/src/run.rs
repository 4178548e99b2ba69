//! The loop.

use std::sync::Arc;

use miles_core::plugin::{Event, Schedule, ScheduleView, StepRecord};
use miles_core::policy::{Ledger, Snapshot};
use miles_core::precision::PrecisionTable;

use crate::builder::RunBuilder;
use crate::checkpoint::{LoopState, save};
use crate::config::Plan;
use crate::output::{OutputDir, Prefix, length};
use crate::parts::{Facts, Parts};
use crate::setup::{Data, Started};
use crate::stages::{
    Clock, Judge, RolloutRequest, Stage, StageError, Versioning, advantage, batch, evaluate, publish, reward, rollout,
    update,
};
use crate::track::report::{self, Report};
use crate::track::{MetricsFile, read_metrics};
use crate::{Error, Interrupt, Result, Summary, export, metrics};

/// One run, ready for its next step.
pub struct Run {
    plan: Plan,
    parts: Parts,
    data: Data,
    out: OutputDir,
    metrics: MetricsFile,
    ledger: Ledger,
    interrupt: Interrupt,
    facts: Facts,
    published: Arc<Snapshot>,
    steps_done: u64,
    saved_steps: Option<u64>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether it was interrupted before its last step.
    pub interrupted: bool,
    /// The run in figures.
    pub summary: Summary,
}

impl Run {
    /// Starts to build a run.
    #[must_use]
    pub fn builder(plan: Plan) -> RunBuilder {
        RunBuilder::new(plan)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a run, made in one place")]
    pub(crate) fn new(
        plan: Plan,
        parts: Parts,
        data: Data,
        out: OutputDir,
        metrics: MetricsFile,
        ledger: Ledger,
        interrupt: Interrupt,
        facts: Facts,
        started: Started,
    ) -> Self {
        let Started { published, steps_done, .. } = started;
        Run { plan, parts, data, out, metrics, ledger, interrupt, facts, published, steps_done, saved_steps: None }
    }

    /// The precision map of the run, for people.
    #[must_use]
    pub fn precision(&self) -> &PrecisionTable {
        &self.facts.precision
    }

    /// Takes every step that is left, then exports the policy and writes the report.
    ///
    /// # Errors
    /// Whatever ends the run early. Checkpoints saved before stay as they are.
    pub async fn run(mut self) -> Result<Outcome> {
        let stamp = self.published.stamp();
        self.notify(&Event::Started { step: self.steps_done, steps: self.plan.run.steps, stamp })?;
        let mut before = if self.steps_done == 0 { self.evaluate().await? } else { None };
        while let Some(mut record) = self.step().await? {
            self.steps_done += 1;
            let after = if self.is_evaluated() { self.evaluate().await? } else { None };
            for (key, accuracy) in [("eval/accuracy_before", before.take()), ("eval/accuracy", after)] {
                record.values.extend(accuracy.map(|value| (key.to_owned(), value.into())));
            }
            self.metrics.append(&record)?;
            let observed = self.notify(&Event::Step(&record));
            let is_interrupted = self.interrupt.is_requested();
            if observed.is_err() || is_interrupted || self.is_saved() {
                self.save()?;
            }
            observed?;
            if is_interrupted {
                break;
            }
        }
        self.finish()
    }

    /// One step; `None` when there is none left.
    async fn step(&mut self) -> Result<Option<StepRecord>> {
        let Some(indices) = self.schedule()? else { return Ok(None) };
        let (plan, parts, data, step) = (&self.plan, &mut self.parts, &self.data, self.steps_done);
        let (live, trainer) = (self.published.stamp(), parts.trainer.as_mut());
        let mut clock = Clock::start();

        let request = RolloutRequest {
            prompts: &data.train,
            indices: &indices,
            completions: plan.rollout.group_size,
            sampling: &plan.rollout.sampling,
            seed: plan.run.seed,
            step,
        };
        let sampled = rollout::sample(parts.engine.as_ref(), request, live).await?;
        clock.lap(Stage::Rollout);

        let judge = Judge { reward: parts.reward.as_ref(), tokenizer: &data.tokenizer, on_error: plan.on_reward_error };
        let rewarded = reward::judge(judge, &data.train, sampled).await?;
        clock.lap(Stage::Reward);

        let credited = advantage::credit(parts.advantage.as_ref(), rewarded)?;
        let packed = batch::pack(&credited, step)?;
        let packed = batch::with_reference(trainer, packed)?;

        let learning_rate = plan.train.learning_rate.at(step);
        let versioning = Versioning { run: &plan.run.name, step, ledger: &self.ledger, live };
        let (mini_batches, loss) = (plan.train.mini_batches, parts.loss.as_ref());
        let updated = update::update(trainer, &packed, mini_batches, loss, learning_rate, versioning, &mut clock)?;
        clock.lap(Stage::Train);

        let snapshot = publish::quantize_updated(trainer, &updated, versioning)?;
        clock.lap(Stage::Quantize);
        publish::deliver(parts.store.as_ref(), parts.engine.as_ref(), &snapshot).await?;
        clock.lap(Stage::Publish);

        parts.scheduler.observe(step, &credited.rewarded().prompt_rewards());
        let record = metrics::record(metrics::StepFacts {
            step,
            credited: &credited,
            packed: &packed,
            updated: &updated,
            learning_rate,
            published: snapshot.stamp(),
            seconds: clock.seconds(),
            peak_rss_bytes: metrics::peak_rss_bytes(),
        })?;
        self.published = snapshot;
        Ok(Some(record))
    }

    /// The next step's prompts; `None` at the end.
    fn schedule(&mut self) -> Result<Option<Vec<usize>>> {
        let (step, steps, prompts) = (self.steps_done, self.plan.run.steps, self.data.train.len());
        if step >= steps {
            return Ok(None);
        }
        let (prompts_per_step, seed) = (self.plan.rollout.prompts_per_step, self.plan.run.seed);
        let view = ScheduleView { step, steps, prompts_per_step, prompts, seed };
        let Schedule::Step { prompts: chosen } = self.parts.scheduler.next(&view) else { return Ok(None) };
        let bad = |why: String| Err(StageError::BadSchedule { step, why }.into());
        if chosen.is_empty() {
            return bad("names no prompt".to_owned());
        }
        for (place, &index) in chosen.iter().enumerate() {
            if index >= prompts {
                return bad(format!("names prompt {index} of {prompts}"));
            }
            if chosen[..place].contains(&index) {
                return bad(format!("names prompt {index} twice"));
            }
        }
        Ok(Some(chosen))
    }

    fn is_evaluated(&self) -> bool {
        let every = self.plan.evaluation.as_ref().and_then(|evaluation| evaluation.every);
        self.steps_done == self.plan.run.steps || every.is_some_and(|every| self.steps_done.is_multiple_of(every))
    }

    async fn evaluate(&self) -> Result<Option<f64>> {
        let (Some(plan), Some(held_out)) = (&self.plan.evaluation, &self.data.held_out) else { return Ok(None) };
        let (reward, tokenizer) = (self.parts.reward.as_ref(), &self.data.tokenizer);
        let judge = Judge { reward, tokenizer, on_error: self.plan.on_reward_error };
        let at = (self.plan.run.seed, self.steps_done);
        evaluate::evaluate(self.parts.engine.as_ref(), judge, held_out, plan, at, self.published.stamp()).await
    }

    fn is_saved(&self) -> bool {
        self.plan.checkpoint.every.is_some_and(|every| self.steps_done.is_multiple_of(every))
    }

    fn save(&mut self) -> Result<()> {
        self.ledger.flush().map_err(miles_core::Error::from)?;
        let (metrics, ledger) = (self.out.metrics(), self.out.ledger());
        let (metrics_bytes, ledger_bytes) = (self.metrics.bytes()?, length(&ledger)?);
        let state = LoopState {
            steps_done: self.steps_done,
            policy: self.published.stamp(),
            reference: self.facts.reference,
            precision_map: self.facts.map_digest,
            scheduler: self.parts.scheduler.state(),
            metrics_bytes,
            metrics_digest: Prefix::of(&metrics, metrics_bytes)?.digest,
            ledger_bytes,
            ledger_digest: Prefix::of(&ledger, ledger_bytes)?.digest,
            config_digest: self.plan.fingerprint.digest(),
            config: self.plan.fingerprint.clone(),
        };
        save(&self.out.checkpoints(), &state, self.parts.trainer.as_ref(), self.plan.checkpoint.keep_last)?;
        self.saved_steps = Some(self.steps_done);
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome> {
        let interrupted = self.interrupt.is_requested() && self.steps_done < self.plan.run.steps;
        if self.plan.checkpoint.at_end && self.saved_steps != Some(self.steps_done) {
            self.save()?;
        }
        if !interrupted {
            let (dir, form) = (self.out.policy(), self.plan.export);
            export::export(&self.published, &self.facts.template, &dir, form)?;
            let made_by = (self.plan.run.name.as_str(), self.steps_done.saturating_sub(1));
            export::record(&self.published, &dir, form, made_by, &self.ledger)?;
        }
        let stamp = self.published.stamp();
        let records = read_metrics(&self.out.metrics())?;
        let summary = Summary::new(&records, stamp);
        let report = Report {
            run: &self.plan.run.name,
            records: &records,
            summary: &summary,
            precision: &self.facts.precision,
            backend: &self.facts.backend,
            notes: &self.facts.notes,
            config: &self.plan.config_toml,
        };
        report::write(&self.out.report(), &report)?;
        self.notify(&Event::Finished { steps: self.steps_done, interrupted, stamp })?;
        Ok(Outcome { interrupted, summary })
    }

    fn notify(&mut self, event: &Event<'_>) -> Result<()> {
        self.parts.observers.iter_mut().try_for_each(|observer| observer.observe(event)).map_err(Error::from)
    }
}
