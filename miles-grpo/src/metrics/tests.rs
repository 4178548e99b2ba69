//! Figures by hand.

use miles_core::digest::Digest;
use miles_core::plugin::{SampleScores, StepRecord, TrainBatch, TrainSample};
use miles_core::policy::{PolicyStamp, PolicyVersion};
use serde_json::json;

use super::memory::parse;
use super::{Mismatch, deterministic, entropy, kl_to_reference, mismatch, peak_rss_bytes, spread};

fn batch(samples: &[(&[f32], Option<&[f32]>)]) -> TrainBatch {
    let samples = samples
        .iter()
        .map(|(rollout, reference)| TrainSample {
            tokens: vec![1; rollout.len() + 2],
            prompt_tokens: 2,
            rollout_logprobs: rollout.to_vec(),
            reference_logprobs: reference.map(<[f32]>::to_vec),
            advantage: 1.0,
        })
        .collect();
    let stamp = PolicyStamp { version: PolicyVersion(3), digest: Digest::of(b"policy") };
    TrainBatch::new(samples, stamp, 1.0).unwrap()
}

fn scores(logprobs: &[&[f32]]) -> Vec<SampleScores> {
    logprobs
        .iter()
        .map(|logprobs| SampleScores { logprobs: logprobs.to_vec(), entropies: vec![0.5; logprobs.len()] })
        .collect()
}

#[test]
fn equal_logprobs_have_no_mismatch_at_all() {
    let batch = batch(&[(&[-0.1, -2.0], None), (&[-7.5], None)]);
    let found = mismatch(&batch, &scores(&[&[-0.1, -2.0], &[-7.5]]));
    assert_eq!(found, Mismatch { max_abs: 0.0, k3: 0.0 });
}

#[test]
fn the_largest_difference_counts_wherever_it_is() {
    let batch = batch(&[(&[-1.0, -2.0], None), (&[-3.0], None)]);
    let found = mismatch(&batch, &scores(&[&[-1.0, -2.25], &[-3.5]]));
    assert_eq!(found.max_abs, 0.5);
    let k3 = |d: f64| d.exp() - d - 1.0;
    assert!((found.k3 - (k3(-0.25) + k3(-0.5)) / 3.0).abs() < 1e-12, "{found:?}");
}

#[test]
fn a_nan_is_never_skipped() {
    let batch = batch(&[(&[-1.0, -2.0, -3.0], None)]);
    for place in 0..3 {
        let mut logprobs = [-1.0, -2.0, -3.5];
        logprobs[place] = f32::NAN;
        assert!(mismatch(&batch, &scores(&[&logprobs])).max_abs.is_nan(), "NaN at {place}");
    }
}

#[test]
fn divergence_from_the_reference_is_a_token_mean_and_absent_without_one() {
    let both = batch(&[(&[-1.0], Some(&[-1.0])), (&[-2.0, -2.0], Some(&[-1.5, -2.0]))]);
    let found = kl_to_reference(&both, &scores(&[&[-1.0], &[-2.0, -2.0]])).unwrap();
    assert!((found - (0.5f64.exp() - 1.5) / 3.0).abs() < 1e-12, "{found}");
    let half = batch(&[(&[-1.0], Some(&[-1.0])), (&[-2.0], None)]);
    assert_eq!(kl_to_reference(&half, &scores(&[&[-1.0], &[-2.0]])), None);
}

#[test]
fn spread_is_mean_and_population_deviation() {
    let found = spread(&[1.0, 0.0, 0.0, 0.0]);
    assert_eq!((found.mean, found.deviation), (0.25, 0.1875f64.sqrt()));
    assert_eq!(spread(&[0.5; 7]).deviation, 0.0);
    assert_eq!(spread(&[]).mean, 0.0);
}

#[test]
fn entropy_is_a_token_mean() {
    let mut two = scores(&[&[-1.0], &[-1.0, -1.0, -1.0]]);
    two[0].entropies = vec![1.5];
    assert_eq!(entropy(&two), 0.75);
}

#[test]
fn only_figures_of_time_and_memory_are_left_out_of_comparisons() {
    let values = json!({ "train/loss": 1.0, "perf/seconds_train": 2.0, "perf/peak_rss_bytes": 3, "policy_version": 1 });
    let record = StepRecord { step: 4, values: values.as_object().cloned().unwrap() };
    let kept = deterministic(&record);
    assert_eq!(kept.values.keys().collect::<Vec<_>>(), ["train/loss", "policy_version"]);
}

#[test]
fn peak_memory_is_read_in_kibibytes() {
    assert_eq!(parse("VmPeak:\t  99 kB\nVmHWM:\t   12 kB\nVmRSS: 1 kB\n"), Some(12 * 1024));
    assert_eq!(parse("VmRSS: 1 kB\n"), None);
    assert_eq!(parse("VmHWM: twelve kB\n"), None);
    if cfg!(target_os = "linux") {
        assert!(peak_rss_bytes().unwrap() > 1 << 20);
    }
}
