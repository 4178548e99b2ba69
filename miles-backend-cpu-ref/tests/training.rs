//! What a trainer promises: batch invariance, one source per version, versions that are checked, state that returns.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::sync::Arc;

use miles_backend_cpu_ref::kernel::Isa;
use miles_backend_cpu_ref::ops::{Activation, Forward, PolicyWeights};
use miles_backend_cpu_ref::trainer::{BackwardPass, CpuTrainer, Gradients, ScoringHead};
use miles_core::Error;
use miles_core::format::{NonFinite, QuantizeSpec, Source, SourceDtype, builtin_rule};
use miles_core::network::{Network, ParamId};
use miles_core::number::bf16;
use miles_core::plugin::{
    ActivationDtype, BatchTotals, Loss, LossInput, LossTerms, SampleScores, ScoredPolicy, TrainBatch, TrainError,
    TrainSample, Trainer, TrainerOptions,
};
use miles_core::policy::{PolicyError, PolicyTensor};
use miles_core::precision::{Recipe, resolve};
use support::{FAMILIES, WeightedSum, batch, bits, context, fixture, options, publish, published, random_samples};

/// A trainer on a fixture, version 0 published.
fn trainer(family: &str, recipe: Recipe, options: TrainerOptions, isa: Isa, threads: usize) -> CpuTrainer {
    let checkpoint = fixture(family);
    let map = resolve(checkpoint.network(), recipe, &[]).unwrap();
    published(&context(isa, threads), checkpoint.network(), map, &checkpoint, options).0
}

fn network(trainer: &CpuTrainer) -> Arc<Network> {
    Arc::clone(trainer.current_weights().unwrap().snapshot().network())
}

fn current_batch(trainer: &CpuTrainer, samples: &[TrainSample]) -> TrainBatch {
    batch(samples, trainer.current_weights().unwrap().stamp())
}

fn score_bits(scores: &[SampleScores]) -> Vec<(Vec<u32>, Vec<u32>)> {
    scores.iter().map(|scores| (bits(&scores.logprobs), bits(&scores.entropies))).collect()
}

/// Field case O16: the gradient of a step does not depend on how the batch is cut into micro-batches.
#[test]
fn o16_an_update_is_bit_equal_for_every_cut_into_micro_batches() {
    let recipes = [Recipe::Bf16, Recipe::Nvfp4Dequantized, Recipe::Mxfp8HighPrecision, Recipe::Fp8BlockDequantized];
    for family in ["llama-tied", "qwen3-moe", "deepseek-v3", "qwen2-bias"] {
        for recipe in recipes {
            let mut wanted = None;
            // One sample each; about two; ragged; all.
            for micro_batch_tokens in [1, 40, 63, 1 << 20] {
                let options = TrainerOptions { micro_batch_tokens, ..options(ActivationDtype::Bf16) };
                let mut trainer = trainer(family, recipe, options, Isa::detect(), 2);
                let network = network(&trainer);
                let samples = random_samples(3, 7, network.config.vocab_size, 30);
                let report = trainer.update(&current_batch(&trainer, &samples), &WeightedSum, 1e-3).unwrap();
                let masters: Vec<Vec<u32>> = network.ids().map(|id| bits(&trainer.masters().values(id))).collect();
                let seen = (report.loss.to_bits(), report.grad_norm.to_bits(), score_bits(&report.scores), masters);
                if micro_batch_tokens == 1 {
                    assert_eq!(report.micro_batches, 7);
                }
                match &wanted {
                    None => wanted = Some(seen),
                    Some(wanted) => assert!(*wanted == seen, "{family} {recipe} cut at {micro_batch_tokens}"),
                }
            }
        }
    }
}

