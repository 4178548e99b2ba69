//! One completion while it grows, and why it ends.

use miles_core::plugin::{Completion, FinishReason, Sampling};
use miles_core::policy::PolicyVersion;

/// Tokens drawn so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    versions: Vec<PolicyVersion>,
    finish: Option<FinishReason>,
}

impl Sequence {
    /// Appends a token that was drawn from `version`; returns whether the completion ended with it.
    ///
    /// Any of the end-of-sequence ids ends it, and at the longest length `Eos` goes before `Length`.
    pub(super) fn push(&mut self, token: u32, logprob: f32, version: PolicyVersion, sampling: &Sampling) -> bool {
        self.tokens.push(token);
        self.logprobs.push(logprob);
        self.versions.push(version);
        self.finish = if sampling.eos_token_ids.contains(&token) {
            Some(FinishReason::Eos)
        } else if self.tokens.len() == sampling.max_new_tokens {
            Some(FinishReason::Length)
        } else {
            None
        };
        self.finish.is_some()
    }

    /// Tokens drawn. The last one is computed by the next forward.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The completion; one that had not ended was cancelled.
    pub(super) fn into_completion(self) -> Completion {
        Completion {
            tokens: self.tokens,
            logprobs: self.logprobs,
            versions: self.versions,
            finish: self.finish.unwrap_or(FinishReason::Cancelled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling() -> Sampling {
        let eos_token_ids = vec![7, 8, 9];
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens: 3, eos_token_ids }
    }

    fn grow(tokens: &[u32]) -> (Vec<bool>, Completion) {
        let mut sequence = Sequence::default();
        let push = |(&token, version)| sequence.push(token, -1.0, PolicyVersion(version), &sampling());
        let ended = tokens.iter().zip(4..).map(push).collect();
        (ended, sequence.into_completion())
    }

    #[test]
    fn every_end_of_sequence_id_ends_a_completion_and_is_part_of_it() {
        for eos in [7, 8, 9] {
            let (ended, completion) = grow(&[1, eos]);
            assert_eq!((ended, completion.finish), (vec![false, true], FinishReason::Eos));
            assert_eq!(completion.tokens, [1, eos]);
            assert_eq!(completion.versions, [PolicyVersion(4), PolicyVersion(5)]);
        }
    }

    #[test]
    fn the_longest_length_ends_a_completion() {
        assert_eq!(grow(&[1, 2, 3]).1.finish, FinishReason::Length);
        assert_eq!(grow(&[1, 2, 8]).1.finish, FinishReason::Eos);
    }

    #[test]
    fn a_completion_that_had_not_ended_was_cancelled() {
        assert_eq!(grow(&[1, 2]).1.finish, FinishReason::Cancelled);
        assert_eq!(grow(&[]).1.finish, FinishReason::Cancelled);
    }
}
