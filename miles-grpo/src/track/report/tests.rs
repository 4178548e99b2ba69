//! The page as a whole, and the shapes of its charts.

use miles_core::digest::Digest;
use miles_core::plugin::StepRecord;
use miles_core::policy::{PolicyStamp, PolicyVersion};
use miles_core::precision::{PartitionPlan, PrecisionTable, TableRow};
use serde_json::json;

use super::charts::{Chart, number};
use super::series::{Series, below, stacked};
use super::{Report, page, write};
use crate::summary::Summary;

fn records(steps: u64) -> Vec<StepRecord> {
    (0..steps)
        .map(|step| {
            let x = step as f64;
            let values = json!({
                "rollout/reward_mean": 0.2 + 0.1 * x, "rollout/reward_std": 0.1, "eval/accuracy": 0.3,
                "train/mismatch_max_abs": 0.0, "train/mismatch_k3": 0.0, "train/kl_ref": 1e-4 * x,
                "train/grad_norm": 1.0, "train/grad_norm/embedding": 0.5, "train/grad_norm/layers.0": 0.25,
                "rollout/response_tokens_mean": 4.0, "train/entropy": 1.5,
                "perf/seconds_rollout": 0.5, "perf/seconds_reward": 0.0, "perf/seconds_train": 1.0,
                "perf/seconds_quantize": 0.125, "perf/seconds_publish": 0.125, "perf/peak_rss_bytes": 1_048_576
            });
            StepRecord { step, values: values.as_object().cloned().unwrap() }
        })
        .collect()
}

fn table() -> PrecisionTable {
    let row = TableRow {
        role: "expert-gate",
        layers: "0-1".to_owned(),
        format: "nvfp4".to_owned(),
        backward: "dequantized",
        rule: "roles <experts> & \"more\"".to_owned(),
        tensors: 8,
        elements: 4096,
        bf16_bytes: 8192,
        bytes: Some(2304),
    };
    PrecisionTable {
        recipe: "nvfp4-dequantized".to_owned(),
        plan: PartitionPlan::WHOLE,
        digest: "ab12".to_owned(),
        rows: vec![row],
    }
}

fn with_report<T>(steps: u64, use_it: impl FnOnce(&Report<'_>) -> T) -> T {
    let records = records(steps);
    let policy = PolicyStamp { version: PolicyVersion(steps), digest: Digest::of(b"p") };
    let summary = Summary::new(&records, policy);
    let notes = ["mxfp8 is emulated".to_owned()];
    use_it(&Report {
        run: "a <run>",
        records: &records,
        summary: &summary,
        precision: &table(),
        backend: "fake on nothing",
        notes: &notes,
        config: "[run]\nname = \"x\"",
    })
}

#[test]
fn the_page_is_whole_and_loads_nothing() {
    let html = with_report(6, |report| page::html(report).unwrap());
    assert_eq!(html.matches("<svg").count(), 10);
    assert_eq!(html.matches("</svg>").count(), 10);
    for word in ["a &lt;run&gt;", "mxfp8 is emulated", "nvfp4-dequantized", "expert-gate", "layers.0", "2304", "ab12"] {
        assert!(html.contains(word), "{word}");
    }
    for foreign in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    let links = html.matches("http").count();
    let namespaces = html.matches("http://www.w3.org/2000/svg").count();
    assert_eq!(links, namespaces, "nothing but the SVG namespace looks like an address");
}

#[test]
fn runs_of_no_step_and_one_step_have_a_page_too() {
    for steps in [0, 1] {
        let html = with_report(steps, |report| page::html(report).unwrap());
        assert!(html.ends_with("</html>\n") && !html.contains("NaN"));
    }
}

#[test]
fn the_file_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    std::fs::write(&path, "old").unwrap();
    with_report(2, |report| write(&path, report).unwrap());
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("<!doctype html>"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn stacks_are_running_sums_and_parts_keep_their_order() {
    let records = records(2);
    let parts = below(&records, "train/grad_norm/");
    assert_eq!(parts.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(), ["embedding", "layers.0"]);
    let sums = stacked(parts);
    assert_eq!(sums[1].points, [(1.0, 0.75), (2.0, 0.75)]);
}

#[test]
fn flat_and_far_out_lines_can_be_drawn() {
    for value in [0.0, -3.0, 1e-30, 1e30] {
        let line = Series { name: String::new(), points: vec![(1.0, value), (2.0, value)] };
        assert!(Chart::lines("flat", vec![line]).svg().unwrap().contains("<svg"));
    }
}

#[test]
fn axis_numbers_are_short() {
    let texts: Vec<String> = [0.0, 0.25, 1.0, 1e-5, 2.5e7, -0.5].into_iter().map(number).collect();
    assert_eq!(texts, ["0", "0.25", "1", "1.0e-5", "2.5e7", "-0.5"]);
}
