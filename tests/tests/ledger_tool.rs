//! What the example `ledger` says about runs that were damaged after they ended: nothing goes unnoticed, and every line
//! tells where to look.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::files::tree;
use crate::support::workspace::Workspace;
use miles_core::digest::Digest;
use miles_core::policy::{ExportEvent, LedgerEvent, PolicyVersion};
use miles_examples::ledger::{VerifyOptions, diff, verify_left};

/// A run of two steps that ended, and copies of it to damage.
struct Left {
    workspace: Workspace,
}

/// Whether everything was equal, or the error; and what was said.
#[derive(Debug)]
struct Said {
    verdict: Result<bool, String>,
    text: String,
}

impl Said {
    /// The exit code of the example.
    fn code(&self) -> u8 {
        match self.verdict {
            Ok(true) => 0,
            Ok(false) => 1,
            Err(_) => 2,
        }
    }

    /// Whether one line has all of these words.
    fn has(&self, words: &[&str]) -> bool {
        let error = self.verdict.as_ref().err();
        self.text
            .lines()
            .chain(error.into_iter().flat_map(|error| error.lines()))
            .any(|line| words.iter().all(|word| line.contains(word)))
    }
}

fn said(act: impl FnOnce(&mut Vec<u8>) -> Result<bool, Box<dyn std::error::Error>>) -> Said {
    let mut out = Vec::new();
    let verdict = act(&mut out).map_err(|error| error.to_string());
    Said { verdict, text: String::from_utf8(out).unwrap() }
}

fn verify(dir: &Path) -> Said {
    said(|out| verify_left(dir, &VerifyOptions::default(), out))
}

fn verify_checkpoints(dir: &Path) -> Said {
    said(|out| verify_left(dir, &VerifyOptions { checkpoints: true, ..VerifyOptions::default() }, out))
}

fn compare(a: &Path, b: &Path) -> Said {
    said(|out| diff(a, b, out))
}

const SETTINGS: [&str; 2] = ["precision.recipe=mxfp8", "run.steps=2"];

impl Left {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(more: &[&str]) -> Self {
        let workspace = Workspace::new("qwen3-moe");
        workspace.run("whole", &[&SETTINGS[..], more].concat()).unwrap();
        let whole = verify(&workspace.path("whole"));
        assert_eq!(whole.code(), 0, "{whole:#?}");
        Left { workspace }
    }

    fn whole(&self) -> PathBuf {
        self.workspace.path("whole")
    }

    /// A fresh copy of the run.
    fn copy(&self) -> PathBuf {
        let copy = self.workspace.path("copy");
        let _ = fs::remove_dir_all(&copy);
        for (name, bytes) in tree(&self.whole()) {
            let path = copy.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        copy
    }

    /// A fresh copy with another text in a file.
    fn edited(&self, file: &str, change: impl FnOnce(String) -> String) -> PathBuf {
        let path = self.copy().join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = change(text.clone());
        assert_ne!(changed, text, "nothing was changed");
        fs::write(path, changed).unwrap();
        self.workspace.path("copy")
    }

    /// A fresh copy with other lines in a file.
    fn relined(&self, file: &str, change: impl FnOnce(&mut Vec<String>)) -> PathBuf {
        self.edited(file, |text| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            change(&mut lines);
            lines.iter().map(|line| format!("{line}\n")).collect()
        })
    }

    /// Lines of the ledger: of every version, and the export.
    fn lines(&self) -> (usize, usize) {
        let text = fs::read_to_string(self.whole().join("ledger.jsonl")).unwrap();
        let lines = text.lines().count();
        ((lines - 1) / 3, lines)
    }
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

#[test]
fn a_removed_policy_is_named_with_each_of_its_files() {
    let left = Left::new();
    let (_, export) = left.lines();
    let copy = left.copy();
    fs::remove_dir_all(copy.join("policy")).unwrap();
    let found = verify(&copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    let at = format!("ledger.jsonl:{export}: ");
    assert!(found.has(&[&at, "copy/policy", "no such directory"]), "{found:#?}");
    for name in tree(&left.whole().join("policy")).into_keys() {
        assert!(found.has(&[&at, &name, "not in the directory"]), "{name}: {found:#?}");
    }
    fs::write(copy.join("policy"), "a file").unwrap();
    assert_eq!(verify(&copy).code(), 1);
}

/// Whether there is a `policy/` tells a run that lost its export line from one that was stopped before it exported.
#[test]
fn a_policy_that_no_export_line_covers_is_a_finding_and_a_stopped_run_is_none() {
    let left = Left::new();
    let copy = left.relined("ledger.jsonl", |lines| drop(lines.pop()));
    fs::write(copy.join("policy/tokenizer.json"), "{}").unwrap();
    let found = verify(&copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["ledger.jsonl:", "no line records an export of version 2", "copy/policy"]), "{found:#?}");
    let ledger = VerifyOptions { ledger: Some(copy.join("ledger.jsonl")), ..VerifyOptions::default() };
    assert_eq!(said(|out| verify_left(&copy.join("policy"), &ledger, out)).code(), 1);

    // Both are gone, but the metrics tell that every step was done.
    fs::remove_dir_all(copy.join("policy")).unwrap();
    let found = verify(&copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["copy/policy", "all 2 steps were done"]), "{found:#?}");

