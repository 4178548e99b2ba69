//! One policy, one set of bytes: conversion, the trainer's operands, the engine's version and the exported directory
//! agree in every tensor, in every recipe, for every family.

use std::collections::BTreeMap;

use miles_backend_cpu_ref::CpuTrainer;
use miles_core::checkpoint::{Checkpoint, ExpertLayout, StoredForm, WriteOptions, write_checkpoint, write_values};
use miles_core::digest::Digest;
use miles_core::number::bf16;
use miles_core::plugin::{RolloutEngine, Trainer};
use miles_core::policy::{Ledger, PolicyContext, PolicyTensor, PolicyVersion, Snapshot, WeightSource, quantize_policy};
use miles_core::precision::{PrecisionEntry, Recipe, TensorFormat};
use miles_core::tensor::Dtype;
use miles_grpo::loss::Clipped;

use crate::support::parts::{batch, current, engine, generate, map, options, publish, request, trainer};
use crate::support::workspace::Workspace;
use crate::support::{FAMILIES, checkpoint, cpu};

/// Digest of every tensor by name, and the format it has.
type Digests = BTreeMap<String, (String, Digest)>;

fn digests(snapshot: &Snapshot) -> Digests {
    let network = snapshot.network();
    let of = |id| {
        let format = snapshot.map().entry(id).format.to_string();
        (network.parameter(id).name.clone(), (format, snapshot.tensor_digest(id)))
    };
    network.ids().map(of).collect()
}

/// What a program that only converts a checkpoint would make.
fn convert(checkpoint: &Checkpoint, recipe: Recipe, source: &dyn WeightSource) -> Snapshot {
    let (network, ledger) = (checkpoint.network(), Ledger::discard());
    let context = PolicyContext { run: "convert", step: 0, version: PolicyVersion(0), ledger: &ledger };
    quantize_policy(network, &map(network, recipe), &cpu(1).quantizer().unwrap(), source, context).unwrap()
}