/// Field case O15: a token's logprob has the same bits in every batch, at every position of it, on any threads.
#[test]
fn o15_scores_are_bit_equal_alone_and_packed_anywhere() {
    for family in FAMILIES {
        for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
            let mut scalar = trainer(family, recipe, options(ActivationDtype::Bf16), Isa::SCALAR, 1);
            let samples = random_samples(5, 32, network(&scalar).config.vocab_size, 20);
            let alone: Vec<SampleScores> = samples
                .iter()
                .flat_map(|sample| {
                    let one = current_batch(&scalar, std::slice::from_ref(sample));
                    scalar.score(ScoredPolicy::Current, &one).unwrap()
                })
                .collect();
            let wanted = score_bits(&alone);
            let mut other = trainer(family, recipe, options(ActivationDtype::Bf16), Isa::detect(), 3);
            for size in [2, 8, 32] {
                for (samples, wanted) in samples.chunks(size).zip(wanted.chunks(size)) {
                    let many = current_batch(&other, samples);
                    let got = other.score(ScoredPolicy::Current, &many).unwrap();
                    assert!(score_bits(&got) == wanted, "{family} {recipe} at batch {size}");
                }
            }
            // The other way round, so that every sample sits at another position.
            let reversed: Vec<TrainSample> = samples.iter().rev().cloned().collect();
            let many = current_batch(&other, &reversed);
            let mut got = score_bits(&other.score(ScoredPolicy::Current, &many).unwrap());
            got.reverse();
            assert!(got == wanted, "{family} {recipe} reversed");
        }
    }
}

/// Field case O3: the forward pass multiplies the very bytes that are published, made from the BF16 rounding of the
/// master, also when the master has bits below BF16.
#[test]
fn o3_the_forward_operand_is_the_published_one_and_starts_from_bf16() {
    for recipe in [Recipe::Mxfp8, Recipe::Nvfp4HighPrecision, Recipe::Fp8Block] {
        let mut trainer = trainer("qwen3-moe", recipe, options(ActivationDtype::Bf16), Isa::detect(), 2);
        let network = network(&trainer);
        let samples = random_samples(8, 4, network.config.vocab_size, 20);
        trainer.update(&current_batch(&trainer, &samples), &WeightedSum, 1e-3).unwrap();
        let snapshot = publish(&mut trainer, 1);
        let weights = trainer.current_weights().unwrap();
        assert!(Arc::ptr_eq(weights.snapshot(), &snapshot), "the forward pass reads the published snapshot");
        let (mut quantized, mut below_bf16) = (0, 0);
        for id in network.ids() {
            let parameter = network.parameter(id);
            let PolicyTensor::Quantized(published) = snapshot.tensor(id).as_ref() else { continue };
            let master = trainer.masters().values(id);
            below_bf16 += master.iter().filter(|value| !bf16::is_exact(**value)).count();
            let rounded = |id: ParamId| -> Vec<f32> {
                trainer.masters().values(id).iter().map(|&value| bf16::round(value)).collect()
            };
            let (own, partner) = (rounded(id), parameter.pair.map(rounded));
            let (rows, cols) = parameter.rows_cols();
            let source = |values| Source::new(values, rows, cols, SourceDtype::Bf16, None).unwrap();
            let sources: Vec<Source<'_>> =
                [Some(&own), partner.as_ref()].into_iter().flatten().map(|v| source(v)).collect();
            let spec = QuantizeSpec::weight(published.format().clone()).with_non_finite(NonFinite::Error);
            let want = &builtin_rule(published.format()).unwrap().quantize_joint(&sources, &spec).unwrap()[0];
            assert_eq!(want.canonical_bytes(), published.canonical_bytes(), "{recipe} {}", parameter.name);
            quantized += 1;
        }
        assert!(quantized > 0 && below_bf16 > 1000, "{quantized} quantized tensors, {below_bf16} values below BF16");
        // A second reader of the same version shares the packed weights: there is no other copy to disagree.
        let context = context(Isa::detect(), 1);
        let (first, second) =
            (PolicyWeights::new(&snapshot, &context).unwrap(), PolicyWeights::new(&snapshot, &context).unwrap());
        let id = network.head.weight;
        let (first, second) = (first.matrix(id).unwrap(), second.matrix(id).unwrap());
        assert!(Arc::ptr_eq(&first.packed, &second.packed));
    }
}

