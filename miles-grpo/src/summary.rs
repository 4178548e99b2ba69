//! The last line of a run.

use std::fmt;

use miles_core::plugin::StepRecord;
use miles_core::policy::PolicyStamp;

/// What a run achieved, in one line.
///
/// ```text
/// reward first=0.4125 last=0.9031 held_out first=0.3900 last=0.8800 mismatch_max=0 versions=61 policy_digest=ab12...
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Mean reward of the first five steps.
    pub reward_first: f64,
    /// Mean reward of the last five steps.
    pub reward_last: f64,
    /// Held-out accuracy before the first step, where it was measured.
    pub held_out_first: Option<f64>,
    /// Held-out accuracy measured last.
    pub held_out_last: Option<f64>,
    /// Largest absolute difference of trainer and rollout logprob over the whole run.
    pub mismatch_max: f64,
    /// Policy versions made, the one that training started from included.
    pub versions: u64,
    /// The last policy.
    pub policy: PolicyStamp,
}

impl Summary {
    /// Sums up every step of a run.
    #[must_use]
    pub fn new(records: &[StepRecord], policy: PolicyStamp) -> Self {
        let first = &records[..records.len().min(STEPS)];
        let last = &records[records.len().saturating_sub(STEPS)..];
        let values = |key: &str| records.iter().filter_map(|record| record.number(key)).collect::<Vec<f64>>();
        let accuracies = values("eval/accuracy");
        let before = values("eval/accuracy_before").first().copied();
        Summary {
            reward_first: mean_reward(first),
            reward_last: mean_reward(last),
            held_out_first: before.or(accuracies.first().copied()),
            held_out_last: accuracies.last().copied().or(before),
            mismatch_max: values("train/mismatch_max_abs").into_iter().fold(0.0, f64::max),
            versions: policy.version.0 + 1,
            policy,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held_out = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |value| format!("{value:.4}"));
        write!(
            f,
            "reward first={:.4} last={:.4} held_out first={} last={} mismatch_max={} versions={} policy_digest={}",
            self.reward_first,
            self.reward_last,
            held_out(self.held_out_first),
            held_out(self.held_out_last),
            self.mismatch_max,
            self.versions,
            self.policy.digest
        )
    }
}

fn mean_reward(records: &[StepRecord]) -> f64 {
    let rewards: Vec<f64> = records.iter().filter_map(|record| record.number("rollout/reward_mean")).collect();
    if rewards.is_empty() { 0.0 } else { rewards.iter().sum::<f64>() / rewards.len() as f64 }
}

const STEPS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use miles_core::digest::Digest;
    use miles_core::policy::PolicyVersion;
    use serde_json::json;

    fn record(step: u64, extra: serde_json::Value) -> StepRecord {
        let mut values = serde_json::Map::new();
        values.insert("rollout/reward_mean".to_owned(), json!(step as f64 / 8.0));
        values.insert("train/mismatch_max_abs".to_owned(), json!(0.0));
        values.extend(extra.as_object().cloned().unwrap_or_default());
        StepRecord { step, values }
    }

    #[test]
    fn the_line_has_the_promised_form() {
        let mut records: Vec<StepRecord> = (0..8).map(|step| record(step, json!({}))).collect();
        records[0] = record(0, json!({ "eval/accuracy_before": 0.25 }));
        records[3] = record(3, json!({ "eval/accuracy": 0.5 }));
        records[7] = record(7, json!({ "eval/accuracy": 0.75 }));
        let policy = PolicyStamp { version: PolicyVersion(8), digest: Digest::of(b"p") };
        let line = Summary::new(&records, policy).to_string();
        let digest = Digest::of(b"p");
        assert_eq!(
            line,
            format!(
                "reward first=0.2500 last=0.6250 held_out first=0.2500 last=0.7500 mismatch_max=0 versions=9 \
                 policy_digest={digest}"
            )
        );
    }

    #[test]
    fn any_mismatch_at_any_step_is_in_the_line() {
        let records = [record(0, json!({ "train/mismatch_max_abs": 1e-7 })), record(1, json!({}))];
        let policy = PolicyStamp { version: PolicyVersion(2), digest: Digest::of(b"p") };
        let summary = Summary::new(&records, policy);
        assert_eq!(summary.mismatch_max, 1e-7);
        assert!(summary.to_string().contains("mismatch_max=0.0000001 "));
    }
}