/// Writes a version as a directory and reads the stored bytes back.
fn exported(checkpoint: &Checkpoint, snapshot: &Snapshot) -> Digests {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("policy");
    write_checkpoint(snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    digests(&Checkpoint::open(&target).unwrap().snapshot_as_stored(PolicyVersion(0)).unwrap())
}

/// Compares every hand-off of the trainer's current version with `converted`.
fn same_everywhere(what: &str, checkpoint: &Checkpoint, trainer: &CpuTrainer, converted: &Snapshot) {
    let operands = current(trainer);
    assert_eq!(digests(&operands), digests(converted), "{what}: the trainer's operands and the converted checkpoint");
    assert_eq!(operands.stamp().digest, converted.stamp().digest, "{what}: policy digest");
    let engine = engine(&cpu(1), &operands, 2);
    assert_eq!(engine.loaded(), Some(operands.stamp()), "{what}: the engine's version");
    assert_eq!(exported(checkpoint, &operands), digests(converted), "{what}: the exported directory");
}

fn one_step(trainer: &mut CpuTrainer) {
    let snapshot = current(trainer);
    let engine = engine(&cpu(2), &snapshot, 4);
    let rollout = generate(&engine, &request(snapshot.network().config.vocab_size, 1.0, 4, &[]));
    trainer.update(&batch(&rollout, snapshot.stamp()), &Clipped::default(), 1e-3).unwrap();
}

#[test]
fn every_hand_off_has_the_bytes_of_the_converted_checkpoint() {
    for family in FAMILIES {
        let checkpoint = checkpoint(family);
        for recipe in Recipe::ALL {
            let trainer = trainer(&cpu(2), &checkpoint, recipe, options(4096));
            let converted = convert(&checkpoint, recipe, &checkpoint);
            same_everywhere(&format!("{family} {recipe}"), &checkpoint, &trainer, &converted);
            let is_quantized = |entry: &PrecisionEntry| matches!(entry.format, TensorFormat::Quantized(_));
            let quantized = converted.map().entries().iter().filter(|entry| is_quantized(entry)).count();
            assert_eq!(quantized > 0, recipe != Recipe::Bf16, "{family} {recipe}: {quantized} quantized tensors");
        }
    }
}

/// O3: after an optimizer step the masters have bits that BF16 has not. Trainer, engine and export still start from the
/// same BF16 rounding as a conversion of the masters, also of masters that went through an F32 checkpoint.
#[test]
fn o3_masters_with_bits_below_bf16_are_quantized_from_one_source() {
    for family in FAMILIES {
        let checkpoint = checkpoint(family);
        for recipe in Recipe::ALL {
            let what = format!("{family} {recipe} after a step");
            let mut trainer = trainer(&cpu(2), &checkpoint, recipe, options(4096));
            let before = current(&trainer);
            one_step(&mut trainer);
            let after = publish(&mut trainer, 1);
            assert_ne!(before.stamp().digest, after.stamp().digest, "{what}: the step changed nothing");
            let below = |id| trainer.masters().values(id).iter().any(|value| !bf16::is_exact(*value));
            let is_quantized = |id| matches!(after.tensor(id).as_ref(), PolicyTensor::Quantized(_));
            let network = checkpoint.network();
            let affected = network.ids().filter(|&id| below(id) && (is_quantized(id) || recipe == Recipe::Bf16));
            assert!(affected.count() > 0, "{what}: no tensor has bits below BF16");
            same_everywhere(&what, &checkpoint, &trainer, &convert(&checkpoint, recipe, trainer.masters()));
        }
        let mut trainer = trainer(&cpu(2), &checkpoint, Recipe::Mxfp8, options(4096));
        one_step(&mut trainer);
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("masters");
        let high = WriteOptions { form: StoredForm::Dense(Dtype::F32), ..WriteOptions::default() };
        write_values(trainer.masters(), &checkpoint.template(), &target, &high).unwrap();
        let stored = Checkpoint::open(&target).unwrap();
        publish(&mut trainer, 1);
        same_everywhere(family, &checkpoint, &trainer, &convert(&checkpoint, Recipe::Mxfp8, &stored));
    }
}

/// What a run leaves in `policy/` is, tensor by tensor, what its ledger says was quantized for the last version, and
/// what a run from the exported values would start from.
#[test]
fn the_directory_that_a_run_leaves_is_what_its_ledger_says() {
    for family in ["qwen3-moe", "deepseek-v3", "llama-tied"] {
        let workspace = Workspace::new(family);
        for recipe in Recipe::ALL {
            let overrides = [format!("precision.recipe={recipe}"), "run.steps=2".to_owned()];
            let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
            let out = recipe.name();
            let outcome = workspace.run(out, &overrides).unwrap();
            let ledger = workspace.ledger(out);
            let last = outcome.summary.policy.version;
            assert_eq!(last, PolicyVersion(2));
            let recorded: Digests = ledger
                .iter()
                .filter(|event| event.version == last)
                .map(|event| (event.tensor.clone(), (event.format.clone(), event.output_digest)))
                .collect();
            let policy = Checkpoint::open(&workspace.path(out).join("policy")).unwrap();
            assert_eq!(recorded, digests(&policy.snapshot_as_stored(last).unwrap()), "{family} {recipe}");
            let tensors = policy.network().parameters.len();
            assert_eq!(ledger.len(), 3 * tensors, "{family} {recipe}: one event per tensor and version");
        }
    }
}

/// The same version exported in high precision, with experts one by one or packed, has the values of the codes.
#[test]
fn a_high_precision_export_has_the_values_of_the_codes() {
    let checkpoint = checkpoint("qwen3-moe");
    for recipe in [Recipe::Nvfp4Dequantized, Recipe::Mxfp8, Recipe::Fp8Block] {
        let snapshot = convert(&checkpoint, recipe, &checkpoint);
        for experts in [ExpertLayout::PerExpert, ExpertLayout::Packed] {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("policy");
            let form = StoredForm::Dense(Dtype::F32);
            let written = WriteOptions { form, experts, ..WriteOptions::default() };
            write_checkpoint(&snapshot, &checkpoint.template(), &target, &written).unwrap();
            let stored = Checkpoint::open(&target).unwrap();
            let mut values = Vec::new();
            for id in checkpoint.network().ids() {
                stored.read_f32(id, &mut values).unwrap();
                let held = match snapshot.tensor(id).as_ref() {
                    PolicyTensor::Dense(tensor) => tensor.to_f32(),
                    PolicyTensor::Quantized(tensor) => tensor.dequantize_f32().unwrap(),
                };
                assert_eq!(values, held, "{recipe} {experts:?} {}", checkpoint.network().parameter(id).name);
            }
        }
    }
}