    let workspace = &left.workspace;
    for (out, more) in [("kept", "checkpoint.at_end=true"), ("not-kept", "checkpoint.every=7")] {
        workspace.run_until(out, &[&SETTINGS[..1], &["run.steps=3", more]].concat(), 2).unwrap();
        let found = verify(&workspace.path(out));
        assert_eq!(found.code(), 0, "{out}: {found:#?}");
        assert!(found.has(&["made again from", ": equal"]), "{out}: {found:#?}");
    }
    fs::remove_dir_all(workspace.path("kept/checkpoints")).unwrap();
    let found = verify(&workspace.path("kept"));
    assert_eq!(found.code(), 0, "version 0 can be made again from the model: {found:#?}");
    let gone = workspace.path("model-gone");
    fs::rename(workspace.path("model"), &gone).unwrap();
    let found = verify(&workspace.path("kept"));
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["NOTHING COMPARED"]), "{found:#?}");
}

#[test]
fn runs_with_equal_ledgers_part_at_any_byte_that_they_exported() {
    let left = Left::new();
    let (whole, copy) = (left.whole(), left.copy());
    let equal = compare(&whole, &copy);
    assert_eq!(equal.code(), 0, "{equal:#?}");
    assert!(equal.has(&["3 versions", "1 exports"]), "{equal:#?}");
    for (name, bytes) in tree(&whole.join("policy")) {
        let path = copy.join("policy").join(&name);
        let mut changed = bytes.clone();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        fs::write(&path, changed).unwrap();
        let says = [name.as_str(), &format!("byte {last}")];
        for [a, b] in [[whole.clone(), copy.clone()], [whole.join("policy"), copy.join("policy")]] {
            let found = compare(&a, &b);
            assert_eq!(found.code(), 1, "{name}: {found:#?}");
            assert!(found.has(&says), "{name}: {found:#?}");
        }
        fs::remove_file(&path).unwrap();
        let found = compare(&copy, &whole);
        assert_eq!(found.code(), 1, "{name}: {found:#?}");
        assert!(found.has(&[&name, "only B has it"]), "{name}: {found:#?}");
        fs::write(&path, bytes).unwrap();
    }
    fs::remove_dir_all(copy.join("policy")).unwrap();
    let found = compare(&whole, &copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["only A has a policy/"]), "{found:#?}");

    let (_, export) = left.lines();
    let copy = left.relined("ledger.jsonl", |lines| drop(lines.pop()));
    let found = compare(&whole, &copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["version 2: only A has an export"]), "{found:#?}");
    let copy = left.relined("ledger.jsonl", |lines| {
        edit_export(&mut lines[export - 1], |export| export.files.get_mut("config.json").unwrap().bytes += 1);
    });
    let found = compare(&whole, &copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["version 2", "exports differ", "config.json"]), "{found:#?}");
}

