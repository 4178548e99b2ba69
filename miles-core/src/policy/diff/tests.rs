use std::fs;
use std::path::PathBuf;

use super::*;
use crate::digest::Digest;
use crate::policy::LedgerError;

fn event(version: u64, tensor: &str, source: &str, format: &str, output: &str) -> LedgerEvent {
    LedgerEvent {
        run: "test".to_owned(),
        step: version,
        version: PolicyVersion(version),
        tensor: tensor.to_owned(),
        source_digest: Digest::of(source.as_bytes()),
        source_dtype: "bf16".to_owned(),
        format: format.to_owned(),
        quantizer: "q/1".to_owned(),
        output_digest: Digest::of(output.as_bytes()),
    }
}

/// Versions 0 and 1 of two tensors.
fn run() -> Vec<LedgerEvent> {
    [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
        .map(|(version, name)| {
            event(version, name, &format!("s{version}{name}"), "mxfp8", &format!("o{version}{name}"))
        })
        .to_vec()
}

fn write(dir: &Path, name: &str, events: &[LedgerEvent]) -> PathBuf {
    let path = dir.join(name);
    let lines: String = events.iter().map(|event| format!("{}\n", serde_json::to_string(event).unwrap())).collect();
    fs::write(&path, lines).unwrap();
    path
}

fn diff(a: &[LedgerEvent], b: &[LedgerEvent]) -> LedgerDiff {
    let dir = tempfile::tempdir().unwrap();
    diff_ledgers(&write(dir.path(), "a", a), &write(dir.path(), "b", b)).unwrap()
}

fn parting(a: &[LedgerEvent], b: &[LedgerEvent]) -> (u64, Option<String>, Cause) {
    let parting = diff(a, b).parting.unwrap();
    (parting.version.0, parting.tensor, parting.cause)
}

#[test]
fn equal_ledgers_are_equal_whatever_the_run_is_called() {
    let mut renamed = run();
    renamed.iter_mut().for_each(|event| event.run = "other".to_owned());
    let found = diff(&run(), &renamed);
    assert_eq!((found.equal_versions, found.equal_tensors, found.parting, found.quantizers), (2, 4, None, None));
}

#[test]
fn other_quantizers_with_equal_bytes_are_told_and_no_difference() {
    let mut other = run();
    other[3].quantizer = "device/2".to_owned();
    let found = diff(&run(), &other);
    assert_eq!(found.parting, None);
    assert_eq!(found.quantizers, Some(["q/1".to_owned(), "device/2".to_owned()]));
}

#[test]
fn the_first_difference_has_its_cause() {
    let changed = |change: fn(&mut LedgerEvent)| {
        let mut events = run();
        events[2..].iter_mut().for_each(change);
        parting(&run(), &events)
    };
    let at = |cause| (1, Some("a".to_owned()), cause);
    assert_eq!(changed(|event| event.source_digest = Digest::of(b"x")), at(Cause::Source));
    assert_eq!(changed(|event| event.source_dtype = "f32".to_owned()), at(Cause::Source));
    assert_eq!(changed(|event| event.output_digest = Digest::of(b"x")), at(Cause::Output));
    assert_eq!(changed(|event| event.format = "nvfp4".to_owned()), at(Cause::Format));
}

#[test]
fn runs_of_different_lengths_part_where_the_shorter_ends() {
    assert_eq!(parting(&run(), &run()[..2]), (1, None, Cause::Ended(Side::B)));
    assert_eq!(parting(&run()[..2], &run()), (1, None, Cause::Ended(Side::A)));
    assert_eq!(parting(&run(), &run()[2..]), (0, None, Cause::VersionOnlyIn(Side::A)));
    assert_eq!(parting(&run()[2..], &run()), (0, None, Cause::VersionOnlyIn(Side::B)));
}

#[test]
fn other_models_part_at_the_first_tensor_of_one_side() {
    let without = |tensor: &str| run().into_iter().filter(|event| event.tensor != tensor).collect::<Vec<_>>();
    assert_eq!(parting(&run(), &without("b")), (0, Some("b".to_owned()), Cause::TensorOnlyIn(Side::A)));
    assert_eq!(parting(&without("b"), &run()), (0, Some("b".to_owned()), Cause::TensorOnlyIn(Side::B)));
    let text = diff(&without("b"), &run()).parting.unwrap().to_string();
    assert_eq!(text, "version 0, `b`: only B has the tensor");
}

#[test]
fn ledgers_that_cannot_be_trusted_are_errors_and_not_differences() {
    let dir = tempfile::tempdir().unwrap();
    let good = write(dir.path(), "good", &run());
    let empty = write(dir.path(), "empty", &[]);
    for (a, b) in [(&good, &empty), (&empty, &good), (&empty, &empty)] {
        let error = diff_ledgers(a, b).unwrap_err();
        let PolicyError::Ledger(fault) = &error else { panic!("{error}") };
        assert!(matches!(fault.as_ref(), LedgerError::Empty { path } if *path == empty), "{error}");
    }
    let torn = dir.path().join("torn");
    let text = fs::read_to_string(&good).unwrap();
    fs::write(&torn, &text[..text.len() - 9]).unwrap();
    let error = diff_ledgers(&good, &torn).unwrap_err();
    let PolicyError::Ledger(fault) = &error else { panic!("{error}") };
    assert!(matches!(fault.as_ref(), LedgerError::Torn { line: 4, .. }), "{error}");
}

fn export(version: u64) -> ExportEvent {
    let digest = |text: &str| FileDigest { bytes: text.len() as u64, digest: Digest::of(text.as_bytes()) };
    ExportEvent {
        run: "test".to_owned(),
        step: version,
        version: PolicyVersion(version),
        precision_map: Digest::of(b"m"),
        policy_digest: Digest::of(b"p"),
        as_held: true,
        files: [("a.json".to_owned(), digest("a")), ("b.json".to_owned(), digest("b"))].into(),
    }
}

fn diff_exports(a: &[ExportEvent], b: &[ExportEvent]) -> LedgerDiff {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, exports: &[ExportEvent]| {
        let path = write(dir.path(), name, &run());
        let lines: String =
            exports.iter().map(|export| format!("{}\n", serde_json::to_string(export).unwrap())).collect();
        fs::write(&path, fs::read_to_string(&path).unwrap() + &lines).unwrap();
        path
    };
    diff_ledgers(&path("a", a), &path("b", b)).unwrap()
}

#[test]
fn equal_tensors_that_were_exported_otherwise_part_at_the_export() {
    let mut renamed = export(1);
    (renamed.run, renamed.step) = ("other".to_owned(), 9);
    let found = diff_exports(&[export(1)], &[renamed]);
    assert_eq!((found.parting, found.equal_exports, found.equal_versions), (None, 1, 2));
    type Change = fn(&mut ExportEvent);
    let changes: [(&str, Change); 6] = [
        ("`as_held`", |export| export.as_held = false),
        ("`precision_map`", |export| export.precision_map = Digest::of(b"x")),
        ("`policy_digest`", |export| export.policy_digest = Digest::of(b"x")),
        ("file `b.json`", |export| export.files.get_mut("b.json").unwrap().digest = Digest::of(b"x")),
        ("file `a.json`", |export| assert!(export.files.remove("a.json").is_some())),
        ("file `c.json`", |export| assert!(export.files.insert("c.json".to_owned(), export.files["a.json"]).is_none())),
    ];
    for (word, change) in changes {
        let mut changed = export(1);
        change(&mut changed);
        for [a, b] in [[&export(1), &changed], [&changed, &export(1)]] {
            let found = diff_exports(std::slice::from_ref(a), std::slice::from_ref(b));
            let parting = found.parting.unwrap();
            assert_eq!((parting.version.0, parting.tensor.as_ref(), parting.cause), (1, None, Cause::Export));
            assert!(parting.to_string().contains(word), "{parting}");
            assert_eq!((found.equal_versions, found.equal_tensors), (1, 4));
        }
    }
}

#[test]
fn an_export_of_one_side_only_is_a_difference() {
    let cause = |a: &[ExportEvent], b: &[ExportEvent]| diff_exports(a, b).parting.map(|parting| parting.cause);
    let mut other = export(1);
    other.as_held = false;
    assert_eq!(cause(&[export(1)], &[]), Some(Cause::ExportOnlyIn(Side::A)));
    assert_eq!(cause(&[], &[export(1)]), Some(Cause::ExportOnlyIn(Side::B)));
    assert_eq!(cause(&[export(1), other.clone()], &[export(1)]), Some(Cause::ExportOnlyIn(Side::A)));
    assert_eq!(cause(&[export(1), other.clone()], &[export(1), other]), None);
    assert_eq!(cause(&[export(1), export(1)], &[export(1)]), None, "the same line twice says no more");
}
