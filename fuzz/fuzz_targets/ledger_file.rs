//! Ledger files of any content: read version by version, each line kept or refused, then compared with themselves.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::digest::Digest;
use miles_core::policy::{ExportEvent, Ledger, LedgerEvent, LedgerFile, diff_ledgers};
use miles_fuzz::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("ledger-file"));

fuzz_target!(|bytes: &[u8]| {
    let path = SCRATCH.fill(&[("ledger.jsonl", bytes)]).join("ledger.jsonl");
    lines(bytes);
    let Ok(file) = LedgerFile::open(&path) else { return };
    let versions: Vec<_> = file.collect();
    let is_whole = versions.iter().all(Result::is_ok);
    for recorded in versions.into_iter().flatten() {
        assert!(!recorded.events().is_empty());
        for event in recorded.events() {
            assert_eq!(recorded.event(&event.tensor), Some(event));
            assert_eq!(event.version, recorded.version());
        }
        assert_eq!(LedgerFile::find(&path, recorded.version()).unwrap(), recorded);
    }
    match diff_ledgers(&path, &path) {
        Ok(diff) => assert!(is_whole && diff.parting.is_none()),
        Err(error) => assert!(!is_whole, "{error}"),
    }
});

fn lines(bytes: &[u8]) {
    let ledger = Ledger::discard();
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Ok(digest) = line.parse::<Digest>() {
            assert_eq!(digest.to_string(), line.to_lowercase());
        }
        if let Ok(event) = serde_json::from_str::<LedgerEvent>(line) {
            let again = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<LedgerEvent>(&again).unwrap(), event);
            let _ = ledger.record(&event);
        }
        if let Ok(event) = serde_json::from_str::<ExportEvent>(line) {
            let again = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<ExportEvent>(&again).unwrap(), event);
            let _ = ledger.record_export(&event);
        }
    }
}