/// Every key, in a version whose bytes are gone. What follows from nothing else is in the digest that a checkpoint keeps.
#[test]
fn a_changed_value_anywhere_in_the_ledger_is_found() {
    let left = Left::new();
    let (tensors, export) = left.lines();
    let ledger = fs::read_to_string(left.whole().join("ledger.jsonl")).unwrap();
    let quantized = ledger.lines().skip(tensors).position(|line| line.contains("\"mxfp8\"")).unwrap() + tensors;
    type Change = fn(&mut LedgerEvent);
    let changes: [(&str, Change); 8] = [
        ("run", |event| event.run.push('x')),
        ("step", |event| event.step += 1),
        ("quantizer", |event| event.quantizer.push('x')),
        ("source_dtype", |event| event.source_dtype = "f32".to_owned()),
        ("format", |event| event.format = "nvfp4".to_owned()),
        ("cannot name a format", |event| event.format = "NO FORMAT".to_owned()),
        ("the model has no tensor", |event| event.tensor.push('x')),
        ("version 1 has no line", |event| event.tensor.push('x')),
    ];
    for (word, change) in changes {
        let found = verify(&left.relined("ledger.jsonl", |lines| edit(&mut lines[quantized], change)));
        assert_eq!(found.code(), 1, "{word}: {found:#?}");
        let at = if word.starts_with("version") { tensors + 1 } else { quantized + 1 };
        assert!(found.has(&[&format!("ledger.jsonl:{at}"), word]), "{word}: {found:#?}");
    }
    let (first, last) = (tensors + 1, 2 * tensors);
    let found = verify(&left.relined("ledger.jsonl", |lines| {
        edit(&mut lines[quantized], |event| event.output_digest = Digest::of(b"x"));
    }));
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&[&format!("ledger.jsonl:{first}-{last}: "), "metrics.jsonl:1"]), "{found:#?}");
    let source: Change = |event| event.source_digest = Digest::of(b"x");
    let found = verify(&left.relined("ledger.jsonl", |lines| edit(&mut lines[quantized], source)));
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["ledger.jsonl:1-", "loop.json"]), "{found:#?}");
    // Of the version whose masters are kept, the source is computed again.
    let kept = quantized + tensors;
    let found = verify_checkpoints(&left.relined("ledger.jsonl", |lines| edit(&mut lines[kept], source)));
    assert!(found.has(&[&format!("ledger.jsonl:{}: ", kept + 1), "source_digest"]), "{found:#?}");

    type ChangeExport = fn(&mut ExportEvent);
    let changes: [(&str, ChangeExport); 6] = [
        ("run", |export| export.run.push('x')),
        ("step", |export| export.step += 1),
        ("precision_map", |export| export.precision_map = Digest::of(b"x")),
        ("policy_digest", |export| export.policy_digest = Digest::of(b"x")),
        ("as_held", |export| export.as_held = false),
        ("config.json", |export| export.files.get_mut("config.json").unwrap().bytes += 1),
    ];
    for (word, change) in changes {
        let found = verify(&left.relined("ledger.jsonl", |lines| edit_export(&mut lines[export - 1], change)));
        assert_eq!(found.code(), 1, "{word}: {found:#?}");
        assert!(found.has(&[&format!("ledger.jsonl:{export}: "), word]), "{word}: {found:#?}");
    }
}

/// Nothing in a directory without codes tells whether it was dequantized; the run's config does.
#[test]
fn as_held_of_a_run_in_high_precision_is_known_from_its_config() {
    let left = Left::with(&["precision.recipe=bf16"]);
    let (_, export) = left.lines();
    let copy = left.relined("ledger.jsonl", |lines| {
        edit_export(&mut lines[export - 1], |export| export.as_held = false);
    });
    let found = verify(&copy);
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&[&format!("ledger.jsonl:{export}: "), "as_held", "run.toml"]), "{found:#?}");
}

