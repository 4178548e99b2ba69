//! The decode loop of one request: follow the live version, start what can start, compute one forward, draw, repeat.

use std::sync::Arc;

use miles_core::Result;
use miles_core::plugin::{
    CancelToken, Completion, CompletionGroup, GenerateRequest, PromptRequest, PublicationMode, Rollout, RolloutError,
    RolloutStats,
};
use miles_core::policy::PolicyStamp;
use miles_core::random::Coordinates;
use rayon::prelude::*;

use super::batch::Batch;
use super::cache::{KvCache, RunId};
use super::live::Live;
use super::model::LoadedPolicy;
use super::sampler::Sampler;
use super::schedule::{CompletionId, Limits, Schedule, Step};
use super::sequence::Sequence;

/// One request on its way.
pub(super) struct Generation<'a> {
    live: &'a Live,
    publication: PublicationMode,
    policy: Arc<LoadedPolicy>,
    /// Every policy that the request computed with, oldest first; the last one is `policy`.
    stamps: Vec<PolicyStamp>,
    /// Whether a token was drawn from `policy`.
    has_drawn: bool,
    request: &'a GenerateRequest,
    sampler: Sampler<'a>,
    schedule: Schedule,
    cache: KvCache,
    prompts: Vec<PromptState>,
    stats: RolloutStats,
}

/// What one prompt holds while its completions need it.
#[derive(Default)]
struct PromptState {
    run: Option<RunId>,
    /// Logits after the last prompt token, from which every completion draws its first token.
    first_logits: Option<Arc<[f32]>>,
    completions: Vec<CompletionState>,
}

#[derive(Default)]
struct CompletionState {
    sequence: Sequence,
    run: Option<RunId>,
}

impl<'a> Generation<'a> {
    /// A request that begins on the live version.
    ///
    /// # Errors
    /// If nothing is loaded.
    pub(super) fn new(
        live: &'a Live,
        publication: PublicationMode,
        request: &'a GenerateRequest,
        limits: Limits,
    ) -> Result<Self> {
        let policy = live.policy()?;
        let sizes = request.prompts.iter().map(|prompt| (prompt.tokens.len(), prompt.completions));
        let prompts = request.prompts.iter().map(|prompt| PromptState {
            completions: std::iter::repeat_with(CompletionState::default).take(prompt.completions).collect(),
            ..PromptState::default()
        });
        Ok(Generation {
            live,
            publication,
            stamps: vec![policy.stamp()],
            has_drawn: false,
            request,
            sampler: Sampler { sampling: &request.sampling, seed: request.seed, isa: policy.isa() },
            schedule: Schedule::new(sizes, limits),
            cache: KvCache::new(policy.activations()),
            prompts: prompts.collect(),
            stats: RolloutStats::default(),
            policy,
        })
    }

    /// Runs until every completion ended or `cancel` asks to stop, which is looked at before each forward.
    pub(super) fn run(mut self, cancel: &CancelToken) -> Result<Rollout> {
        while !cancel.is_cancelled() {
            self.follow_live();
            self.start_waiting()?;
            let step = self.schedule.step();
            if step.is_empty() {
                break;
            }
            let logits = self.forward(&step)?;
            self.apply(&step, logits)?;
        }
        Ok(self.finish())
    }

    /// Moves to the live version if it is newer and there is something left to compute with it.
    fn follow_live(&mut self) {
        // Versions that come faster than keys can be computed again must not keep completions from going on.
        let may_move = match self.publication {
            PublicationMode::Finish => false,
            PublicationMode::Continue => self.has_drawn || self.stamps.len() == 1,
            PublicationMode::AbortAndResubmit => true,
        };
        if !may_move || self.schedule.is_done() {
            return;
        }
        let Some(newer) = self.live.newer_than(self.policy.stamp().version) else { return };
        self.stamps.push(newer.stamp());
        (self.policy, self.has_drawn) = (newer, false);
        self.drop_keys();
        if self.publication == PublicationMode::AbortAndResubmit {
            self.begin_open_groups_again();
        }
    }

    /// Drops everything that the old version computed but has not yet become a token: keys, values, first logits. The
    /// schedule then asks for the same tokens again.
    fn drop_keys(&mut self) {
        self.cache.clear();
        self.schedule.keys_dropped();
        for prompt in &mut self.prompts {
            (prompt.run, prompt.first_logits) = (None, None);
            prompt.completions.iter_mut().for_each(|completion| completion.run = None);
        }
    }

    /// Drops every token of the groups that are not whole.
    fn begin_open_groups_again(&mut self) {
        for prompt in self.schedule.begin_open_groups_again() {
            for completion in &mut self.prompts[prompt].completions {
                let tokens = std::mem::take(completion).sequence.tokens().len();
                self.stats.aborted_completions += usize::from(tokens > 0);
                self.stats.aborted_tokens += tokens;
            }
        }
    }

    /// Starts waiting completions while slots are free; each draws its first token from its prompt's last row.
    fn start_waiting(&mut self) -> Result<()> {
        loop {
            let started: Vec<CompletionId> = std::iter::from_fn(|| self.schedule.start()).collect();
            if started.is_empty() {
                return Ok(());
            }
            let mut rows = Vec::with_capacity(started.len());
            for &id in &started {
                if let Some(logits) = &self.prompts[id.prompt].first_logits {
                    rows.push((id, Arc::clone(logits)));
                }
                if id.sample > 0 {
                    self.stats.shared_tokens += self.request.prompts[id.prompt].tokens.len();
                }
            }
            for id in started.into_iter().filter(|id| self.schedule.all_started(id.prompt)) {
                self.prompts[id.prompt].first_logits = None;
            }
            self.draw(&rows)?;
        }
    }

