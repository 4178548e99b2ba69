//! What a run leaves can be checked against its ledger, and two runs part where their ledgers say.

use std::fs;
use std::path::Path;

use crate::support::workspace::Workspace;
use miles_core::policy::{
    Cause, Finding, LedgerError, LedgerFile, Part, PolicyError, PolicyVersion, Side, TensorDifference, verify,
};
use miles_core::precision::Recipe;
use miles_grpo::Error;
use miles_grpo::checkpoint::ResumeError;
use miles_grpo::left_run::{LeftRun, Place, is_run};
use miles_grpo::run_diff::{RunDiff, diff_runs};

fn diff(workspace: &Workspace, a: &str, b: &str) -> RunDiff {
    let open = |out| LeftRun::open(&workspace.path(out)).unwrap();
    diff_runs(&open(a), &open(b)).unwrap()
}

fn flip(path: &Path, offset: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= bit;
    fs::write(path, bytes).unwrap();
}

/// In every recipe: the export, and every checkpoint made again from its masters, has the recorded digests.
#[test]
fn everything_that_a_run_leaves_is_what_its_ledger_recorded() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in Recipe::ALL {
        let settings =
            [format!("precision.recipe={recipe}"), "run.steps=2".to_owned(), "checkpoint.every=1".to_owned()];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let out = recipe.name();
        workspace.run(out, &settings).unwrap();
        let run = LeftRun::open(&workspace.path(out)).unwrap();
        let found = verify(&run.policy().unwrap(), &run.ledger(), None).unwrap();
        assert!(found.is_equal(), "{recipe}: {:?}", found.findings);
        assert_eq!((found.version, found.converted_tensors), (PolicyVersion(2), 0), "{recipe}");
        assert!(found.compared_files.unwrap() >= 3, "{recipe}");
        let held = run.held().unwrap();
        let versions: Vec<u64> = held.iter().map(|held| held.version.0).collect();
        assert_eq!(versions, [0, 1, 2], "{recipe}");
        assert!(matches!(held[0].place, Place::Model(_)) && matches!(held[2].place, Place::Policy(_)), "{recipe}");
        for held in held.iter().chain(&run.checkpoints().unwrap()) {
            let findings = run.verify(held).unwrap();
            assert!(findings.is_empty(), "{recipe} version {} {}: {findings:?}", held.version, held.place);
        }
    }
}

/// Bits at places coprime to every block size, over all files of the export of a real run.
#[test]
fn a_flipped_bit_in_what_a_run_exported_is_found_and_its_file_named() {
    let workspace = Workspace::new("llama-tied");
    workspace.run("out", &["run.steps=1", "precision.recipe=nvfp4-dequantized"]).unwrap();
    let run = LeftRun::open(&workspace.path("out")).unwrap();
    let (policy, ledger) = (run.policy().unwrap(), run.ledger());
    let mut flips = 0;
    for entry in fs::read_dir(&policy).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::metadata(&path).unwrap().len() as usize;
        for offset in (0..bytes).step_by((bytes / 24).max(1) | 1).chain([bytes - 1]) {
            flip(&path, offset, 1 << (offset % 8));
            let found = verify(&policy, &ledger, None).unwrap();
            let names = |finding: &Finding| matches!(finding, Finding::File { file, .. } if *file == name);
            assert!(found.findings.iter().any(names), "{name} byte {offset}: {:?}", found.findings);
            flip(&path, offset, 1 << (offset % 8));
            flips += 1;
        }
    }
    assert!(flips > 100, "{flips}");
    assert!(verify(&policy, &ledger, None).unwrap().is_equal(), "every flip was undone");
}

#[test]
fn a_flipped_bit_in_a_checkpoint_is_found_and_its_file_named() {
    let workspace = Workspace::new("llama-tied");
    workspace.run("out", &["run.steps=1"]).unwrap();
    let run = LeftRun::open(&workspace.path("out")).unwrap();
    let masters = workspace.path("out").join("checkpoints/step-00000001/trainer/masters.safetensors");
    let bytes = fs::metadata(&masters).unwrap().len() as usize;
    flip(&masters, bytes - 3, 4);
    let error = run.verify(&run.checkpoints().unwrap()[0]).unwrap_err();
    assert!(matches!(&error, Error::Resume(ResumeError::Damaged { path, .. }) if *path == masters), "{error}");
}

