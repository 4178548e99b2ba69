//! Runs that start from every layout of a checkpoint, and from none that is damaged.

use std::fs;
use std::path::Path;

use miles_core::checkpoint::{
    Checkpoint, CheckpointError, ExpertLayout, StoredForm, WriteOptions, write_checkpoint, write_values,
};
use miles_core::digest::Digest;
use miles_core::policy::PolicyVersion;
use miles_core::precision::Recipe;
use miles_core::tensor::Dtype;
use miles_grpo::Error;

use crate::support::files::{edit_tensors, load, tree};
use crate::support::parts::{current, options, trainer};
use crate::support::workspace::{Workspace, same_metrics};
use crate::support::{checkpoint, cpu};

fn refusal(error: Error) -> CheckpointError {
    match error {
        Error::Core(miles_core::Error::Checkpoint(error)) => error,
        other => panic!("{other}"),
    }
}

/// Writes the fixture model of a workspace as `recipe` stores it, in place of the original.
fn store_quantized(workspace: &Workspace, family: &str, recipe: Recipe) {
    let original = checkpoint(family);
    let snapshot = current(&trainer(&cpu(2), &original, recipe, options(4096)));
    let replaced = WriteOptions { replace: true, ..WriteOptions::default() };
    let template = workspace.checkpoint().template();
    write_checkpoint(&snapshot, &template, &workspace.path("model"), &replaced).unwrap();
}

/// O6: a scale that is gone, and a scale whose tensor is gone, stop a run before it has written anything; the error
/// names both tensors.
#[test]
fn o6_a_missing_scale_and_an_orphan_scale_are_refused_by_name() {
    let cases = [(Recipe::Fp8Block, "_scale_inv"), (Recipe::Mxfp8, "_scale_inv"), (Recipe::Nvfp4Dequantized, "_scale")];
    for (recipe, suffix) in cases {
        let workspace = Workspace::new("qwen3-moe");
        store_quantized(&workspace, "qwen3-moe", recipe);
        let file = workspace.path("model/model.safetensors");
        let whole = fs::read(&file).unwrap();
        let scale = load(&file).into_keys().find(|name| name.ends_with(&format!(".weight{suffix}"))).unwrap();
        let tensor = scale.strip_suffix(suffix).unwrap().to_owned();

        edit_tensors(&file, |tensors| drop(tensors.remove(&scale).unwrap()));
        let error = refusal(workspace.run("out", &[]).unwrap_err());
        let CheckpointError::MissingScale { tensor: named, scale: missing, .. } = &error else { panic!("{error}") };
        assert_eq!((named, missing), (&tensor, &scale), "{recipe}");

        fs::write(&file, &whole).unwrap();
        edit_tensors(&file, |tensors| drop(tensors.remove(&tensor).unwrap()));
        let error = refusal(workspace.run("out", &[]).unwrap_err());
        let CheckpointError::OrphanScale { tensor: named, scale: orphan, .. } = &error else { panic!("{error}") };
        // A tensor may have several scales; the error names the first of them.
        let base = tensor.strip_suffix("weight").unwrap();
        assert!(named == &tensor && orphan.starts_with(base) && orphan != named, "{recipe}: {error}");
        assert!(!workspace.path("out").exists());

        fs::write(&file, &whole).unwrap();
        workspace.run("out", &["run.steps=1"]).unwrap();
    }
}

/// O6 in the other direction: codes in a directory that does not say so are not taken for weights.
#[test]
fn o6_codes_without_a_declaration_are_refused() {
    let workspace = Workspace::new("qwen3-moe");
    store_quantized(&workspace, "qwen3-moe", Recipe::Fp8Block);
    crate::support::files::edit_json(&workspace.path("model/config.json"), |config| {
        config.as_object_mut().unwrap().remove("quantization_config").unwrap();
    });
    let error = refusal(workspace.run("out", &[]).unwrap_err());
    assert!(error.to_string().contains("quantization_config") || error.to_string().contains("scale"), "{error}");
    assert!(!workspace.path("out").exists());
}

/// O8: a tied model runs the same with and without the head in its file; a head that differs is refused with both
/// digests; what a run leaves never holds a head.
#[test]
fn o8_tied_heads_may_be_stored_but_not_differ() {
    const HEAD: &str = "lm_head.weight";
    let workspace = Workspace::new("llama-tied");
    let settings = ["precision.recipe=mxfp8", "run.steps=2"];
    let without = workspace.run("without", &settings).unwrap();
    let file = workspace.path("model/model.safetensors");
    assert!(!load(&file).contains_key(HEAD));
    edit_tensors(&file, |tensors| {
        let table = tensors["model.embed_tokens.weight"].clone();
        tensors.insert(HEAD.to_owned(), table);
    });
    let with = workspace.run("with", &settings).unwrap();
    assert_eq!(with.summary, without.summary);
    assert_eq!(tree(&workspace.path("with/policy")), tree(&workspace.path("without/policy")));
    assert!(!load(&workspace.path("with/policy/model.safetensors")).contains_key(HEAD));

    edit_tensors(&file, |tensors| tensors.get_mut(HEAD).unwrap().bytes[0] ^= 1);
    let error = refusal(workspace.run("other", &settings).unwrap_err());
    let CheckpointError::TiedHeadDiffers { head, embedding, .. } = &error else { panic!("{error}") };
    assert_ne!(head, embedding);
    assert!(error.to_string().contains(&head.to_string()) && error.to_string().contains(&embedding.to_string()));
    assert!(!workspace.path("other").exists());
}