/// Field case O10: a batch that was sampled from another version is refused, with both versions in the error.
#[test]
fn o10_a_batch_from_another_version_is_refused() {
    let mut trainer = trainer("llama-tied", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 2);
    let samples = random_samples(1, 3, 160, 12);
    let old = current_batch(&trainer, &samples);
    trainer.update(&old, &WeightedSum, 1e-3).unwrap();

    let error = trainer.score(ScoredPolicy::Current, &old).unwrap_err();
    assert!(matches!(error, Error::Train(TrainError::Unpublished { operation: "score" })), "{error}");
    let error = trainer.score(ScoredPolicy::Reference, &old).unwrap_err();
    assert!(matches!(error, Error::Train(TrainError::Unpublished { .. })), "{error}");
    let error = trainer.update(&old, &WeightedSum, 1e-3).unwrap_err();
    assert!(matches!(error, Error::Train(TrainError::Unpublished { operation: "update" })), "{error}");

    let new = publish(&mut trainer, 1).stamp();
    for error in
        [trainer.score(ScoredPolicy::Current, &old).unwrap_err(), trainer.update(&old, &WeightedSum, 1e-3).unwrap_err()]
    {
        let Error::Policy(PolicyError::StaleVersion { expected, actual, .. }) = error else { panic!("{error}") };
        assert_eq!((expected, actual), (new, old.stamp()));
    }
    trainer.score(ScoredPolicy::Current, &batch(&samples, new)).unwrap();
}

#[test]
fn the_reference_policy_is_the_first_published_one() {
    let mut trainer = trainer("qwen3", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 2);
    let samples = random_samples(1, 3, 170, 12);
    let first = current_batch(&trainer, &samples);
    let before = trainer.score(ScoredPolicy::Current, &first).unwrap();
    trainer.update(&first, &WeightedSum, 1e-2).unwrap();
    publish(&mut trainer, 1);
    let second = current_batch(&trainer, &samples);
    assert_eq!(score_bits(&trainer.score(ScoredPolicy::Reference, &second).unwrap()), score_bits(&before));
    assert_ne!(score_bits(&trainer.score(ScoredPolicy::Current, &second).unwrap()), score_bits(&before));
}

/// Two steps, and two with a save and a restore between them.
#[test]
fn a_restored_trainer_goes_on_to_the_same_digests() {
    for (family, recipe) in [("qwen3-moe", Recipe::Nvfp4Dequantized), ("llama-tied", Recipe::Mxfp8)] {
        let step = |trainer: &mut CpuTrainer, version: u64| {
            let samples = random_samples(version, 4, 160, 16);
            trainer.update(&current_batch(trainer, &samples), &WeightedSum, 1e-3).unwrap();
            publish(trainer, version).stamp()
        };
        let fresh = || trainer(family, recipe, options(ActivationDtype::Bf16), Isa::detect(), 2);
        let mut through = fresh();
        let first = step(&mut through, 1);
        let directory = tempfile::tempdir().unwrap();
        through.save(directory.path()).unwrap();
        let second = step(&mut through, 2);

        let mut restored = fresh();
        restored.restore(directory.path()).unwrap();
        let samples = random_samples(9, 1, 160, 9);
        let stale = batch(&samples, first);
        let error = restored.score(ScoredPolicy::Current, &stale).unwrap_err();
        assert!(matches!(error, Error::Train(TrainError::Unpublished { .. })), "{error}");
        assert_eq!(publish(&mut restored, 1).stamp(), first);
        assert_eq!(step(&mut restored, 2), second);
    }
}

#[test]
fn a_state_of_another_network_or_a_missing_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = trainer("qwen3", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 1);
    let error = other.restore(directory.path()).unwrap_err().to_string();
    assert!(error.contains("state.json"), "{error}");
    trainer("llama-tied", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 1)
        .save(directory.path())
        .unwrap();
    let error = other.restore(directory.path()).unwrap_err();
    assert!(matches!(&error, Error::Train(TrainError::State { file, .. }) if file.contains("masters")), "{error}");
    let frozen = TrainerOptions { train_router: false, ..options(ActivationDtype::Bf16) };
    let moe = trainer("qwen3-moe", Recipe::Bf16, frozen, Isa::detect(), 1);
    let directory = tempfile::tempdir().unwrap();
    moe.save(directory.path()).unwrap();
    let mut trains_router = trainer("qwen3-moe", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 1);
    let error = trains_router.restore(directory.path()).unwrap_err().to_string();
    assert!(error.contains("first_moments") && error.contains("mlp.gate.weight"), "{error}");
}

