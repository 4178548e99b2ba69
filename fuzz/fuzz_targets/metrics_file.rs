//! The metrics file of any content: read, written, read again.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_fuzz::Scratch;
use miles_grpo::track::{MetricsFile, read_metrics};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("metrics-file"));

fuzz_target!(|bytes: &[u8]| {
    let dir = SCRATCH.fill(&[("metrics.jsonl", bytes)]);
    let Ok(records) = read_metrics(&dir.join("metrics.jsonl")) else { return };
    let path = dir.join("again.jsonl");
    let mut file = MetricsFile::open(&path, 0).unwrap();
    records.iter().for_each(|record| file.append(record).unwrap());
    assert_eq!(read_metrics(&path).unwrap(), records);
});