/// Digest of the policy that a run from `model` ends with, and that run's metrics.
fn learned(workspace: &Workspace, model: &Path, out: &str) -> (Digest, Vec<miles_core::plugin::StepRecord>) {
    let model = format!("model.dir={}", model.display());
    let outcome = workspace.run(out, &[&model, "precision.recipe=nvfp4-dequantized", "run.steps=2"]).unwrap();
    (outcome.summary.policy.digest, workspace.metrics(out))
}

/// O9: one tensor per expert, packed experts, shards of any size and an F32 file of the same values: one policy, and one
/// course of training.
#[test]
fn o9_every_layout_of_one_model_is_one_policy() {
    for family in ["qwen3-moe", "deepseek-v3", "qwen3-moe-sharded"] {
        let workspace = Workspace::new(family);
        let original = workspace.checkpoint();
        let (wanted, metrics) = learned(&workspace, &workspace.path("model"), "original");
        let layouts = [
            ("packed", StoredForm::AsHeld, ExpertLayout::Packed, u64::MAX),
            ("packed-shards", StoredForm::AsHeld, ExpertLayout::Packed, 60_000),
            ("shards", StoredForm::AsHeld, ExpertLayout::PerExpert, 60_000),
            ("f32", StoredForm::Dense(Dtype::F32), ExpertLayout::Packed, u64::MAX),
        ];
        for (name, form, experts, max_shard_bytes) in layouts {
            let target = workspace.path(&format!("model-{name}"));
            let written = WriteOptions { form, experts, max_shard_bytes, replace: false, ..WriteOptions::default() };
            write_values(&original, &original.template(), &target, &written).unwrap();
            let files = tree(&target);
            let shards = files.keys().filter(|file| file.ends_with(".safetensors")).count();
            assert_eq!(shards > 1, max_shard_bytes != u64::MAX, "{name}: {:?}", files.keys());
            let (found, records) = learned(&workspace, &target, name);
            same_metrics(&records, &metrics, &format!("{family} {name}"));
            assert_eq!(found, wanted, "{family} {name}");
        }
    }
}

/// O9, the completeness of the name map: each tensor of the network comes from the packed file once, byte for byte.
#[test]
fn o9_packed_experts_are_the_same_bytes() {
    let original = checkpoint("qwen3-moe");
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("packed");
    let packed = WriteOptions { experts: ExpertLayout::Packed, ..WriteOptions::default() };
    write_values(&original, &original.template(), &target, &packed).unwrap();
    let names: Vec<String> = load(&target.join("model.safetensors")).into_keys().collect();
    assert!(names.iter().any(|name| name.ends_with("mlp.experts.gate_up_proj")), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("experts.0.")), "{names:?}");
    let read = Checkpoint::open(&target).unwrap().snapshot_as_stored(PolicyVersion(0)).unwrap();
    let expected = original.snapshot_as_stored(PolicyVersion(0)).unwrap();
    for id in original.network().ids() {
        assert_eq!(read.tensor_digest(id), expected.tensor_digest(id), "{}", original.network().parameter(id).name);
    }
    assert_eq!(read.stamp(), expected.stamp());
}

/// What a run leaves is a model directory: another run starts from it, tokenizer included, in every stored format.
#[test]
fn a_run_goes_on_from_what_another_run_left() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
        let precision = format!("precision.recipe={recipe}");
        let (first, second) = (format!("{recipe}-first"), format!("{recipe}-second"));
        workspace.run(&first, &[&precision, "run.steps=1"]).unwrap();
        let model = format!("model.dir={}", workspace.path(&first).join("policy").display());
        let outcome = workspace.run(&second, &[&precision, &model, "run.steps=1"]).unwrap();
        assert_eq!(outcome.summary.mismatch_max, 0.0, "{recipe}");
        // The codes of codes: a format's own values are quantized to themselves, so version 0 is the policy that was left.
        let events = workspace.ledger(&second);
        let stored = Checkpoint::open(&workspace.path(&first).join("policy")).unwrap();
        let stored = stored.snapshot_as_stored(PolicyVersion(0)).unwrap();
        let network = stored.network();
        for event in events.iter().filter(|event| event.version == PolicyVersion(0) && event.format == "bf16") {
            let id = network.find(&event.tensor).unwrap();
            assert_eq!(event.output_digest, stored.tensor_digest(id), "{recipe} {}", event.tensor);
        }
    }
}
