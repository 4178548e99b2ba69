//! Values of a ledger's lines that were changed after they were written.

use std::fs;

use miles_core::digest::Digest;
use miles_core::format::FormatId;
use miles_core::policy::{
    AuditedVersion, ExportEvent, Finding, KnownPolicy, LedgerEvent, LedgerFile, PolicyVersion, audit_ledger, verify,
};

use crate::exported::Exported;

/// The findings after lines were changed, each as text; the ledger is restored.
fn found(exported: &Exported, change: impl FnOnce(&mut Vec<String>)) -> Vec<String> {
    let text = fs::read_to_string(exported.ledger()).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    let changed: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_ne!(changed, text, "nothing was changed");
    fs::write(exported.ledger(), changed).unwrap();
    let verification = verify(&exported.policy(), &exported.ledger(), None).unwrap();
    assert!(!verification.is_equal());
    fs::write(exported.ledger(), text).unwrap();
    verification.findings.iter().map(ToString::to_string).collect()
}

fn names(findings: &[String], line: usize, words: &[&str]) -> bool {
    let named = |finding: &str| [": ", " "].iter().any(|end| finding.contains(&format!("ledger.jsonl:{line}{end}")));
    findings.iter().any(|finding| named(finding) && words.iter().all(|word| finding.contains(word)))
}

fn edit(line: &mut String, change: impl FnOnce(&mut LedgerEvent)) {
    let mut event: LedgerEvent = serde_json::from_str(line).unwrap();
    change(&mut event);
    *line = serde_json::to_string(&event).unwrap();
}

fn edit_export(line: &mut String, change: impl FnOnce(&mut ExportEvent)) {
    let mut event: ExportEvent = serde_json::from_str(line).unwrap();
    change(&mut event);
    *line = serde_json::to_string(&event).unwrap();
}

/// Every key of a line, of the exported version and of one whose bytes are gone. What follows from nothing in the ledger
/// or the directory is left out: the source and the result of a quantized tensor whose bytes are gone.
#[test]
fn a_changed_value_of_any_line_is_found_and_its_line_named() {
    let exported = Exported::new(Some(FormatId::mxfp8()));
    let versions: Vec<_> = LedgerFile::open(&exported.ledger()).unwrap().map(Result::unwrap).collect();
    type Change = fn(&mut LedgerEvent);
    let everywhere: [(&str, Change); 7] = [
        ("run", |event| event.run.push('x')),
        ("step", |event| event.step += 1),
        ("quantizer", |event| event.quantizer.push('x')),
        ("source_dtype", |event| event.source_dtype = "f32".to_owned()),
        ("format", |event| event.format = "nvfp4".to_owned()),
        ("format", |event| event.format = "f16".to_owned()),
        ("cannot name a format", |event| event.format = "NO FORMAT".to_owned()),
    ];
    let of_dense: [(&str, Change); 2] = [
        ("source_digest", |event| event.source_digest = Digest::of(b"x")),
        ("source_digest", |event| event.output_digest = Digest::of(b"x")),
    ];
    let mut changes = 0;
    for recorded in &versions {
        for (event, at) in recorded.lines() {
            let is_dense = event.format == "bf16";
            let more = if is_dense { &of_dense[..] } else { &[] };
            for (word, change) in everywhere.iter().chain(more) {
                let found = found(&exported, |lines| edit(&mut lines[at.line - 1], change));
                let words = [*word, event.tensor.as_str()];
                assert!(names(&found, at.line, &words), "{word} in line {}: {found:#?}", at.line);
                changes += 1;
            }
        }
    }
    assert!(changes > 100, "{changes}");
    let stored = versions[1].lines().find(|(event, _)| event.format == "mxfp8").unwrap();
    let found = found(&exported, |lines| {
        edit(&mut lines[stored.1.line - 1], |event| event.output_digest = Digest::of(b"x"));
    });
    assert!(names(&found, stored.1.line, &["recorded", &stored.0.tensor]), "{found:#?}");
}

#[test]
fn a_changed_value_of_an_export_is_found_and_its_line_named() {
    let exported = Exported::new(Some(FormatId::mxfp8()));
    let last = fs::read_to_string(exported.ledger()).unwrap().lines().count();
    type Change = fn(&mut ExportEvent);
    let changes: [(&[&str], Change); 7] = [
        (&["step"], |export| export.step += 1),
        (&["policy_digest"], |export| export.policy_digest = Digest::of(b"x")),
        (&["policy_digest"], |export| export.precision_map = Digest::of(b"x")),
        (&["as_held"], |export| export.as_held = false),
        (&["config.json"], |export| export.files.get_mut("config.json").unwrap().bytes += 1),
        (&["config.json", "not recorded"], |export| assert!(export.files.remove("config.json").is_some())),
        (&["other", "not in the directory"], |export| {
            let digest = export.files["config.json"];
            export.files.insert("other".to_owned(), digest);
        }),
    ];
    for (words, change) in changes {
        let found = found(&exported, |lines| edit_export(&mut lines[last - 1], change));
        assert!(names(&found, last, words), "{words:?}: {found:#?}");
    }
}

