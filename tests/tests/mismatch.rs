//! The trainer's logprobs of sampled tokens are those of the engine, to the bit, because both compute them from the same
//! bytes; and they are computed, not copied: any difference in the bytes shows.

use std::sync::Arc;

use miles_backend_cpu_ref::kernel::Isa;
use miles_core::format::FormatId;
use miles_core::plugin::{
    Backend, EngineOptions, RolloutEngine, SampleScores, ScoredPolicy, StepRecord, TrainBatch, Trainer, TrainerInputs,
    TrainerOptions,
};
use miles_core::policy::{PolicyError, PolicyTensor, PolicyVersion, Snapshot};
use miles_core::precision::Recipe;
use miles_grpo::Error;

use crate::support::parts::{batch, current, engine, generate, options, request, trainer, with_flipped_bit};
use crate::support::spy::{Delivery, delivering};
use crate::support::workspace::{Workspace, finish};
use crate::support::{FAMILIES, backend, bits, checkpoint, cpu};

fn owned(overrides: &[String]) -> Vec<&str> {
    overrides.iter().map(String::as_str).collect()
}

fn assert_no_mismatch(records: &[StepRecord], steps: usize, what: &str) {
    assert_eq!(records.len(), steps, "{what}");
    for record in records {
        assert_eq!(record.number("train/mismatch_max_abs"), Some(0.0), "{what}: step {}", record.step);
        assert_eq!(record.number("train/mismatch_k3"), Some(0.0), "{what}: step {}", record.step);
        assert_eq!(record.number("train/clip_fraction"), Some(0.0), "{what}: a ratio of 1 is never clipped");
        assert!(record.number("train/entropy") > Some(0.5), "{what}: the model has to be uncertain of something");
        assert!(record.number("train/grad_norm") > Some(0.0), "{what}: the step has to change something");
    }
    let digests: Vec<_> = records.iter().map(|record| &record.values["policy_digest"]).collect();
    assert!(digests.windows(2).all(|pair| pair[0] != pair[1]), "{what}: {digests:?}");
}

#[test]
fn the_loop_has_no_mismatch_in_any_recipe_for_any_family() {
    for family in FAMILIES {
        let workspace = Workspace::new(family);
        for recipe in Recipe::ALL {
            let overrides = [format!("precision.recipe={recipe}"), "checkpoint.at_end=false".to_owned()];
            let outcome = workspace.run(recipe.name(), &owned(&overrides)).unwrap();
            let what = format!("{family} {recipe}");
            assert_no_mismatch(&workspace.metrics(recipe.name()), 3, &what);
            assert_eq!(outcome.summary.mismatch_max, 0.0, "{what}");
            assert_eq!(outcome.summary.versions, 4, "{what}");
        }
    }
}

/// The engine decodes one completion at a time on one thread with scalar instructions; the trainer packs ragged
/// micro-batches on two threads with whatever the machine has. They share neither threads nor packed weights.
#[test]
fn batch_shape_threads_and_instructions_make_no_mismatch() {
    let sampling = cpu(1).with_isa(Isa::SCALAR).backend().unwrap();
    let training = backend(2);
    for (family, micro_batch_tokens) in [("qwen3-moe", 23), ("deepseek-v3", 37), ("llama-tied", 9)] {
        let workspace = Workspace::new(family);
        let every = family == "qwen3-moe";
        for recipe in Recipe::ALL.into_iter().filter(|recipe| every || *recipe == Recipe::Mxfp8) {
            let one_by_one = |options| EngineOptions { max_running: 1, threads: Some(1), ..options };
            let ragged = move |options| TrainerOptions { micro_batch_tokens, threads: Some(2), ..options };
            let (engine, trainer) = (Arc::clone(&sampling.engine), Arc::clone(&training.trainer));
            let mixed = Backend {
                engine: Arc::new(move |options| engine(one_by_one(options))),
                trainer: Arc::new(move |inputs| {
                    let options = ragged(inputs.options.clone());
                    trainer(TrainerInputs { options, ..inputs })
                }),
                ..training.clone()
            };
            let overrides = [format!("precision.recipe={recipe}"), "run.steps=2".to_owned()];
            finish(workspace.builder_on(mixed, recipe.name(), &owned(&overrides))).unwrap();
            assert_no_mismatch(&workspace.metrics(recipe.name()), 2, &format!("{family} {recipe}"));
        }
    }
}

/// Trainer logprobs of every sample.
fn scored(trainer: &mut dyn Trainer, batch: &TrainBatch) -> Vec<SampleScores> {
    trainer.score(ScoredPolicy::Current, batch).unwrap()
}

/// Tokens whose trainer logprob is not the rollout logprob.
fn differing_tokens(batch: &TrainBatch, scores: &[SampleScores]) -> usize {
    let pairs = batch.samples().iter().zip(scores);
    pairs
        .map(|(sample, scores)| {
            assert_eq!(sample.rollout_logprobs.len(), scores.logprobs.len());
            let tokens = bits(&sample.rollout_logprobs).into_iter().zip(bits(&scores.logprobs));
            tokens.filter(|(rollout, trainer)| rollout != trainer).count()
        })
        .sum()
}

