//! The rollout engine: samples groups of completions from one loaded policy version.
//!
//! ```text
//! GenerateRequest -> checks -> Generation { Schedule, KvCache, Sampler } -> Rollout
//!                              schedule: which rows the next forward computes      (schedule.rs)
//!                              batch:    those rows, packed without padding        (batch.rs)
//!                              forward:  the network over them, keys from the cache (operations.rs, attention.rs)
//!                              draw:     one token per output row                  (sampler.rs)
//! ```
//!
//! Every operation is batch-invariant and every draw is keyed by its coordinates, so a completion is the same tokens and
//! the same logprob bits whatever else runs beside it, however prompts are cut and whichever completions share a prefill.
//!
//! Keys and values live and die with a request, so [`RolloutStats::cached_tokens`](miles_core::plugin::RolloutStats) is
//! always 0, and each belongs to the policy that computed it. What a version that is loaded meanwhile does to a running
//! request is the [`PublicationMode`]: the request looks at the live version before each forward (live.rs).

mod attention;
mod batch;
mod cache;
mod checks;
mod generate;
mod live;
mod model;
mod operations;
mod sampler;
mod schedule;
mod sequence;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use miles_core::Result;
use miles_core::network::{Network, ParamId};
use miles_core::plugin::{
    ActivationDtype, CancelToken, EngineOptions, GenerateRequest, PublicationMode, Rollout, RolloutEngine, RolloutError,
};
use miles_core::policy::{PolicyError, PolicyStamp, PolicyTensor, Snapshot};
use miles_core::precision::PartitionPlan;

use crate::ops::Context;
use batch::Batch;
use cache::KvCache;
use generate::Generation;
use live::Live;
use model::LoadedPolicy;
use schedule::Limits;

/// The CPU rollout engine.
pub struct CpuEngine {
    context: Context,
    network: Arc<Network>,
    activations: ActivationDtype,
    partition: PartitionPlan,
    limits: Limits,
    context_tokens: usize,
    publication: PublicationMode,
    live: Live,
}

impl CpuEngine {
    /// An engine with nothing loaded. Sequences are bound by the options' context and by the network's own.
    ///
    /// # Errors
    /// If no completion may run, or worker threads cannot be started.
    pub fn new(options: EngineOptions, context: &Context) -> Result<Self> {
        if options.max_running == 0 {
            let (key, range) = ("max_running", "1 and above");
            return Err(RolloutError::BadSampling { key, value: 0.0, range }.into());
        }
        let context = match options.threads {
            None => context.clone(),
            Some(threads) => context.with_threads(threads)?,
        };
        Ok(CpuEngine {
            context,
            context_tokens: options.context_tokens.min(options.network.config.context_tokens),
            network: options.network,
            activations: options.activations,
            partition: options.partition,
            limits: Limits { max_running: options.max_running, prefill_tokens: PREFILL_TOKENS },
            publication: options.publication,
            live: Live::default(),
        })
    }

    /// Logits `[tokens, vocab]` of one sequence: row `t` is the distribution of token `t + 1`.
    ///
    /// # Errors
    /// If nothing is loaded, or the sequence is empty, too long, or holds an id outside the vocabulary.
    pub fn logits(&self, token_ids: &[u32]) -> Result<Vec<f32>> {
        let policy = self.live.policy()?;
        if token_ids.is_empty() {
            return Err(RolloutError::EmptyPrompt { key: 0 }.into());
        }
        checks::check_tokens(token_ids, self.network.config.vocab_size)?;
        if token_ids.len() > self.context_tokens {
            let (prompt_tokens, context_tokens) = (token_ids.len(), self.context_tokens);
            return Err(
                RolloutError::ContextExceeded { key: 0, prompt_tokens, max_new_tokens: 0, context_tokens }.into()
            );
        }
        let mut cache = KvCache::new(self.activations);
        let run = cache.open(policy.stamp(), self.network.config.layer_count());
        let mut batch = Batch::default();
        batch.push(token_ids, 0, None, run, true);
        batch.output_every_row();
        policy.forward(&batch, &mut cache)
    }

    /// Logprob of each token of a sequence after the first, `[tokens - 1]`, from its [`CpuEngine::logits`] divided by
    /// `temperature`.
    ///
    /// # Errors
    /// If nothing is loaded or an id is outside the vocabulary.
    pub fn next_token_logprobs(&self, token_ids: &[u32], logits: &[f32], temperature: f32) -> Result<Vec<f32>> {
        let policy = self.live.policy()?;
        let vocab_size = self.network.config.vocab_size;
        checks::check_tokens(token_ids, vocab_size)?;
        let next = token_ids.iter().skip(1);
        Ok(next.zip(logits.chunks_exact(vocab_size)).map(|(&id, row)| policy.logprob(row, temperature, id)).collect())
    }
}

#[async_trait]
impl RolloutEngine for CpuEngine {
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let (trainer, engine) = (snapshot.map().plan(), self.partition);
        if trainer != engine {
            return Err(PolicyError::PartitionMismatch { trainer, engine }.into());
        }
        let prepared = LoadedPolicy::new(&snapshot, &self.network, &self.context, self.activations)?;
        self.live.replace(prepared);
        Ok(())
    }

    fn loaded(&self) -> Option<PolicyStamp> {
        self.live.policy().ok().map(|policy| policy.stamp())
    }

    async fn generate(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Rollout> {
        self.live.policy()?;
        sampler::check_sampling(&request.sampling, self.network.config.vocab_size)?;
        checks::check_prompts(request, &self.network, self.context_tokens)?;
        Generation::new(&self.live, self.publication, request, self.limits)?.run(cancel)
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        self.live.policy()?.operand(id)
    }
}

impl std::fmt::Debug for CpuEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuEngine")
            .field("loaded", &self.loaded())
            .field("activations", &self.activations)
            .field("publication", &self.publication)
            .field("limits", &self.limits)
            .field("context_tokens", &self.context_tokens)
            .finish_non_exhaustive()
    }
}

/// Prompt tokens of one forward: enough rows to reuse each decoded weight, few enough that decoding completions do not
/// wait long and activations stay in cache.
const PREFILL_TOKENS: usize = 512;
