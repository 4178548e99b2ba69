use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::digest::Digest;
use crate::policy::FileDigest;

fn event(version: u64, tensor: &str) -> LedgerEvent {
    LedgerEvent {
        run: "test".to_owned(),
        step: version,
        version: PolicyVersion(version),
        tensor: tensor.to_owned(),
        source_digest: Digest::of(tensor.as_bytes()),
        source_dtype: "bf16".to_owned(),
        format: "mxfp8".to_owned(),
        quantizer: "test/1".to_owned(),
        output_digest: Digest::of(&version.to_le_bytes()),
    }
}

fn export(version: u64, file: &str) -> ExportEvent {
    let digest = FileDigest { bytes: 1, digest: Digest::of(b"f") };
    ExportEvent {
        run: "test".to_owned(),
        step: version,
        version: PolicyVersion(version),
        precision_map: Digest::of(b"m"),
        policy_digest: Digest::of(b"p"),
        as_held: true,
        files: BTreeMap::from([(file.to_owned(), digest)]),
    }
}

fn text(event: &impl serde::Serialize) -> String {
    format!("{}\n", serde_json::to_string(event).unwrap())
}

fn read(content: impl AsRef<[u8]>) -> Result<Vec<RecordedVersion>, PolicyError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.jsonl");
    fs::write(&path, content).unwrap();
    LedgerFile::open(&path)?.collect()
}