/// A loss whose gradient is not a number for one sample.
struct Broken;

impl Loss for Broken {
    fn evaluate(&self, _input: &LossInput<'_>, _totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        gradient[0] = f32::NAN;
        LossTerms::default()
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let mut trainer = trainer("qwen3", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 2);
    let before = trainer.masters().clone();
    let samples = random_samples(1, 2, 170, 12);
    let batch = current_batch(&trainer, &samples);
    let error = trainer.update(&batch, &Broken, 1e-3).unwrap_err();
    assert!(matches!(error, Error::Train(TrainError::NonFiniteGradient { .. })), "{error}");
    assert_eq!(*trainer.masters(), before);
    trainer.update(&batch, &WeightedSum, 1e-3).unwrap();
}

#[test]
fn samples_that_the_network_cannot_run_are_refused() {
    let mut trainer = trainer("qwen3", Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 1);
    let mut samples = random_samples(1, 3, 170, 12);
    samples[2].tokens[1] = 170;
    let wrong_id = current_batch(&trainer, &samples);
    let error = trainer.score(ScoredPolicy::Current, &wrong_id).unwrap_err();
    let expected = matches!(error, Error::Train(TrainError::TokenOutOfRange { index: 2, id: 170, vocab_size: 170 }));
    assert!(expected, "{error}");
    let tokens = network(&trainer).config.context_tokens + 1;
    samples[0] = TrainSample {
        tokens: vec![1; tokens],
        prompt_tokens: tokens - 1,
        rollout_logprobs: vec![0.0],
        reference_logprobs: None,
        advantage: 0.0,
    };
    let too_long = current_batch(&trainer, &samples);
    let error = trainer.update(&too_long, &WeightedSum, 1e-3).unwrap_err();
    assert!(matches!(error, Error::Train(TrainError::ContextExceeded { index: 0, .. })), "{error}");
}

#[test]
fn a_router_is_trained_only_when_asked_and_its_selection_bias_never() {
    for train_router in [false, true] {
        let options = TrainerOptions { train_router, ..options(ActivationDtype::Bf16) };
        let mut trainer = trainer("deepseek-v3", Recipe::Bf16, options, Isa::detect(), 2);
        let network = network(&trainer);
        let before = trainer.masters().clone();
        let samples = random_samples(1, 4, 160, 16);
        trainer.update(&current_batch(&trainer, &samples), &WeightedSum, 1e-3).unwrap();
        let changed = |end: &str| {
            let ids = network.ids().filter(|&id| network.parameter(id).name.ends_with(end));
            let changes: Vec<bool> = ids.map(|id| before.values(id) != trainer.masters().values(id)).collect();
            assert!(!changes.is_empty() && changes.iter().all(|change| *change == changes[0]), "{end}: {changes:?}");
            changes[0]
        };
        assert_eq!(changed("mlp.gate.weight"), train_router);
        assert!(!changed("e_score_correction_bias"));
        assert!(changed("q_a_proj.weight"));
    }
}

/// Gradient ascent on the logprobs of some samples.
struct MoreLikely;

impl Loss for MoreLikely {
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms {
        gradient.fill(-1.0 / totals.tokens as f32);
        let sum: f64 = input.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
        LossTerms { loss: -sum / totals.tokens as f64, clipped_tokens: 0 }
    }
}

#[test]
fn every_recipe_learns_what_it_is_rewarded_for_and_reports_its_norms() {
    for recipe in Recipe::ALL {
        let mut trainer = trainer("qwen3-moe", recipe, options(ActivationDtype::Bf16), Isa::detect(), 2);
        let samples = random_samples(2, 6, 160, 14);
        let mut losses = Vec::new();
        for version in 1..=12 {
            let report = trainer.update(&current_batch(&trainer, &samples), &MoreLikely, 3e-3).unwrap();
            let squares: f64 = report.part_grad_norms.iter().map(|(_, norm)| norm * norm).sum();
            assert!((squares.sqrt() - report.grad_norm).abs() < 1e-9 * report.grad_norm, "{report:?}");
            let parts: Vec<&str> = report.part_grad_norms.iter().map(|(part, _)| part.as_str()).collect();
            assert_eq!(parts, ["embedding", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "head"]);
            losses.push(report.loss);
            publish(&mut trainer, version);
        }
        assert!(losses[11] < losses[0] - 1.0, "{recipe}: {losses:?}");
    }
}

/// Every piece size gives the same scores, hidden gradients and head gradients, whether a sample fits or not.
#[test]
fn logits_in_pieces_give_the_bits_of_the_whole() {
    for family in ["llama3-rope-scaled", "deepseek-v3"] {
        let trainer = trainer(family, Recipe::Bf16, options(ActivationDtype::Bf16), Isa::detect(), 2);
        let network = network(&trainer);
        let weights = Arc::clone(trainer.current_weights().unwrap());
        let context = context(Isa::detect(), 2);
        let forward = Forward { context: &context, weights: &weights, activations: ActivationDtype::Bf16 };
        let (samples, hidden_size) = ([0..5, 5..6, 6..15, 15..17], network.config.hidden_size);
        let draws = random_samples(4, 40, 160, 60).into_iter().flat_map(|sample| sample.rollout_logprobs);
        let values: Vec<f32> = draws.map(bf16::round).cycle().take(17 * hidden_size).collect();
        let hidden = Activation::new(17, hidden_size, values);
        let targets: Vec<u32> = (0..17).map(|row| row * 7 % 160).collect();
        let run = |max_rows: usize| {
            let head = ScoringHead { max_rows, ..ScoringHead::new(forward, 0.7) };
            let mut gradients = Gradients::zeroed(&network, true);
            let mut pass = BackwardPass { forward, masters: trainer.masters(), gradients: &mut gradients };
            let mut judged = Vec::new();
            let mut judge = |index: usize, logprobs: &[f32], gradient: &mut [f32]| {
                judged.push(index);
                gradient.copy_from_slice(logprobs);
            };
            let (scores, d_hidden) =
                head.score_and_backward(&hidden, &targets, &samples, &mut judge, &mut pass).unwrap();
            assert_eq!(judged, [0, 1, 2, 3]);
            let alone = head.score(&hidden, &targets).unwrap();
            let all: Vec<f32> = scores.iter().flat_map(|scores| scores.logprobs.clone()).collect();
            assert_eq!(bits(&alone.logprobs), bits(&all));
            let weight = gradients.of(network.head.weight).unwrap();
            assert!(weight.iter().any(|&value| value != 0.0));
            (score_bits(&scores), bits(&d_hidden), bits(weight))
        };
        let whole = run(1000);
        for max_rows in [1, 2, 5, 7, 16] {
            assert!(run(max_rows) == whole, "{family} in pieces of {max_rows}");
        }
    }
}

/// What quantization could not keep is counted alike on any threads and for every cut into micro-batches.
#[test]
fn activation_counts_depend_on_neither_threads_nor_micro_batches() {
    for family in ["qwen3-moe", "llama-tied"] {
        for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4HighPrecision, Recipe::Fp8BlockDequantized] {
            let mut wanted = None;
            for (threads, micro_batch_tokens) in [(1, 1 << 20), (3, 1 << 20), (1, 1), (2, 40)] {
                let options = TrainerOptions { micro_batch_tokens, ..options(ActivationDtype::Bf16) };
                let trainer = trainer(family, recipe, options, Isa::detect(), threads);
                let samples = random_samples(3, 7, network(&trainer).config.vocab_size, 30);
                let (_, report) = trainer.gradients(&current_batch(&trainer, &samples), &WeightedSum).unwrap();
                let counts = report.activation_counts;
                let layers: Vec<Option<usize>> = counts.iter().map(|(layer, _)| *layer).collect();
                let quantized = network(&trainer).config.layer_count() - 1;
                let expected = if recipe == Recipe::Bf16 { 0 } else { quantized };
                assert_eq!(layers, (0..expected).map(Some).collect::<Vec<_>>(), "{family} {recipe}");
                assert!(counts.iter().all(|(_, counts)| counts.elements > 0 && counts.non_finite == 0));
                let wanted = wanted.get_or_insert_with(|| counts.clone());
                assert_eq!(*wanted, counts, "{family} {recipe}, {threads} threads, cut at {micro_batch_tokens}");
            }
        }
    }
}
