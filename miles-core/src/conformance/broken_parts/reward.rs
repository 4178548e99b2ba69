//! A reward with one defect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use async_trait::async_trait;

use super::defects;
use crate::plugin::{Reward, RewardError, RewardInput};

defects! {
    /// What is wrong with a reward.
    RewardDefect {
        /// O20: gives 0 where it cannot judge.
        SwallowsErrors => "judging/refused",
        /// Rewards the opposite.
        Inverted => "judging/known",
        /// Every third sample gets more, whichever it is.
        CountsCalls => "judging/repeatable",
        /// Panics on an empty completion.
        Panics => "hostile/completions",
        /// Divides by the length of the completion.
        NotFinite => "hostile/completions",
        /// Reads the answer without looking whether there is one.
        TrustsTheRow => "hostile/rows",
        /// O20: works on the thread that made it and no other.
        OneThread => "threads/any",
    }
}

/// A good reward with one defect.
pub struct BrokenReward {
    inner: Arc<dyn Reward>,
    defect: RewardDefect,
    calls: AtomicUsize,
    home: ThreadId,
}

impl BrokenReward {
    /// Breaks a reward.
    #[must_use]
    pub fn new(inner: Arc<dyn Reward>, defect: RewardDefect) -> Self {
        BrokenReward { inner, defect, calls: AtomicUsize::new(0), home: thread::current().id() }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("called from another thread")]
struct WrongThread;

#[async_trait]
impl Reward for BrokenReward {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let judged = self.inner.score(input).await;
        match self.defect {
            RewardDefect::SwallowsErrors => Ok(judged.unwrap_or(0.0)),
            RewardDefect::Inverted => Ok(1.0 - judged?),
            RewardDefect::CountsCalls => Ok(judged? + f32::from(u8::from(calls % 3 == 2))),
            RewardDefect::Panics => {
                assert!(!input.completion.is_empty(), "no first character");
                judged
            }
            RewardDefect::NotFinite => Ok(judged? / input.completion.len() as f32 * input.completion.len() as f32),
            RewardDefect::TrustsTheRow => {
                assert!(input.answer.is_some(), "no answer in the row");
                judged
            }
            RewardDefect::OneThread if thread::current().id() != self.home => {
                Err(RewardError::Other(Box::new(WrongThread)))
            }
            RewardDefect::OneThread => judged,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::conformance::{Outcome, REWARD_GROUPS, RewardSample, RewardSubject, rewards};

    /// 1 for the expected answer.
    struct Equal;

    #[async_trait]
    impl Reward for Equal {
        async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
            let answer = input.answer.ok_or(RewardError::MissingField { field: "answer" })?;
            Ok(f32::from(u8::from(input.completion == answer)))
        }
    }

    fn subject(reward: Arc<dyn Reward>) -> RewardSubject {
        let sample = |completion, answer| RewardSample::new("3+4=", completion, answer);
        RewardSubject {
            name: "equal".to_owned(),
            reward,
            known: vec![(sample("7", Some("7")), 1.0), (sample("8", Some("7")), 0.0)],
            refused: vec![sample("7", None)],
        }
    }

    #[test]
    fn a_good_reward_passes_and_may_judge_everything() {
        let report = rewards(&subject(Arc::new(Equal)));
        report.require().unwrap();
        let mut groups: Vec<&str> = report.cases.iter().map(|case| case.group()).collect();
        groups.dedup();
        assert_eq!(groups, REWARD_GROUPS);
        let report = rewards(&RewardSubject { refused: Vec::new(), ..subject(Arc::new(Equal)) });
        report.require().unwrap();
        assert!(matches!(report.outcome("judging/refused"), Some(Outcome::Unsupported { .. })));
    }

    #[test]
    fn a_subject_without_a_known_sample_fails() {
        let report = rewards(&RewardSubject { known: Vec::new(), ..subject(Arc::new(Equal)) });
        assert!(matches!(report.outcome("judging/known"), Some(Outcome::Failed { .. })));
    }

    #[test]
    fn every_broken_reward_is_caught_by_the_case_of_its_defect() {
        for &defect in RewardDefect::ALL {
            let report = rewards(&subject(Arc::new(BrokenReward::new(Arc::new(Equal), defect))));
            let outcome = report.outcome(defect.caught_by());
            assert!(matches!(outcome, Some(Outcome::Failed { .. })), "{defect:?}\n{report}");
        }
    }
}
