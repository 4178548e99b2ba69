//! What can go wrong in a rollout.

use crate::policy::{PolicyStamp, PolicyVersion};

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
    #[error("sampling parameter `{key}` = {value:?} is outside its range, {range}")]
    BadSampling {
        /// Parameter.
        key: &'static str,
        /// Value.
        value: f64,
        /// Valid range.
        range: &'static str,
    },
    /// More completions than one request may have.
    #[error("{completions} completions in one request, more than the limit of {limit}")]
    TooManyCompletions {
        /// Of all prompts together; the largest number if they cannot be counted.
        completions: usize,
        /// Most that are accepted.
        limit: usize,
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
    /// A batch that asks for keys and values which the cache does not hold for the policy that computes.
    #[error("the cache holds no keys and values of {policy} for a sequence of the batch")]
    MissingKeys {
        /// Policy that computes.
        policy: PolicyStamp,
    },
    /// Stamps of a rollout whose versions do not grow.
    #[error("the rollout names {newer} after {older}; its versions must grow")]
    StampOrder {
        /// Stamp in front.
        older: PolicyStamp,
        /// Stamp behind it.
        newer: PolicyStamp,
    },
    /// Not one version per token.
    #[error("prompt {key}, completion {sample}: {versions} versions for {tokens} tokens")]
    VersionCount {
        /// The prompt's key.
        key: u64,
        /// Completion in the group.
        sample: usize,
        /// Its tokens.
        tokens: usize,
        /// Its versions.
        versions: usize,
    },
    /// A token of a policy that the rollout does not name.
    #[error(
        "prompt {key}, completion {sample}: token {token} was drawn from version {version}, the rollout names {declared:?}"
    )]
    UndeclaredVersion {
        /// The prompt's key.
        key: u64,
        /// Completion in the group.
        sample: usize,
        /// Token in the completion.
        token: usize,
        /// Its version.
        version: PolicyVersion,
        /// Versions that the rollout names.
        declared: Vec<u64>,
    },
    /// A token of an older policy than the token before.
    #[error(
        "prompt {key}, completion {sample}: token {token} was drawn from version {version}, the one before from {before}"
    )]
    VersionDecreases {
        /// The prompt's key.
        key: u64,
        /// Completion in the group.
        sample: usize,
        /// Token in the completion.
        token: usize,
        /// Its version.
        version: PolicyVersion,
        /// Version of the token before.
        before: PolicyVersion,
    },
}
