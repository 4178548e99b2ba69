//! The rules of ARCHITECTURE.md, executed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 6] =
    ["miles-core", "miles-backend-cpu-ref", "miles-backend-cuda", "miles-grpo", "examples", "tests"];
const MAX_FILE_LINES: usize = 400;
const MAX_REQUIRED_METHODS: usize = 5;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() && path.file_name().unwrap() != "target" {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn sources(crate_folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    rust_files(&root().join(crate_folder), &mut files);
    assert!(!files.is_empty(), "{crate_folder} has no Rust file");
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn dependencies(crate_folder: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(crate_folder).join("Cargo.toml")).unwrap();
    let section = text.split("[dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_depend_only_downwards() {
    let forbidden: BTreeMap<&str, &[&str]> = BTreeMap::from([
        (
            "miles-core",
            ["miles-backend-cpu-ref", "miles-backend-cuda", "miles-grpo", "tokio", "rayon", "burn", "cudarc"]
                .as_slice(),
        ),
        ("miles-backend-cpu-ref", ["miles-grpo", "miles-backend-cuda", "burn", "cudarc", "tokio"].as_slice()),
        ("miles-backend-cuda", ["miles-grpo", "miles-backend-cpu-ref"].as_slice()),
        ("miles-grpo", ["miles-backend-cpu-ref", "miles-backend-cuda", "burn", "cudarc", "tokio"].as_slice()),
    ]);
    for (name, banned) in forbidden {
        let found = dependencies(name);
        assert!(found.iter().any(|dependency| dependency == "thiserror"), "{name}: the parser found {found:?}");
        for banned in banned {
            assert!(!found.iter().any(|dependency| dependency == banned), "{name} must not depend on {banned}");
        }
    }
}

#[test]
fn files_stay_small() {
    let long: Vec<String> = CRATES
        .iter()
        .flat_map(|name| sources(name))
        .filter(|(path, _)| !path.components().any(|part| part.as_os_str() == "tests") && !path.ends_with("tests.rs"))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_FILE_LINES)
        .map(|(path, lines)| format!("{} has {lines} lines", path.display()))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn unsafe_code_lives_in_two_crates() {
    for name in ["miles-core", "miles-grpo", "examples"] {
        let lib = fs::read_to_string(root().join(name).join("src/lib.rs")).unwrap();
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
    }
}

#[test]
fn libraries_do_not_print_and_numerics_do_not_read_the_environment() {
    for name in ["miles-core", "miles-backend-cpu-ref", "miles-backend-cuda"] {
        for (path, text) in sources(&format!("{name}/src")) {
            for word in ["println!", "eprintln!", "std::env", "SystemTime", "todo!(", "unimplemented!("] {
                let code =
                    text.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| line.contains(word));
                assert!(!code, "{}: {word}", path.display());
            }
        }
    }
}

/// Required methods of each public trait: functions without a body between its braces.
fn public_traits(text: &str) -> Vec<(String, usize)> {
    let mut traits = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("pub trait ") else { continue };
        let name = rest.split([':', '<', ' ', '{']).next().unwrap().to_owned();
        let body: String = lines.by_ref().take_while(|line| *line != "}").map(|line| format!("{line}\n")).collect();
        let required = body
            .split("fn ")
            .skip(1)
            .filter(|method| {
                let end = method.find([';', '{']).unwrap_or(method.len());
                method.as_bytes().get(end) == Some(&b';')
            })
            .count();
        traits.push((name, required));
    }
    traits
}

#[test]
fn plug_in_traits_are_small_and_listed() {
    let mut found = BTreeMap::new();
    for (_, text) in sources("miles-core/src") {
        found.extend(public_traits(&text));
    }
    // The operations are the network's vocabulary, implemented by a backend's internals rather than by a plug-in.
    found.remove("Operations");
    let page = fs::read_to_string(root().join("miles-core/src/plugin/mod.rs")).unwrap();
    let listed: BTreeMap<String, usize> = page
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`"))
        .map(|row| {
            let name = row.split('`').next().unwrap().rsplit("::").next().unwrap().to_owned();
            let count = row.trim_end_matches(" |").rsplit("| ").next().unwrap().trim().parse().unwrap();
            (name, count)
        })
        .collect();
    assert!(listed.len() >= 10, "{listed:?}");
    for (name, count) in &listed {
        assert_eq!(found.get(name), Some(count), "the table in plugin/mod.rs and the trait {name}");
        assert!(*count <= MAX_REQUIRED_METHODS, "{name} requires {count} methods");
    }
}

#[test]
fn the_step_of_the_loop_is_read_in_one_go() {
    let text = fs::read_to_string(root().join("miles-grpo/src/run.rs")).unwrap();
    assert!(text.lines().count() <= 250, "run.rs has {} lines", text.lines().count());
    let body = |function: &str| -> &str {
        let from = text.find(function).unwrap_or_else(|| panic!("run.rs has no `{function}`"));
        text[from..].split("\n    }\n").next().unwrap()
    };
    let step = body("async fn step(");
    assert!(step.lines().count() <= 80, "step has {} lines", step.lines().count());
    let in_order = |body: &str, calls: &[&str]| {
        let mut from = 0;
        for call in calls {
            from +=
                body[from..].find(call).unwrap_or_else(|| panic!("`{call}` is missing or out of order")) + call.len();
        }
    };
    in_order(step, &["schedule", "rollout::", "reward::", "advantage::", "batch::", "update::", "publish::"]);
}
