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