/// A stopped run has no export yet, its ledger ends with whole lines, and its checkpoint is what was recorded. Resumed, it
/// ends with the ledger of a run that was never stopped, the export's line included.
#[test]
fn stopped_and_resumed_runs_can_be_verified_at_any_time() {
    let workspace = Workspace::new("qwen3-moe");
    let settings = ["precision.recipe=mxfp8", "run.steps=3"];
    workspace.run("whole", &settings).unwrap();
    assert!(workspace.run_until("parts", &settings, 2).unwrap().interrupted);
    let run = LeftRun::open(&workspace.path("parts")).unwrap();
    assert!(run.policy().is_none());
    let held = run.checkpoints().unwrap();
    assert_eq!(held.iter().map(|held| held.version.0).collect::<Vec<_>>(), [2]);
    assert!(run.verify(&held[0]).unwrap().is_empty());
    let stopped = diff(&workspace, "whole", "parts");
    let parting = stopped.ledgers.parting.unwrap();
    assert_eq!((parting.version, parting.cause), (PolicyVersion(3), Cause::Ended(Side::B)));

    workspace.run("parts", &[&settings[..], &["run.existing=resume"]].concat()).unwrap();
    assert!(verify(&run.policy().unwrap(), &run.ledger(), None).unwrap().is_equal());
    let resumed = diff(&workspace, "whole", "parts");
    assert!(resumed.ledgers.parting.is_none() && resumed.ledgers.equal_versions == 4, "{resumed:?}");

    // Gone on with after its end: until it ends again, policy/ is an older version than the ledger's last one.
    let longer = [settings[0], "run.steps=5", "run.existing=resume"];
    assert!(workspace.run_until("whole", &longer, 4).unwrap().interrupted);
    let whole = LeftRun::open(&workspace.path("whole")).unwrap();
    let found = verify(&whole.policy().unwrap(), &whole.ledger(), None).unwrap();
    assert_eq!(
        (found.version, found.equal_version, found.is_equal()),
        (PolicyVersion(4), Some(PolicyVersion(3)), false)
    );
}

#[test]
fn runs_with_other_seeds_part_at_the_optimizer_and_the_byte_is_shown() {
    let workspace = Workspace::new("qwen3-moe");
    let with = |seed| ["precision.recipe=nvfp4-dequantized", "run.steps=2", "checkpoint.every=1", seed];
    workspace.run("a", &with("run.seed=1")).unwrap();
    workspace.run("b", &with("run.seed=2")).unwrap();
    let found = diff(&workspace, "a", "b");
    let parting = found.ledgers.parting.as_ref().unwrap();
    assert_eq!((parting.version, parting.cause, found.ledgers.equal_versions), (PolicyVersion(1), Cause::Source, 1));
    assert_eq!(found.is_kept, [true, true]);
    let bytes = found.bytes.unwrap();
    assert_eq!((bytes.version, &bytes.unrecorded), (PolicyVersion(1), &[vec![], vec![]]));
    let (tensor, TensorDifference::Byte(byte)) = bytes.first.unwrap() else { panic!("bytes differ") };
    assert_eq!(Some(tensor), parting.tensor);
    assert_eq!(byte.part, Part::Elements, "the embedding is dense");
    assert_ne!(byte.codes[0].bits, byte.codes[1].bits);
}

#[test]
fn bytes_that_are_not_kept_are_told_and_the_first_version_that_is_held_is_shown() {
    let workspace = Workspace::new("qwen3-moe");
    for (out, seed) in [("a", "run.seed=1"), ("b", "run.seed=2")] {
        workspace.run(out, &["precision.recipe=mxfp8", "run.steps=3", seed]).unwrap();
    }
    let found = diff(&workspace, "a", "b");
    assert_eq!(found.ledgers.parting.unwrap().version, PolicyVersion(1));
    assert_eq!(found.is_kept, [false, false]);
    let bytes = found.bytes.unwrap();
    assert_eq!(bytes.version, PolicyVersion(3));
    assert!(matches!(bytes.places, [Place::Policy(_), Place::Policy(_)]) && bytes.first.is_some());
    for out in ["a", "b"] {
        fs::remove_dir_all(workspace.path(out).join("policy")).unwrap();
        fs::remove_dir_all(workspace.path(out).join("checkpoints")).unwrap();
    }
    let found = diff(&workspace, "a", "b");
    assert!(found.bytes.is_none() && found.is_kept == [false, false]);
}

