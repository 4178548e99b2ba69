//! What a step does depends on its batch alone, not on how the batch is cut into micro-batches: each loss gets the
//! batch's totals, and every gradient is one chain over all tokens.

use miles_core::plugin::{TrainBatch, Trainer, UpdateReport};
use miles_core::policy::PolicyStamp;
use miles_core::precision::{BackwardMode, Recipe};
use miles_grpo::kl::KlEstimator;
use miles_grpo::loss::{Clipped, Denominator};

use crate::support::parts::{batch, current, engine, generate, options, publish, request, trainer};
use crate::support::workspace::{Workspace, same_metrics};
use crate::support::{checkpoint, cpu};

/// Recipes whose weight gradient does not group tokens into blocks.
fn cut_free() -> impl Iterator<Item = Recipe> {
    Recipe::ALL.into_iter().filter(|recipe| recipe.backward() != BackwardMode::Quantized)
}

/// Sampled completions of several lengths: one id of nine ends them.
fn sampled(family: &str) -> TrainBatch {
    let checkpoint = checkpoint(family);
    let trainer = trainer(&cpu(2), &checkpoint, Recipe::Bf16, options(4096));
    let vocab_size = checkpoint.network().config.vocab_size;
    let eos: Vec<u32> = (0..vocab_size as u32).step_by(9).collect();
    let rollout = generate(&engine(&cpu(2), &current(&trainer), 8), &request(vocab_size, 1.0, 16, &eos));
    let batch = batch(&rollout, rollout.stamp);
    let mut lengths: Vec<usize> = batch.samples().iter().map(|sample| sample.completion_tokens()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    assert!(lengths.len() >= 4, "{lengths:?}");
    batch
}

/// The same samples under another version's stamp, with reference logprobs.
fn of(stamp: PolicyStamp, batch: &TrainBatch) -> TrainBatch {
    let mut samples = batch.samples().to_vec();
    for sample in &mut samples {
        sample.reference_logprobs = Some(sample.rollout_logprobs.iter().map(|logprob| logprob - 0.125).collect());
    }
    TrainBatch::new(samples, stamp, batch.temperature()).unwrap()
}

/// Two updates; the reports and the policies after them.
fn two_updates(
    family: &str,
    recipe: Recipe,
    micro_batch_tokens: usize,
    threads: usize,
    samples: &TrainBatch,
    loss: Clipped,
) -> (Vec<UpdateReport>, Vec<PolicyStamp>) {
    let mut trainer = trainer(&cpu(threads), &checkpoint(family), recipe, options(micro_batch_tokens));
    let mut reports = Vec::new();
    let mut stamps = vec![current(&trainer).stamp()];
    for version in 1..=2 {
        let batch = of(stamps[stamps.len() - 1], samples);
        reports.push(trainer.update(&batch, &loss, 1e-3).unwrap());
        stamps.push(publish(&mut trainer, version).stamp());
    }
    (reports, stamps)
}

/// Number of micro-batches left out: it is the one thing that may differ.
fn without_cut(reports: Vec<UpdateReport>) -> Vec<UpdateReport> {
    reports.into_iter().map(|report| UpdateReport { micro_batches: 0, ..report }).collect()
}

/// O16: one sample at a time, ragged, and all at once: equal losses, gradient norms and policies, to the bit.
#[test]
fn o16_an_update_does_not_depend_on_micro_batches() {
    for family in ["llama-tied", "qwen3-moe", "deepseek-v3"] {
        let samples = sampled(family);
        let every = family == "qwen3-moe";
        let recipes = cut_free().filter(|recipe| every || [Recipe::Bf16, Recipe::Nvfp4Dequantized].contains(recipe));
        for (index, recipe) in recipes.enumerate() {
            let denominator = [Denominator::TokenMean, Denominator::SequenceMean][index % 2];
            let loss =
                Clipped { denominator, kl_coefficient: 0.1, kl_estimator: KlEstimator::K3, ..Clipped::default() };
            let run = |tokens| two_updates(family, recipe, tokens, 2, &samples, loss);
            let (whole, policies) = run(1 << 20);
            assert_eq!(whole[0].micro_batches, 1);
            assert_ne!(policies[1].digest, policies[2].digest);
            let whole = without_cut(whole);
            for micro_batch_tokens in [1, 23] {
                let (cut, found) = run(micro_batch_tokens);
                assert!(cut[0].micro_batches > 1);
                let what = format!("{family} {recipe} {denominator:?} cut at {micro_batch_tokens}");
                assert_eq!(found, policies, "{what}");
                assert!(without_cut(cut) == whole, "{what}: the reports differ");
            }
        }
    }
}

/// O16 for whole runs.
#[test]
fn o16_a_run_does_not_depend_on_micro_batches() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in [Recipe::Bf16, Recipe::Nvfp4HighPrecision, Recipe::Nvfp4Dequantized] {
        let run = |tokens: usize| {
            let out = format!("{recipe}-{tokens}");
            let overrides = [format!("precision.recipe={recipe}"), format!("train.micro_batch_tokens={tokens}")];
            let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
            let policy = workspace.run(&out, &overrides).unwrap().summary.policy;
            (policy, workspace.metrics(&out))
        };
        let (policy, metrics) = run(4096);
        for tokens in [1, 17] {
            let (found, records) = run(tokens);
            same_metrics(&records, &metrics, &format!("{recipe} cut at {tokens}"));
            assert_eq!(found, policy, "{recipe} cut at {tokens}");
        }
    }
}

/// The exception: the quantized backward groups tokens into blocks per micro-batch. It is a function of the cut alone:
/// the same on any threads, every time; and nothing but the gradient depends on the cut.
#[test]
fn o16_the_quantized_backward_is_a_function_of_the_cut() {
    for family in ["llama-tied", "qwen3-moe"] {
        let samples = sampled(family);
        for recipe in [Recipe::Mxfp8, Recipe::Fp8Block] {
            let whole = two_updates(family, recipe, 1 << 20, 2, &samples, Clipped::default());
            for micro_batch_tokens in [1, 23, 1 << 20] {
                let run =
                    |threads| two_updates(family, recipe, micro_batch_tokens, threads, &samples, Clipped::default());
                let (first, second) = (run(1), run(2));
                let what = format!("{family} {recipe} cut at {micro_batch_tokens}");
                assert_eq!(first.1, second.1, "{what}");
                assert!(first.0 == second.0, "{what}: the reports differ");
                assert_eq!(first.0[0].scores, whole.0[0].scores, "{what}: the forward pass does not know the cut");
                assert_eq!(first.0[0].loss.to_bits(), whole.0[0].loss.to_bits(), "{what}");
            }
        }
    }
}