    /// Logits `[output rows, vocab]` of a step: the last row of each prompt that a completion waits for, then the last
    /// row of every completion that the step brings up to date.
    fn forward(&mut self, step: &Step) -> Result<Vec<f32>> {
        let (stamp, layers) = (self.policy.stamp(), self.policy.network().config.layer_count());
        let mut batch = Batch::default();
        for chunk in &step.prefill {
            let run = *self.prompts[chunk.prompt].run.get_or_insert_with(|| self.cache.open(stamp, layers));
            let tokens = &self.request.prompts[chunk.prompt].tokens[chunk.start..chunk.end];
            batch.push(tokens, chunk.start, None, run, chunk.is_drawn_from);
            self.stats.prefilled_tokens += tokens.len() - chunk.again;
            self.stats.recomputed_tokens += chunk.again;
        }
        for piece in &step.decode {
            let prompt = &mut self.prompts[piece.id.prompt];
            let completion = &mut prompt.completions[piece.id.sample];
            let run = *completion.run.get_or_insert_with(|| self.cache.open(stamp, layers));
            let position = self.request.prompts[piece.id.prompt].tokens.len() + piece.start;
            let tokens = &completion.sequence.tokens()[piece.start..piece.end];
            batch.push(tokens, position, prompt.run, run, piece.is_drawn_from);
            self.stats.recomputed_tokens += piece.again;
        }
        self.policy.forward(&batch, &mut self.cache)
    }

    fn apply(&mut self, step: &Step, logits: Vec<f32>) -> Result<()> {
        self.schedule.computed(step);
        let mut rows = logits.chunks_exact(self.policy.network().config.vocab_size);
        for (chunk, row) in step.prefill.iter().filter(|chunk| chunk.is_drawn_from).zip(rows.by_ref()) {
            self.prompts[chunk.prompt].first_logits = Some(row.into());
        }
        let drawn_from = step.decode.iter().filter(|piece| piece.is_drawn_from);
        let rows: Vec<_> = drawn_from.map(|piece| piece.id).zip(rows).collect();
        self.draw(&rows)
    }

    /// Draws one token per row, rows in parallel.
    fn draw<R: AsRef<[f32]> + Sync>(&mut self, rows: &[(CompletionId, R)]) -> Result<()> {
        let draw_row = |(id, logits): &(CompletionId, R)| self.draw_row(*id, logits.as_ref());
        let drawn: Vec<(u32, f32)> = self.policy.install(|| rows.par_iter().map(draw_row).collect::<Result<_>>())?;
        let version = self.policy.stamp().version;
        self.has_drawn |= !rows.is_empty();
        for (&(id, _), (token, logprob)) in rows.iter().zip(drawn) {
            self.stats.generated_tokens += 1;
            let completion = &mut self.prompts[id.prompt].completions[id.sample];
            if completion.sequence.push(token, logprob, version, &self.request.sampling) {
                self.end(id);
            }
        }
        Ok(())
    }

    fn draw_row(&self, id: CompletionId, logits: &[f32]) -> Result<(u32, f32)> {
        let key = self.request.prompts[id.prompt].key;
        let token = self.prompts[id.prompt].completions[id.sample].sequence.tokens().len();
        let at = Coordinates { step: self.request.step, prompt: key, sample: id.sample as u32, token: token as u32 };
        let drawn = self.sampler.draw(logits, at);
        let drawn = drawn.ok_or(RolloutError::NonFiniteLogits { key, sample: id.sample, token })?;
        Ok((drawn, self.policy.logprob(logits, self.sampler.logprob_temperature(), drawn)))
    }

    /// Frees what an ended completion held, and with the last of a prompt what the prompt held.
    fn end(&mut self, id: CompletionId) {
        let prompt = &mut self.prompts[id.prompt];
        if let Some(run) = prompt.completions[id.sample].run.take() {
            self.cache.close(run);
        }
        if self.schedule.finish(id)
            && let Some(run) = prompt.run.take()
        {
            self.cache.close(run);
        }
    }

    fn finish(self) -> Rollout {
        let group = |(prompt, state): (&PromptRequest, PromptState)| {
            let completion = |completion: CompletionState| completion.sequence.into_completion();
            let completions: Vec<Completion> = state.completions.into_iter().map(completion).collect();
            CompletionGroup { key: prompt.key, prompt_tokens: prompt.tokens.clone(), completions }
        };
        let groups: Vec<CompletionGroup> = self.request.prompts.iter().zip(self.prompts).map(group).collect();
        let is_drawn_from = |stamp: &PolicyStamp| {
            let mut completions = groups.iter().flat_map(|group| &group.completions);
            completions.any(|completion| completion.versions.contains(&stamp.version))
        };
        Rollout {
            stamps: self.stamps.iter().copied().filter(is_drawn_from).collect(),
            groups,
            stamp: self.policy.stamp(),
            logprob_temperature: self.sampler.logprob_temperature(),
            stats: self.stats,
        }
    }
}
