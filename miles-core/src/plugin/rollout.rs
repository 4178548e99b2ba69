//! Sampling completions from a policy version.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{CancelToken, RolloutError, Sampling};
use crate::network::ParamId;
use crate::policy::{PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
use crate::{Error, Result};

/// Samples groups of completions from the live policy version.
#[async_trait]
pub trait RolloutEngine: Send + Sync {
    /// Swaps to a policy version, all or nothing: on error the old version stays live, and no running request notices.
    /// Cached keys and values of older versions are never used again. May be called while requests run; what becomes
    /// of them is the engine's [`PublicationMode`](super::PublicationMode).
    ///
    /// # Errors
    /// If the snapshot does not fit the network, a format is unsupported, or routed experts are cut otherwise than the
    /// engine was told ([`PolicyError::PartitionMismatch`](crate::policy::PolicyError::PartitionMismatch)).
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()>;

    /// The live policy version.
    fn loaded(&self) -> Option<PolicyStamp>;

    /// Samples every prompt's completions. Results are in request order and do not depend on batching, thread count
    /// or the other prompts. An engine that computes forward by forward looks at `cancel` before each.
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

/// One prompt and how many completions it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRequest {
    /// Which prompt this is, for the random numbers (its index in the data).
    pub key: u64,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Completions wanted; those of all prompts of a request are at most
    /// [`MAX_COMPLETIONS`](super::limits::MAX_COMPLETIONS).
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

/// What an engine returns: groups in request order, and the policies they came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// One group per prompt.
    pub groups: Vec<CompletionGroup>,
    /// The newest policy that the request computed with: without a publication on the way, the one that was live when
    /// it began.
    pub stamp: PolicyStamp,
    /// Every policy that a token of `groups` was drawn from, oldest version first. At most `stamp` alone, unless a
    /// version was published while the request ran.
    pub stamps: Vec<PolicyStamp>,
    /// Temperature that the logprobs are scaled by (the one transform that is applied to them).
    pub logprob_temperature: f32,
    /// What it took.
    pub stats: RolloutStats,
}

impl Rollout {
    /// Checks that every token says which of the rollout's policies it was drawn from: stamps with growing versions, up
    /// to [`Rollout::stamp`]; one version per token, of a stamp, never older than that of the token before.
    ///
    /// # Errors
    /// The first thing that is wrong, with its group, completion and token.
    pub fn check_versions(&self) -> Result<(), RolloutError> {
        let last = self.stamps.last().filter(|last| **last != self.stamp);
        let pairs = self.stamps.iter().zip(self.stamps.iter().skip(1)).chain(last.map(|last| (last, &self.stamp)));
        for (&older, &newer) in pairs {
            if older.version >= newer.version {
                return Err(RolloutError::StampOrder { older, newer });
            }
        }
        self.groups.iter().try_for_each(|group| self.check_group(group))
    }

    fn check_group(&self, group: &CompletionGroup) -> Result<(), RolloutError> {
        let key = group.key;
        for (sample, completion) in group.completions.iter().enumerate() {
            let (tokens, versions) = (completion.tokens.len(), completion.versions.len());
            if versions != tokens {
                return Err(RolloutError::VersionCount { key, sample, tokens, versions });
            }
            let mut newest = None;
            for (token, &version) in completion.versions.iter().enumerate() {
                if !self.stamps.iter().any(|stamp| stamp.version == version) {
                    let declared = self.stamps.iter().map(|stamp| stamp.version.0).collect();
                    return Err(RolloutError::UndeclaredVersion { key, sample, token, version, declared });
                }
                if let Some(before) = newest.filter(|&before| version < before) {
                    return Err(RolloutError::VersionDecreases { key, sample, token, version, before });
                }
                newest = Some(version);
            }
        }
        Ok(())
    }
}

/// Counts of one rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutStats {
    /// Prompt tokens computed for the first time.
    pub prefilled_tokens: usize,
    /// Prompt tokens that were shared instead of computed again.
    pub shared_tokens: usize,
    /// Prompt tokens found in a cache that outlives requests.
    pub cached_tokens: usize,
    /// Completion tokens drawn, those of aborted completions included.
    pub generated_tokens: usize,
    /// Tokens of prompts and completions whose keys and values were computed again, because a new version made the old
    /// ones useless.
    pub recomputed_tokens: usize,
    /// Completions that were dropped for a new version, finished ones of an unfinished group included.
    pub aborted_completions: usize,
    /// Their tokens.
    pub aborted_tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn stamp(version: u64) -> PolicyStamp {
        PolicyStamp { version: PolicyVersion(version), digest: Digest::of(&version.to_le_bytes()) }
    }

    fn rollout(stamps: &[u64], versions: &[&[u64]]) -> Rollout {
        let completion = |versions: &&[u64]| Completion {
            tokens: vec![1; versions.len()],
            logprobs: vec![-1.0; versions.len()],
            versions: versions.iter().copied().map(PolicyVersion).collect(),
            finish: FinishReason::Length,
        };
        let completions = versions.iter().map(completion).collect();
        Rollout {
            groups: vec![CompletionGroup { key: 8, prompt_tokens: vec![1], completions }],
            stamp: stamp(stamps.last().copied().unwrap_or(9)),
            stamps: stamps.iter().copied().map(stamp).collect(),
            logprob_temperature: 1.0,
            stats: RolloutStats::default(),
        }
    }

    #[test]
    fn tokens_of_declared_versions_in_order_pass() {
        rollout(&[], &[]).check_versions().unwrap();
        rollout(&[3], &[&[3, 3], &[]]).check_versions().unwrap();
        rollout(&[3, 5, 6], &[&[3, 5, 5, 6], &[6], &[3, 6]]).check_versions().unwrap();
        let ended_on_a_newer_one = Rollout { stamp: stamp(7), ..rollout(&[3], &[&[3]]) };
        ended_on_a_newer_one.check_versions().unwrap();
    }

    #[test]
    fn a_token_of_another_version_is_named() {
        let error = rollout(&[3, 5], &[&[3], &[3, 3, 4]]).check_versions().unwrap_err();
        let RolloutError::UndeclaredVersion { key: 8, sample: 1, token: 2, version: PolicyVersion(4), declared } =
            error
        else {
            panic!("{error}")
        };
        assert_eq!(declared, [3, 5]);
        let error = rollout(&[3, 5], &[&[3, 5, 3]]).check_versions().unwrap_err();
        assert!(matches!(error, RolloutError::VersionDecreases { key: 8, sample: 0, token: 2, .. }), "{error}");
        let mut short = rollout(&[3], &[&[3, 3]]);
        short.groups[0].completions[0].versions.pop();
        let error = short.check_versions().unwrap_err();
        assert!(matches!(error, RolloutError::VersionCount { key: 8, sample: 0, tokens: 2, versions: 1 }), "{error}");
    }

    #[test]
    fn stamps_that_do_not_grow_are_refused() {
        let mut twice = rollout(&[3, 3], &[&[3]]);
        twice.stamps[1].digest = Digest::of(b"other");
        let passed_by = Rollout { stamp: stamp(2), ..rollout(&[3], &[&[3]]) };
        for wrong in [rollout(&[5, 3], &[&[3]]), twice, passed_by] {
            let error = wrong.check_versions().unwrap_err();
            assert!(matches!(error, RolloutError::StampOrder { .. }), "{error}");
        }
    }
}