/// The first tensor in codes that every token multiplies; in recipes that quantize only routed experts, one of those.
fn shared_tensor(snapshot: &Snapshot) -> String {
    let network = snapshot.network();
    let quantized = network.ids().filter(|&id| matches!(snapshot.tensor(id).as_ref(), PolicyTensor::Quantized(_)));
    let mut parameters: Vec<_> = quantized.map(|id| network.parameter(id)).collect();
    parameters.sort_by_key(|parameter| parameter.expert.is_some());
    parameters[0].name.clone()
}

#[test]
fn one_flipped_code_bit_on_one_side_is_a_mismatch() {
    for family in ["llama-tied", "qwen3-moe", "deepseek-v3"] {
        let checkpoint = checkpoint(family);
        for recipe in Recipe::ALL.into_iter().filter(|recipe| *recipe != Recipe::Bf16) {
            let what = format!("{family} {recipe}");
            let mut trainer = trainer(&cpu(2), &checkpoint, recipe, options(4096));
            let published = current(&trainer);
            let request = request(checkpoint.network().config.vocab_size, 1.0, 12, &[]);

            let same = generate(&engine(&cpu(2), &published, 4), &request);
            let honest = batch(&same, published.stamp());
            assert_eq!(differing_tokens(&honest, &scored(&mut trainer, &honest)), 0, "{what}");

            let flipped = with_flipped_bit(&published, &shared_tensor(&published));
            let other = generate(&engine(&cpu(2), &flipped, 4), &request);
            let forged = batch(&other, published.stamp());
            assert!(
                differing_tokens(&forged, &scored(&mut trainer, &forged)) > 0,
                "{what}: the flipped bit is not seen"
            );
        }
    }
}

/// From the second version on the engine gets bytes with one code bit flipped.
fn flipping() -> Delivery {
    Arc::new(|snapshot: Arc<Snapshot>| match snapshot.stamp().version {
        PolicyVersion(0) => Some(snapshot),
        _ => Some(with_flipped_bit(&snapshot, &shared_tensor(&snapshot))),
    })
}

#[test]
fn the_loop_refuses_an_engine_whose_bytes_differ_in_one_bit() {
    let workspace = Workspace::new("qwen3-moe");
    let flipping = delivering(&backend(2), flipping(), false);
    let error = finish(workspace.builder_on(flipping, "out", &["precision.recipe=mxfp8"])).unwrap_err();
    let Error::Core(miles_core::Error::Policy(PolicyError::StaleVersion { expected, actual, .. })) = &error else {
        panic!("{error}")
    };
    assert_eq!(expected.version, actual.version);
    assert_ne!(expected.digest, actual.digest);
    assert_eq!(workspace.metrics("out").len(), 1, "the first step was good");
}

/// An engine that lies about its version is found out by the measurement itself.
#[test]
fn the_loop_measures_the_mismatch_of_an_engine_that_lies() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in [FormatId::mxfp8(), FormatId::fp8_block()].map(|format| format.as_str().to_owned()) {
        let lying = delivering(&backend(2), flipping(), true);
        let overrides = [format!("precision.recipe={recipe}")];
        finish(workspace.builder_on(lying, &recipe, &owned(&overrides))).unwrap();
        let mismatch: Vec<f64> =
            workspace.metrics(&recipe).iter().map(|record| record.number("train/mismatch_max_abs").unwrap()).collect();
        assert_eq!(mismatch[0], 0.0, "{recipe}");
        assert!(mismatch[1] > 0.0 && mismatch[2] > 0.0, "{recipe}: {mismatch:?}");
    }
}

/// O14: both sides report the logprob of the temperature-scaled distribution, so the ratio is exactly 1.
#[test]
fn o14_temperature_is_applied_on_both_sides() {
    let recipes = [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block];
    for family in ["qwen3-moe", "deepseek-v3"] {
        let workspace = Workspace::new(family);
        let checkpoint = workspace.checkpoint();
        for recipe in recipes {
            for temperature in [0.6, 1.0, 1.7] {
                let what = format!("{family}-{recipe}-{temperature}");
                let overrides = [
                    format!("precision.recipe={recipe}"),
                    format!("rollout.temperature={temperature}"),
                    "run.steps=2".to_owned(),
                ];
                workspace.run(&what, &owned(&overrides)).unwrap();
                assert_no_mismatch(&workspace.metrics(&what), 2, &what);
            }
        }
        // What is reported is the scaled logprob of the full vocabulary: it depends on the temperature as it should.
        let trainer = trainer(&cpu(2), &checkpoint, Recipe::Mxfp8, options(4096));
        let engine = engine(&cpu(2), &current(&trainer), 4);
        for temperature in [0.6, 1.0, 1.7] {
            let rollout = generate(&engine, &request(checkpoint.network().config.vocab_size, temperature, 8, &[]));
            assert_eq!(rollout.logprob_temperature, temperature);
            for sample in batch(&rollout, rollout.stamp).samples() {
                let logits = engine.logits(&sample.tokens).unwrap();
                let of = |temperature| {
                    let all = engine.next_token_logprobs(&sample.tokens, &logits, temperature).unwrap();
                    bits(&all[sample.prompt_tokens - 1..])
                };
                assert_eq!(bits(&sample.rollout_logprobs), of(temperature), "{family} at {temperature}");
                assert_ne!(bits(&sample.rollout_logprobs), of(temperature + 0.5), "{family} at {temperature}");
            }
        }
        assert!(engine.loaded().is_some());
    }
}
