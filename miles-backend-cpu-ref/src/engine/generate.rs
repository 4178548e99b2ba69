//! The decode loop of one request: start what can start, compute one forward, draw, repeat.

use std::sync::Arc;

use miles_core::Result;
use miles_core::network::Network;
use miles_core::plugin::{
    CancelToken, Completion, CompletionGroup, GenerateRequest, PromptRequest, Rollout, RolloutError, RolloutStats,
};
use miles_core::random::Coordinates;
use rayon::prelude::*;

use super::batch::Batch;
use super::cache::{KvCache, RunId};
use super::model::LoadedPolicy;
use super::sampler::Sampler;
use super::schedule::{Chunk, CompletionId, Limits, Schedule, Step};
use super::sequence::Sequence;

/// One request on its way.
pub(super) struct Generation<'a> {
    policy: &'a LoadedPolicy,
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
    pub(super) fn new(policy: &'a LoadedPolicy, request: &'a GenerateRequest, limits: Limits) -> Self {
        let sizes = request.prompts.iter().map(|prompt| (prompt.tokens.len(), prompt.completions));
        let prompts = request.prompts.iter().map(|prompt| PromptState {
            completions: std::iter::repeat_with(CompletionState::default).take(prompt.completions).collect(),
            ..PromptState::default()
        });
        Generation {
            policy,
            request,
            sampler: Sampler { sampling: &request.sampling, seed: request.seed, isa: policy.isa() },
            schedule: Schedule::new(sizes, limits),
            cache: KvCache::new(policy.activations()),
            prompts: prompts.collect(),
            stats: RolloutStats::default(),
        }
    }

    /// Runs until every completion ended or `cancel` asks to stop, which is looked at before each forward.
    pub(super) fn run(mut self, cancel: &CancelToken) -> Result<Rollout> {
        loop {
            self.start_waiting()?;
            let step = self.schedule.step();
            if step.is_empty() || cancel.is_cancelled() {
                return Ok(self.finish());
            }
            let logits = self.forward(&step)?;
            self.apply(&step, logits)?;
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

    /// Logits `[output rows, vocab]` of a step: the last row of each prompt that ends in it, then every completion.
    fn forward(&mut self, step: &Step) -> Result<Vec<f32>> {
        let network = self.policy.network();
        let layers = network.config.layer_count();
        let mut batch = Batch::default();
        for chunk in &step.prefill {
            let run = *self.prompts[chunk.prompt].run.get_or_insert_with(|| self.cache.open(layers));
            let tokens = &self.request.prompts[chunk.prompt].tokens[chunk.start..chunk.end];
            batch.push(tokens, chunk.start, None, run, chunk.last);
            self.stats.prefilled_tokens += tokens.len();
        }
        for id in &step.decode {
            let prompt = &mut self.prompts[id.prompt];
            let completion = &mut prompt.completions[id.sample];
            let run = *completion.run.get_or_insert_with(|| self.cache.open(layers));
            let position = self.request.prompts[id.prompt].tokens.len() + completion.sequence.len() - 1;
            batch.push(completion.sequence.last().as_slice(), position, prompt.run, run, true);
        }
        self.policy.forward(&batch, &mut self.cache)
    }

    fn apply(&mut self, step: &Step, logits: Vec<f32>) -> Result<()> {
        let vocab = self.policy.network().config.vocab_size;
        let ended = step.prefill.iter().filter(|chunk| chunk.last).count();
        let (prompt_rows, decode_rows) = logits.split_at(ended * vocab);
        step.prefill.iter().for_each(|&chunk| self.schedule.prefilled(chunk));
        let ends = step.prefill.iter().filter(|chunk| chunk.last).map(|chunk: &Chunk| chunk.prompt);
        for (prompt, row) in ends.zip(prompt_rows.chunks_exact(vocab)) {
            self.prompts[prompt].first_logits = Some(row.into());
        }
        let rows: Vec<_> = step.decode.iter().copied().zip(decode_rows.chunks_exact(vocab)).collect();
        self.draw(&rows)
    }

    /// Draws one token per row, rows in parallel.
    fn draw<R: AsRef<[f32]> + Sync>(&mut self, rows: &[(CompletionId, R)]) -> Result<()> {
        let draw_row = |(id, logits): &(CompletionId, R)| self.draw_row(*id, logits.as_ref());
        let drawn: Vec<(u32, f32)> = self.policy.install(|| rows.par_iter().map(draw_row).collect::<Result<_>>())?;
        for (&(id, _), (token, logprob)) in rows.iter().zip(drawn) {
            self.stats.generated_tokens += 1;
            let completion = &mut self.prompts[id.prompt].completions[id.sample];
            if completion.sequence.push(token, logprob, &self.request.sampling) {
                self.end(id);
            }
        }
        Ok(())
    }

    fn draw_row(&self, id: CompletionId, logits: &[f32]) -> Result<(u32, f32)> {
        let key = self.request.prompts[id.prompt].key;
        let token = self.prompts[id.prompt].completions[id.sample].sequence.len();
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
        let stamp = self.policy.stamp();
        let group = |(prompt, state): (&PromptRequest, PromptState)| {
            let completion = |completion: CompletionState| completion.sequence.into_completion(stamp.version);
            let completions: Vec<Completion> = state.completions.into_iter().map(completion).collect();
            CompletionGroup { key: prompt.key, prompt_tokens: prompt.tokens.clone(), completions }
        };
        Rollout {
            groups: self.request.prompts.iter().zip(self.prompts).map(group).collect(),
            stamp,
            logprob_temperature: self.sampler.logprob_temperature(),
            stats: self.stats,
        }
    }
}

/// Refuses prompts that cannot be computed.
///
/// # Errors
/// A prompt without tokens, with an id outside the vocabulary, or that leaves no room for the longest completion.
pub(super) fn check_prompts(
    request: &GenerateRequest,
    network: &Network,
    context_tokens: usize,
) -> Result<(), RolloutError> {
    let (vocab_size, max_new_tokens) = (network.config.vocab_size, request.sampling.max_new_tokens);
    for prompt in &request.prompts {
        let (key, prompt_tokens) = (prompt.key, prompt.tokens.len());
        if prompt.tokens.is_empty() {
            return Err(RolloutError::EmptyPrompt { key });
        }
        check_tokens(&prompt.tokens, vocab_size)?;
        if prompt_tokens.saturating_add(max_new_tokens) > context_tokens {
            return Err(RolloutError::ContextExceeded { key, prompt_tokens, max_new_tokens, context_tokens });
        }
    }
    Ok(())
}

/// Refuses token ids outside the vocabulary.
///
/// # Errors
/// Names the first such id.
pub(super) fn check_tokens(tokens: &[u32], vocab_size: usize) -> Result<(), RolloutError> {
    match tokens.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(&id) => Err(RolloutError::TokenOutOfRange { id, vocab_size }),
    }
}
