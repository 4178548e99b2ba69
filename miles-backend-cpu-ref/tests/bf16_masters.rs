//! Masters in BF16: half the bytes, the same first version, updates that do not depend on threads or cuts, state that
//! returns. That small updates are not lost is tested beside the optimizer.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use miles_backend_cpu_ref::kernel::Isa;
use miles_backend_cpu_ref::trainer::CpuTrainer;
use miles_core::Error;
use miles_core::network::Role;
use miles_core::number::bf16;
use miles_core::plugin::{ActivationDtype, MasterDtype, TrainError, Trainer, TrainerOptions};
use miles_core::policy::PolicyStamp;
use miles_core::precision::{Recipe, resolve};
use support::{FAMILIES, WeightedSum, batch, context, fixture, options, publish, published, random_samples};

fn in_bf16() -> TrainerOptions {
    TrainerOptions { masters: MasterDtype::Bf16, seed: 7, ..options(ActivationDtype::Bf16) }
}

/// A trainer on a fixture, version 0 published.
fn trainer(family: &str, recipe: Recipe, options: TrainerOptions, isa: Isa, threads: usize) -> CpuTrainer {
    let checkpoint = fixture(family);
    let map = resolve(checkpoint.network(), recipe, &[]).unwrap();
    published(&context(isa, threads), checkpoint.network(), map, &checkpoint, options).0
}

fn stamp(trainer: &CpuTrainer) -> PolicyStamp {
    trainer.current_weights().unwrap().stamp()
}

/// One optimizer step and the version that it makes.
fn step(trainer: &mut CpuTrainer, version: u64) -> PolicyStamp {
    let vocab_size = trainer.current_weights().unwrap().snapshot().network().config.vocab_size;
    let samples = random_samples(version, 4, vocab_size, 16);
    let current = batch(&samples, stamp(trainer));
    trainer.update(&current, &WeightedSum, 1e-3).unwrap();
    publish(trainer, version).stamp()
}

#[test]
fn masters_in_bf16_are_half_as_large_and_make_the_same_first_version() {
    for family in FAMILIES {
        for recipe in Recipe::ALL {
            let full = trainer(family, recipe, options(ActivationDtype::Bf16), Isa::detect(), 2);
            let half = trainer(family, recipe, in_bf16(), Isa::detect(), 2);
            assert_eq!(stamp(&full), stamp(&half), "{family} {recipe}");
            let weights = half.current_weights().unwrap();
            let parameters = &weights.snapshot().network().parameters;
            let elements = |is_bias: bool| {
                let held = parameters.iter().filter(|parameter| (parameter.role == Role::RouterBias) == is_bias);
                held.map(|parameter| parameter.elements()).sum::<usize>()
            };
            assert_eq!(half.masters().bytes(), 2 * elements(false) + 4 * elements(true), "{family}");
            assert_eq!(full.masters().bytes(), 4 * (elements(false) + elements(true)), "{family}");
        }
    }
}

#[test]
fn an_update_does_not_depend_on_threads_instructions_or_cuts() {
    for (family, recipe) in [("qwen3-moe", Recipe::Mxfp8), ("llama-tied", Recipe::Nvfp4HighPrecision)] {
        let mut wanted = None;
        for (isa, threads, micro_batch_tokens) in
            [(Isa::SCALAR, 1, 1), (Isa::detect(), 1, 1 << 20), (Isa::detect(), 3, 40)]
        {
            let options = TrainerOptions { micro_batch_tokens, ..in_bf16() };
            // The weight gradient of a quantized backward groups the tokens of a micro-batch.
            let options = if recipe == Recipe::Mxfp8 { in_bf16() } else { options };
            let mut trainer = trainer(family, recipe, options, isa, threads);
            let last = (1..=3).map(|version| step(&mut trainer, version)).last().unwrap();
            assert_eq!(*wanted.get_or_insert(last), last, "{family} {recipe}");
        }
    }
}

#[test]
fn every_master_stays_a_bf16_value_and_the_seed_matters() {
    let versions = [7, 8].map(|seed| {
        let options = TrainerOptions { seed, ..in_bf16() };
        let mut trainer = trainer("qwen3-moe", Recipe::Nvfp4Dequantized, options, Isa::detect(), 2);
        let stamp = step(&mut trainer, 1);
        let network = std::sync::Arc::clone(trainer.current_weights().unwrap().snapshot().network());
        for id in network.ids() {
            assert!(trainer.masters().values(id).iter().all(|value| bf16::is_exact(*value)));
        }
        stamp
    });
    assert_ne!(versions[0], versions[1]);
}

#[test]
fn a_restored_trainer_goes_on_to_the_same_digests_and_another_number_type_is_refused() {
    let fresh = || trainer("qwen3-moe", Recipe::Nvfp4Dequantized, in_bf16(), Isa::detect(), 2);
    let mut through = fresh();
    let first = step(&mut through, 1);
    let directory = tempfile::tempdir().unwrap();
    through.save(directory.path()).unwrap();
    let second = step(&mut through, 2);

    let mut restored = fresh();
    restored.restore(directory.path()).unwrap();
    assert_eq!(publish(&mut restored, 1).stamp(), first);
    assert_eq!(step(&mut restored, 2), second);

    let in_f32 = options(ActivationDtype::Bf16);
    let mut full = trainer("qwen3-moe", Recipe::Nvfp4Dequantized, in_f32, Isa::detect(), 2);
    let error = full.restore(directory.path()).unwrap_err();
    let names_both = |why: &str| why.contains("Bf16") && why.contains("F32");
    assert!(matches!(&error, Error::Train(TrainError::State { why, .. }) if names_both(why)), "{error}");
}