fn error(content: impl AsRef<[u8]>) -> LedgerError {
    match read(content) {
        Err(PolicyError::Ledger(error)) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn versions_come_one_after_another_with_their_exports() {
    let lines = [text(&event(0, "a")), text(&event(0, "b")), text(&event(2, "a")), text(&export(2, "x/y.json"))];
    let versions = read(lines.concat()).unwrap();
    let names = |version: &RecordedVersion| version.events().iter().map(|e| e.tensor.clone()).collect::<Vec<_>>();
    assert_eq!(versions.len(), 2);
    assert_eq!((versions[0].version(), names(&versions[0])), (PolicyVersion(0), vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!((versions[1].version(), versions[1].export()), (PolicyVersion(2), Some(&export(2, "x/y.json"))));
    assert_eq!(versions[0].event("b"), Some(&event(0, "b")));
    assert_eq!((versions[0].event("c"), versions[0].export()), (None, None));
}

#[test]
fn the_same_quantization_twice_is_no_contradiction() {
    let mut other_quantizer = event(0, "a");
    other_quantizer.quantizer = "other/1".to_owned();
    let versions = read([text(&event(0, "a")), text(&event(0, "a")), text(&other_quantizer)].concat()).unwrap();
    assert_eq!(versions[0].events(), [event(0, "a")]);
    assert_eq!(versions[0].repeats().map(|at| at.line).collect::<Vec<_>>(), [2, 3]);
    let twice = [text(&event(0, "a")), text(&export(0, "f")), text(&export(0, "f")), text(&export(0, "g"))];
    let versions = read(twice.concat()).unwrap();
    assert_eq!(versions[0].exports().map(|(_, at)| at.line).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(versions[0].export(), Some(&export(0, "g")));
}

#[test]
fn lines_and_extents_are_those_of_the_file() {
    let lines = [text(&event(0, "a")), text(&event(1, "a")), text(&event(1, "b")), text(&export(1, "f"))];
    let versions = read(lines.concat()).unwrap();
    assert_eq!(versions[1].extent().map(|at| at.line), [2, 3]);
    assert_eq!(versions[1].line("b").map(|at| at.line), Some(3));
    assert!(versions[1].line("b").unwrap().to_string().ends_with("ledger.jsonl:3"));
    assert_eq!(versions[1].line("c"), None);
}

/// Read leniently, each of these would pass for what was written.
#[test]
fn a_line_in_other_bytes_than_a_ledger_writes_is_named() {
    let (good, exported) = (text(&event(0, "a")), text(&export(0, "f")));
    let digest = Digest::of(b"f").to_string();
    let twice = format!("\"f\":{{\"bytes\":2,\"digest\":\"{digest}\"}},\"f\"");
    let changed = [
        good.replace('\n', "\r\n"),
        good.replace("\"step\":0", "\"step\": 0"),
        good.replace("\"tensor\":\"a\"", "\"tensor\":\"\\u0061\""),
        good.replace(&Digest::of(b"a").to_string(), &Digest::of(b"a").to_string().to_uppercase()),
        good.replacen("\"run\":\"test\",\"step\":0", "\"step\":0,\"run\":\"test\"", 1),
    ];
    for changed in changed {
        let found = error([text(&event(0, "b")), changed.clone()].concat());
        assert!(matches!(found, LedgerError::Form { line: 2, .. }), "{changed}: {found}");
        assert!(found.to_string().contains("ledger.jsonl:2: "), "{found}");
    }
    let found = error([text(&event(0, "b")), exported.replace("\"f\"", &twice)].concat()).to_string();
    assert!(found.contains("ledger.jsonl:2: ") && found.contains("`files.f` is given twice"), "{found}");
}

#[test]
fn the_first_bytes_of_a_ledger_are_read_as_if_there_were_no_more() {
    let lines = [text(&event(0, "a")), text(&event(1, "a")), "no event".to_owned()].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.jsonl");
    fs::write(&path, &lines).unwrap();
    let first = text(&event(0, "a")).len() as u64;
    let versions = |bytes| LedgerFile::open_prefix(&path, bytes)?.collect::<Result<Vec<_>, _>>();
    assert_eq!(versions(first).unwrap().len(), 1);
    assert_eq!(versions(2 * first).unwrap().len(), 2);
    assert!(
        matches!(versions(first + 1), Err(PolicyError::Ledger(error)) if matches!(*error, LedgerError::Torn { line: 2, bytes: 1, .. }))
    );
    assert!(matches!(versions(0), Err(PolicyError::Ledger(error)) if matches!(*error, LedgerError::Empty { .. })));
}

#[test]
fn an_empty_file_is_refused() {
    assert!(matches!(error(""), LedgerError::Empty { .. }));
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| LedgerFile::open(path).unwrap_err().to_string();
    assert!(refused(dir.path()).contains(&dir.path().display().to_string()));
    assert!(refused(&dir.path().join("absent.jsonl")).contains("absent.jsonl"));
}

#[test]
fn a_line_that_is_no_event_is_named() {
    let good = text(&event(0, "a"));
    let unknown_key = good.replace("\"run\"", "\"ruN\"");
    let short_digest = good.replace(&Digest::of(b"a").to_string(), "abc");
    let extra_key = good.replace("{\"run\"", "{\"more\":1,\"run\"");
    let bad_export = text(&export(0, "f")).replace("\"as_held\"", "\"as_helD\"");
    for bad in ["\n", "{}\n", "[1]\n", "no json\n", &unknown_key, &short_digest, &extra_key, &bad_export] {
        let content = [good.as_bytes(), good.as_bytes(), bad.as_bytes(), good.as_bytes()].concat();
        let found = error(content);
        assert!(matches!(found, LedgerError::Line { line: 3, .. }), "{bad}: {found}");
        assert!(found.to_string().contains("ledger.jsonl:3: "), "{found}");
    }
    let mut not_utf8 = good.clone().into_bytes();
    not_utf8[9] = 0xFF;
    assert!(matches!(error(not_utf8), LedgerError::Line { line: 1, .. }));
}

#[test]
fn a_torn_last_line_is_named_wherever_it_is_torn() {
    let (first, last) = (text(&event(0, "a")), text(&event(0, "b")));
    for kept in 1..last.len() {
        let found = error([&first, &last[..kept]].concat());
        assert!(matches!(found, LedgerError::Torn { line: 2, bytes, .. } if bytes == kept), "{found}");
    }
}

#[test]
fn contradictions_name_both_lines() {
    let (mut source, mut output, mut format, mut dtype) = (event(1, "a"), event(1, "a"), event(1, "a"), event(1, "a"));
    source.source_digest = Digest::of(b"other");
    output.output_digest = Digest::of(b"other");
    format.format = "nvfp4".to_owned();
    dtype.source_dtype = "f32".to_owned();
    for (second, expected) in [(source, "source"), (output, "output"), (format, "format"), (dtype, "source")] {
        let found = error([text(&event(1, "a")), text(&event(1, "b")), text(&second)].concat());
        let LedgerError::Contradiction { line, first_line, tensor, what, .. } = found else { panic!("{found}") };
        assert_eq!((line, first_line, tensor.as_str(), what), (3, 1, "a", expected));
    }
}

#[test]
fn versions_that_go_back_mix_two_runs() {
    let found = error([text(&event(1, "a")), text(&event(2, "a")), text(&event(1, "b"))].concat());
    assert!(matches!(found, LedgerError::Order { line: 3, version: PolicyVersion(1), newest: PolicyVersion(2), .. }));
}

#[test]
fn an_export_belongs_to_recorded_tensors_and_to_its_directory() {
    let found = error([text(&event(1, "a")), text(&export(2, "f"))].concat());
    assert!(matches!(found, LedgerError::ExportOnly { line: 2, version: PolicyVersion(2), .. }), "{found}");
    for foreign in ["../f", "/etc/f", "a/../../f", ""] {
        let found = error([text(&event(1, "a")), text(&export(1, foreign))].concat());
        assert!(matches!(found, LedgerError::ForeignFile { line: 2, .. }), "{foreign}: {found}");
    }
}
