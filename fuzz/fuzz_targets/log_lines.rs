//! Lines of the ledger and of the metrics file, of any content.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::digest::Digest;
use miles_core::policy::{Ledger, LedgerEvent};
use miles_fuzz::Scratch;
use miles_grpo::track::{MetricsFile, read_metrics};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("log-lines"));

fuzz_target!(|bytes: &[u8]| {
    let dir = SCRATCH.fill(&[("metrics.jsonl", bytes)]);
    if let Ok(records) = read_metrics(&dir.join("metrics.jsonl")) {
        let path = dir.join("again.jsonl");
        let mut file = MetricsFile::open(&path, 0).unwrap();
        records.iter().for_each(|record| file.append(record).unwrap());
        assert_eq!(read_metrics(&path).unwrap(), records);
    }
    let ledger = Ledger::discard();
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Ok(digest) = line.parse::<Digest>() {
            assert_eq!(digest.to_string(), line.to_lowercase());
        }
        let Ok(event) = serde_json::from_str::<LedgerEvent>(line) else { continue };
        let again = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<LedgerEvent>(&again).unwrap(), event);
        let _ = ledger.record(&event);
    }
});
