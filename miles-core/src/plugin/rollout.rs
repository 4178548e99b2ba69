//! Sampling completions from a policy version.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::network::ParamId;
use crate::policy::{PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
use crate::{Error, Result};

/// Samples groups of completions from one loaded policy version.
#[async_trait]
pub trait RolloutEngine: Send + Sync {
    /// Swaps to a policy version, all or nothing: on error the old version stays live. Cached keys and values of older
    /// versions are never used again.
    ///
    /// # Errors
    /// If the snapshot does not fit the network, a format is unsupported, or routed experts are cut otherwise than the
    /// engine was told ([`PolicyError::PartitionMismatch`](crate::policy::PolicyError::PartitionMismatch)).
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()>;

    /// The live policy version.
    fn loaded(&self) -> Option<PolicyStamp>;

    /// Samples every prompt's completions. Results are in request order and do not depend on batching, thread count
    /// or the other prompts.
    ///
    /// # Errors
    /// If nothing is loaded, or a prompt does not fit the context.
    async fn generate(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Rollout>;

    /// One tensor of the live version as the engine multiplies it, read back from wherever it lies (packed, swizzled, on
    /// a device): codes and scales, or the decoded F32 values where the format is emulated.
    ///
    /// # Errors
    /// `Unsupported` unless the engine overrides it; if nothing is loaded.
    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        let _ = id;
        Err(operand_unsupported("rollout engine"))
    }
}

/// The answer of a part that cannot show its operands.
pub(super) fn operand_unsupported(part: &str) -> Error {
    Error::Unsupported {
        operation: "reading an operand back".to_owned(),
        backend: part.to_owned(),
        why: "it does not override `operand`".to_owned(),
    }
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits; 0 takes the largest logit.
    pub temperature: f32,
    /// Smallest set of tokens whose probability reaches this (1: all).
    pub top_p: f32,
    /// The k most likely tokens (0: all).
    pub top_k: usize,
    /// Tokens at least this fraction as likely as the likeliest (0: all).
    pub min_p: f32,
    /// Longest completion, in tokens.
    pub max_new_tokens: usize,
    /// Ids that end a completion; the id itself is part of it.
    pub eos_token_ids: Vec<u32>,
}

/// One prompt and how many completions it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRequest {
    /// Which prompt this is, for the random numbers (its index in the data).
    pub key: u64,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Completions wanted.
    pub completions: usize,
}

/// A batch of prompts to complete.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// Prompts.
    pub prompts: Vec<PromptRequest>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Seed of the run.
    pub seed: u64,
    /// Training step, part of every draw's coordinates.
    pub step: u64,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence id was drawn.
    Eos,
    /// The completion reached its longest length.
    Length,
    /// The request was cancelled.
    Cancelled,
}

/// One sampled continuation of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids, the end-of-sequence id included.
    pub tokens: Vec<u32>,
    /// Rollout logprob of each token: of the temperature-scaled distribution over the full vocabulary, before top-p,
    /// top-k and min-p (of the unscaled one when the temperature is 0).
    pub logprobs: Vec<f32>,
    /// Policy version that each token was drawn from.
    pub versions: Vec<PolicyVersion>,
    /// Why it ended.
    pub finish: FinishReason,
}

/// The completions of one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionGroup {
    /// The prompt's key.
    pub key: u64,
    /// The prompt's token ids.
    pub prompt_tokens: Vec<u32>,
    /// Its completions.
    pub completions: Vec<Completion>,
}

/// What an engine returns: groups in request order, and the policy they came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// One group per prompt.
    pub groups: Vec<CompletionGroup>,
    /// Policy that was live.
    pub stamp: PolicyStamp,
    /// Temperature that the logprobs are scaled by (the one transform that is applied to them).
    pub logprob_temperature: f32,
    /// What it took.
    pub stats: RolloutStats,
}

/// Counts of one rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutStats {
    /// Prompt tokens computed.
    pub prefilled_tokens: usize,
    /// Prompt tokens that were shared instead of computed again.
    pub shared_tokens: usize,
    /// Prompt tokens found in a cache that outlives requests.
    pub cached_tokens: usize,
    /// Completion tokens drawn.
    pub generated_tokens: usize,
}

/// Asks a running request to stop; clones share the request.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether stopping was asked for.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What can go wrong in a rollout.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// No policy version is loaded.
    #[error("the rollout engine has no policy version loaded")]
    NothingLoaded,
    /// A prompt and its completion do not fit the context.
    #[error(
        "prompt {key}: {prompt_tokens} prompt tokens and {max_new_tokens} new tokens exceed the context of {context_tokens} tokens"
    )]
    ContextExceeded {
        /// The prompt's key.
        key: u64,
        /// Its length.
        prompt_tokens: usize,
        /// Longest completion asked for.
        max_new_tokens: usize,
        /// Context length.
        context_tokens: usize,
    },
    /// A prompt without tokens.
    #[error("prompt {key} has no tokens")]
    EmptyPrompt {
        /// The prompt's key.
        key: u64,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// A sampling parameter outside its range.
    #[error("sampling parameter `{key}` = {value} is outside {range}")]
    BadSampling {
        /// Parameter.
        key: &'static str,
        /// Value.
        value: f64,
        /// Valid range.
        range: &'static str,
    },
    /// The logits of a row hold no finite number.
    #[error("prompt {key}, completion {sample}, token {token}: the logits are not finite")]
    NonFiniteLogits {
        /// The prompt's key.
        key: u64,
        /// Completion in the group.
        sample: usize,
        /// Token in the completion.
        token: usize,
    },
}