#[test]
fn lines_that_are_missing_twice_there_or_out_of_order_are_found() {
    let left = Left::with(&["checkpoint.at_end=false"]);
    let (tensors, lines) = left.lines();
    let export = lines - 1;
    for line in [0, tensors / 2, tensors, 2 * tensors - 1, 3 * tensors - 1] {
        let found = verify(&left.relined("ledger.jsonl", |lines| drop(lines.remove(line))));
        assert_eq!(found.code(), 1, "line {line}: {found:#?}");
        let says = format!("version {} has no line of tensor", line / tensors);
        assert!(found.has(&["ledger.jsonl:", &says]), "line {line}: {found:#?}");
    }
    let range = |version: usize| version * tensors..(version + 1) * tensors;
    type Change<'a> = &'a dyn Fn(&mut Vec<String>);
    let cases: [(&str, u8, Change<'_>, &[&str]); 11] = [
        ("a version", 1, &|lines| drop(lines.drain(range(1))), &["version 2 follows version 0"]),
        ("the first version", 1, &|lines| drop(lines.drain(range(0))), &["ledger.jsonl:1: ", "begins with version 0"]),
        ("the last version", 1, &|lines| lines.truncate(2 * tensors), &["metrics.jsonl:2", "version 2"]),
        ("a line twice", 1, &|lines| lines.insert(1, lines[0].clone()), &["ledger.jsonl:2: ", "says again"]),
        ("the export twice", 1, &|lines| lines.push(lines[export].clone()), &["says again"]),
        ("two runs", 2, &|lines| lines.extend(lines.clone()), &["version 0 after version 2"]),
        ("versions exchanged", 2, &|lines| lines.rotate_left(tensors), &["ledger.jsonl:", "after version 2"]),
        ("the export first", 2, &|lines| lines.rotate_right(1), &["ledger.jsonl:1: ", "none of its tensors"]),
        ("a blank line", 2, &|lines| lines.insert(4, String::new()), &["ledger.jsonl:5: "]),
        ("carriage returns", 2, &|lines| lines.iter_mut().for_each(|line| line.push('\r')), &["ledger.jsonl:1: "]),
        ("no line", 2, &|lines| lines.clear(), &["ledger.jsonl", "no event"]),
    ];
    for (what, code, change, words) in cases {
        let found = verify(&left.relined("ledger.jsonl", change));
        assert_eq!(found.code(), code, "{what}: {found:#?}");
        assert!(found.has(words), "{what}: {found:#?}");
    }
    for cut in [1, 9, 400] {
        let found = verify(&left.edited("ledger.jsonl", |text| text[..text.len() - cut].to_owned()));
        assert_eq!((found.code(), found.has(&[&format!("ledger.jsonl:{lines}: "), "torn"])), (2, true), "{found:#?}");
    }
    // The order of lines within a version says nothing.
    let found = verify(&left.relined("ledger.jsonl", |lines| lines[range(1)].reverse()));
    assert_eq!(found.code(), 0, "{found:#?}");
}

#[test]
fn the_ledger_of_another_run_is_found() {
    let left = Left::with(&["checkpoint.at_end=false"]);
    let other = |settings: &[&str]| {
        left.workspace.run("other", &[&SETTINGS[..], settings, &["run.existing=overwrite"]].concat()).unwrap();
        fs::read_to_string(left.workspace.path("other/ledger.jsonl")).unwrap()
    };
    for settings in [&["run.name=other"][..], &["run.seed=12"], &["run.steps=3"], &["precision.recipe=fp8-block"]] {
        let ledger = other(settings);
        let found = verify(&left.edited("ledger.jsonl", |_| ledger));
        assert_eq!(found.code(), 1, "{settings:?}: {found:#?}");
        assert!(found.has(&["ledger.jsonl:"]), "{settings:?}: {found:#?}");
    }
    // The first run's lines, gone on with by another's.
    let (tensors, _) = left.lines();
    let ledger = other(&["run.seed=12", "run.steps=3"]);
    let found = verify(&left.relined("ledger.jsonl", |lines| {
        lines.truncate(2 * tensors);
        lines.extend(ledger.lines().skip(2 * tensors).map(str::to_owned));
    }));
    assert_eq!(found.code(), 1, "{found:#?}");
    assert!(found.has(&["version 2", "metrics.jsonl:2"]), "{found:#?}");
}

#[test]
fn metrics_and_config_that_do_not_belong_to_the_ledger_are_found() {
    let left = Left::with(&["checkpoint.at_end=false"]);
    let digest = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        record["policy_digest"].as_str().unwrap().to_owned()
    };
    type Change<'a> = &'a dyn Fn(&mut Vec<String>);
    let cases: [(u8, Change<'_>, &[&str]); 7] = [
        (1, &|lines| drop(lines.remove(0)), &["metrics.jsonl:1: ", "step 1 instead of 0"]),
        (1, &|lines| drop(lines.pop()), &["version 2 was exported", "metrics.jsonl"]),
        (1, &|lines| lines.swap(0, 1), &["metrics.jsonl:1: ", "step 1 instead of 0"]),
        (1, &|lines| lines.push(lines[1].clone()), &["metrics.jsonl:3: ", "step 1 instead of 2"]),
        (
            1,
            &|lines| lines[0] = lines[0].replace(&digest(&lines[0]), &digest(&lines[1])),
            &["metrics.jsonl:1", "policy digest"],
        ),
        (
            1,
            &|lines| lines[1] = lines[1].replace("\"policy_version\":2", "\"policy_version\":3"),
            &["metrics.jsonl:2", "version 3"],
        ),
        (2, &|lines| lines[1] = "no record".to_owned(), &["metrics.jsonl:2: "]),
    ];
    for (code, change, words) in cases {
        let found = verify(&left.relined("metrics.jsonl", change));
        assert_eq!(found.code(), code, "{words:?}: {found:#?}");
        assert!(found.has(words), "{words:?}: {found:#?}");
    }
    let torn = verify(&left.edited("metrics.jsonl", |text| text.trim_end().to_owned()));
    assert_eq!((torn.code(), torn.has(&["metrics.jsonl:2: ", "torn"])), (2, true), "{torn:#?}");
    for file in ["metrics.jsonl", "run.toml"] {
        let copy = left.copy();
        fs::remove_file(copy.join(file)).unwrap();
        let found = verify(&copy);
        assert_eq!((found.code(), found.has(&[file, "no such file"])), (1, true), "{found:#?}");
    }
    let found = verify(&left.edited("run.toml", |text| text.replace("\"mxfp8\"", "\"fp8-block\"")));
    assert_eq!((found.code(), found.has(&["precision_map", "ledger.jsonl:"])), (1, true), "{found:#?}");
    let faults = [("[run]", "= ="), ("recipe", "recipes"), ("\"mxfp8\"", "\"mxfp9\""), ("steps = 2", "steps = \"x\"")];
    for (from, to) in faults {
        let copy = left.edited("run.toml", |text| text.replacen(from, to, 1));
        let mut found = vec![verify(&copy)];
        // Comparing takes the config, but no precision map of it.
        found.extend((to != "\"mxfp9\"").then(|| compare(&left.whole(), &copy)));
        for found in found {
            assert_eq!((found.code(), found.has(&["copy/run.toml"])), (2, true), "{to}: {found:#?}");
            assert!(!found.has(&["(file)"]), "{to}: {found:#?}");
        }
    }
}

#[test]
fn nothing_to_compare_is_a_failure() {
    let left = Left::new();
    let copy = left.copy();
    let found = verify_checkpoints(&copy);
    assert_eq!((found.code(), found.has(&["made again from the masters", ": equal"])), (0, true), "{found:#?}");
    fs::remove_dir_all(copy.join("checkpoints/step-00000002")).unwrap();
    for _ in 0..2 {
        let found = verify_checkpoints(&copy);
        assert_eq!((found.code(), found.has(&["copy/checkpoints", "no checkpoint"])), (1, true), "{found:#?}");
        assert_eq!(verify(&copy).code(), 0, "they were not asked for");
        let _ = fs::remove_dir_all(copy.join("checkpoints"));
    }
    let version = VerifyOptions { version: Some(PolicyVersion(9)), ..VerifyOptions::default() };
    assert_eq!(said(|out| verify_left(&copy, &version, out)).code(), 2);
    let found = verify(&left.workspace.path("model"));
    assert_eq!((found.code(), found.has(&["model", "--ledger"])), (2, true), "{found:#?}");
}

#[test]
fn a_line_that_one_run_lacks_is_a_difference_and_no_error() {
    let left = Left::new();
    let (tensors, lines) = left.lines();
    let ledger = fs::read_to_string(left.whole().join("ledger.jsonl")).unwrap();
    let tensor = |line: usize| serde_json::from_str::<LedgerEvent>(ledger.lines().nth(line).unwrap()).unwrap().tensor;
    for line in [0, tensors + 3, lines - 2] {
        for exported in [true, false] {
            let copy = left.relined("ledger.jsonl", |lines| {
                lines.remove(line);
                lines.truncate(if exported { lines.len() } else { lines.len() - 1 });
            });
            for (a, b, side) in [(left.whole(), copy.clone(), "A"), (copy.clone(), left.whole(), "B")] {
                let found = compare(&a, &b);
                let version = format!("version {}, `{}`", line / tensors, tensor(line));
                let says = format!("only {side} has the tensor");
                assert_eq!((found.code(), found.has(&[&version, &says])), (1, true), "line {line}: {found:#?}");
            }
        }
    }
    // The bytes that would be shown are damaged: that the runs part is certain without them.
    let copy = left.relined("ledger.jsonl", |lines| drop(lines.remove(lines.len() - 2)));
    let masters = copy.join("checkpoints/step-00000002/trainer/masters.safetensors");
    fs::write(&masters, "damaged").unwrap();
    let found = compare(&left.whole(), &copy);
    assert_eq!((found.code(), found.has(&["cannot be shown", "masters.safetensors"])), (1, true), "{found:#?}");
}