#[test]
fn runs_in_other_recipes_part_at_the_first_tensor_of_another_format() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in ["mxfp8", "fp8-block"] {
        workspace.run(recipe, &[&format!("precision.recipe={recipe}"), "run.steps=1"]).unwrap();
    }
    let found = diff(&workspace, "mxfp8", "fp8-block");
    let parting = found.ledgers.parting.as_ref().unwrap();
    assert_eq!((parting.version, parting.cause), (PolicyVersion(0), Cause::Format));
    let bytes = found.bytes.unwrap();
    assert!(matches!(bytes.places, [Place::Model(_), Place::Model(_)]), "version 0 is made again from the model");
    let (_, TensorDifference::Kind { a, b }) = bytes.first.unwrap() else { panic!("formats differ") };
    assert!(a.starts_with("mxfp8 [") && b.starts_with("fp8-block ["), "{a} / {b}");
    assert!(found.is_kept == [true, true]);
    let same_forward = ["mxfp8-dequantized", "mxfp8-high-precision"];
    for recipe in same_forward {
        workspace.run(recipe, &[&format!("precision.recipe={recipe}"), "run.steps=1"]).unwrap();
    }
    let parting = diff(&workspace, same_forward[0], same_forward[1]).ledgers.parting.unwrap();
    assert_eq!((parting.version, parting.cause), (PolicyVersion(1), Cause::Source), "{parting}");
}

/// A ledger that says another result for the same source: the quantizers parted, and the one that did not follow the
/// format's rule is told by making the version again.
#[test]
fn a_quantizer_that_parts_from_the_rule_is_told_from_the_one_that_follows_it() {
    let workspace = Workspace::new("qwen3-moe");
    for out in ["a", "b"] {
        workspace.run(out, &["precision.recipe=mxfp8", "run.steps=1"]).unwrap();
    }
    let ledger = workspace.path("b").join("ledger.jsonl");
    let first = workspace.ledger("b").into_iter().find(|event| event.format == "mxfp8").unwrap();
    let text = fs::read_to_string(&ledger).unwrap();
    let wrong = miles_core::digest::Digest::of(b"wrong").to_string();
    fs::write(&ledger, text.replacen(&first.output_digest.to_string(), &wrong, 1)).unwrap();
    let found = diff(&workspace, "a", "b");
    let parting = found.ledgers.parting.unwrap();
    assert_eq!((parting.version, parting.cause), (PolicyVersion(0), Cause::Output));
    assert_eq!(parting.tensor.as_deref(), Some(first.tensor.as_str()));
    let bytes = found.bytes.unwrap();
    assert_eq!(bytes.unrecorded, [vec![], vec![first.tensor]]);
    assert!(bytes.first.is_none(), "made again by the rule, both are equal");
}

#[test]
fn other_models_and_damaged_ledgers_end_in_words() {
    let (moe, tied) = (Workspace::new("qwen3-moe"), Workspace::new("llama-tied"));
    moe.run("out", &["run.steps=1"]).unwrap();
    tied.run("out", &["run.steps=1"]).unwrap();
    let open = |workspace: &Workspace| LeftRun::open(&workspace.path("out")).unwrap();
    let found = diff_runs(&open(&moe), &open(&tied)).unwrap();
    assert!(found.ledgers.parting.is_some(), "{found:?}");
    assert!(!is_run(&moe.path("model")) && is_run(&moe.path("out")));
    let ledger = moe.path("out").join("ledger.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    fs::write(&ledger, &text[..text.len() / 2]).unwrap();
    let torn = |error: &PolicyError| match error {
        PolicyError::Ledger(fault) => matches!(fault.as_ref(), LedgerError::Torn { .. }),
        _ => false,
    };
    let error = verify(&open(&moe).policy().unwrap(), &ledger, None).unwrap_err();
    assert!(torn(&error), "{error}");
    let error = LedgerFile::open(&ledger).unwrap().find_map(Result::err).unwrap();
    assert!(torn(&error) && error.to_string().contains("ledger.jsonl:"), "{error}");
}