#[test]
fn a_missing_line_of_any_version_is_found_and_the_version_and_tensor_named() {
    let exported = Exported::new(Some(FormatId::nvfp4()));
    for recorded in LedgerFile::open(&exported.ledger()).unwrap().map(Result::unwrap) {
        for (event, at) in recorded.lines() {
            let findings = found(&exported, |lines| drop(lines.remove(at.line - 1)));
            let says = format!("version {} has no line of tensor `{}`", recorded.version(), event.tensor);
            assert!(findings.iter().any(|finding| finding.ends_with(&says)), "{says}: {findings:#?}");
        }
    }
    // Gone from every version: the directory and the export still say what was there.
    let first = exported.snapshots[0].network().parameters[2].name.clone();
    let findings = found(&exported, |lines| lines.retain(|line| !line.contains(&first)));
    assert!(findings.iter().any(|finding| finding.contains(&first)), "{findings:#?}");
    assert!(findings.iter().any(|finding| finding.contains("policy_digest")), "{findings:#?}");
}

#[test]
fn a_missing_version_and_steps_that_go_back_are_found() {
    let exported = Exported::new(Some(FormatId::mxfp8()));
    let count = exported.snapshots[0].network().parameters.len();
    let later = |line: &mut String| edit(line, |event| event.version = PolicyVersion(2));
    let findings = found(&exported, |lines| {
        lines[count..2 * count].iter_mut().for_each(later);
        edit_export(&mut lines[2 * count], |export| export.version = PolicyVersion(2));
    });
    assert!(names(&findings, count + 1, &["version 2 follows version 0"]), "{findings:#?}");
    let findings = found(&exported, |lines| {
        lines[..count].iter_mut().for_each(|line| edit(line, |event| event.step = 5));
    });
    assert!(names(&findings, count + 1, &["step", "5 or later"]), "{findings:#?}");
}

/// What a run knows of itself settles what a ledger alone leaves open.
#[test]
fn with_the_precision_map_known_policy_digests_and_formats_are_computed_again() {
    let exported = Exported::new(Some(FormatId::mxfp8()));
    let (network, map) = (exported.snapshots[0].network(), exported.snapshots[0].map());
    let known = KnownPolicy::of(network, map);
    let audit = || audit_ledger(&exported.ledger(), u64::MAX, &known).unwrap();
    let whole = audit();
    assert!(whole.findings.is_empty(), "{:?}", whole.findings);
    assert_eq!((whole.versions.len(), whole.events), (2, 2 * network.parameters.len()));
    let digest = |version: &AuditedVersion| version.policy_digest.unwrap();
    for (version, snapshot) in whole.versions.iter().zip(&exported.snapshots) {
        assert_eq!(digest(version), snapshot.stamp().digest);
    }
    assert_eq!(whole.exported().map(|version| version.version), Some(PolicyVersion(1)));

    let text = fs::read_to_string(exported.ledger()).unwrap();
    let first = LedgerFile::find(&exported.ledger(), PolicyVersion(0)).unwrap();
    let (quantized, _) = first.lines().find(|(event, _)| event.format == "mxfp8").unwrap();
    fs::write(exported.ledger(), text.replacen(&quantized.output_digest.to_string(), &Digest::of(b"x").to_string(), 1))
        .unwrap();
    assert_ne!(digest(&audit().versions[0]), exported.snapshots[0].stamp().digest);

    // In every version alike, so that no line contradicts another.
    let renamed = text.replace(&quantized.tensor, "model.other.weight");
    fs::write(exported.ledger(), renamed.replace("\"format\":\"mxfp8\"", "\"format\":\"nvfp4\"")).unwrap();
    let findings = audit().findings;
    let count = |is: fn(&Finding) -> bool| findings.iter().filter(|finding| is(finding)).count();
    assert_eq!(count(|finding| matches!(finding, Finding::ForeignTensor { .. })), 2);
    assert_eq!(count(|finding| matches!(finding, Finding::MissingEvent { .. })), 2);
    assert_eq!(count(|finding| matches!(finding, Finding::Field { field: "format", .. })), 4, "{findings:?}");
}
