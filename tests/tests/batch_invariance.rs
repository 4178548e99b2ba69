//! A token's logprob is the same bits whatever is computed beside it, and so is a whole update, on any threads and with
//! any instruction set.

use miles_backend_cpu_ref::CpuRef;
use miles_backend_cpu_ref::kernel::Isa;
use miles_core::plugin::{SampleScores, ScoredPolicy, TrainBatch, TrainSample, Trainer};
use miles_core::precision::Recipe;
use miles_grpo::loss::Clipped;

use crate::support::parts::{batch, current, engine, generate, options, publish, random_ids, request, trainer};
use crate::support::workspace::{Workspace, finish, same_metrics};
use crate::support::{FAMILIES, bits, checkpoint, cpu};

const RECIPES: [Recipe; 4] = [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block];

/// Sequences of 2 to 33 tokens whose first token is the prompt.
fn samples(count: usize, vocab_size: usize) -> Vec<TrainSample> {
    let sample = |index: usize| {
        let tokens = random_ids(index as u64, 2 + (index * 11) % 32, vocab_size);
        TrainSample {
            prompt_tokens: 1,
            rollout_logprobs: vec![0.0; tokens.len() - 1],
            reference_logprobs: None,
            advantage: 1.0,
            tokens,
        }
    };
    (0..count).map(sample).collect()
}

fn score_bits(scores: Vec<SampleScores>) -> Vec<(Vec<u32>, Vec<u32>)> {
    scores.iter().map(|scores| (bits(&scores.logprobs), bits(&scores.entropies))).collect()
}

/// O15: the score of a sequence is bit-equal at batch 1, 2, 8 and 32, in any order and packing, and equal to what the
/// engine reports for it alone.
#[test]
fn o15_scores_do_not_depend_on_the_batch() {
    for family in FAMILIES {
        let checkpoint = checkpoint(family);
        let samples = samples(32, checkpoint.network().config.vocab_size);
        for recipe in RECIPES {
            let what = format!("{family} {recipe}");
            let mut alone = trainer(&cpu(1), &checkpoint, recipe, options(1));
            let stamp = current(&alone).stamp();
            let of = |samples: &[TrainSample]| TrainBatch::new(samples.to_vec(), stamp, 1.0).unwrap();
            let wanted = score_bits(alone.score(ScoredPolicy::Current, &of(&samples)).unwrap());
            for (batch_size, micro_batch_tokens) in [(1, 4096), (2, 4096), (8, 61), (32, 4096)] {
                let mut packing = trainer(&cpu(2), &checkpoint, recipe, options(micro_batch_tokens));
                for (chunk, wanted) in samples.chunks(batch_size).zip(wanted.chunks(batch_size)) {
                    let found = score_bits(packing.score(ScoredPolicy::Current, &of(chunk)).unwrap());
                    assert!(
                        found == wanted,
                        "{what}: batch {batch_size}, micro-batches of {micro_batch_tokens} tokens"
                    );
                }
                let backwards: Vec<TrainSample> = samples.iter().rev().cloned().collect();
                let mut found = score_bits(packing.score(ScoredPolicy::Current, &of(&backwards)).unwrap());
                found.reverse();
                assert!(found == wanted, "{what}: in reverse order, micro-batches of {micro_batch_tokens} tokens");
            }
            let engine = engine(&cpu(1), &current(&alone), 1);
            for (sample, (logprobs, _)) in samples.iter().zip(&wanted) {
                let logits = engine.logits(&sample.tokens).unwrap();
                let found = engine.next_token_logprobs(&sample.tokens, &logits, 1.0).unwrap();
                assert!(bits(&found) == *logprobs, "{what}: the engine's logprobs");
            }
        }
    }
}

/// Completions do not depend on what else decodes at the same time, either.
#[test]
fn o15_completions_do_not_depend_on_the_batch() {
    for family in ["qwen3-moe", "deepseek-v3", "llama-tied"] {
        let checkpoint = checkpoint(family);
        let whole = request(checkpoint.network().config.vocab_size, 1.0, 8, &[]);
        for recipe in RECIPES {
            let trainer = trainer(&cpu(1), &checkpoint, recipe, options(4096));
            let wanted = generate(&engine(&cpu(2), &current(&trainer), 64), &whole);
            for (threads, max_running) in [(1, 1), (2, 2), (2, 5)] {
                let engine = engine(&cpu(threads), &current(&trainer), max_running);
                assert!(generate(&engine, &whole).groups == wanted.groups, "{family} {recipe} at {max_running}");
                for (prompt, wanted) in whole.prompts.iter().zip(&wanted.groups) {
                    let single = miles_core::plugin::GenerateRequest { prompts: vec![prompt.clone()], ..whole.clone() };
                    assert!(generate(&engine, &single).groups == [wanted.clone()], "{family} {recipe} alone");
                }
            }
        }
    }
}

/// Scalar code and the vector code of this machine give the same logits and, after an update, the same policy.
#[test]
fn instruction_sets_give_the_same_forward_and_the_same_update() {
    for family in ["qwen3-moe", "deepseek-v3", "qwen2-bias"] {
        let checkpoint = checkpoint(family);
        let vocab_size = checkpoint.network().config.vocab_size;
        for recipe in RECIPES {
            let run = |isa: Isa| {
                let machine = CpuRef::new().with_threads(2.try_into().unwrap()).with_isa(isa);
                let mut trainer = trainer(&machine, &checkpoint, recipe, options(100));
                let published = current(&trainer);
                let engine = engine(&machine, &published, 4);
                let logits = bits(&engine.logits(&random_ids(3, 21, vocab_size)).unwrap());
                let rollout = generate(&engine, &request(vocab_size, 1.0, 3, &[]));
                let batch = batch(&rollout, published.stamp());
                let report = trainer.update(&batch, &Clipped::default(), 1e-3).unwrap();
                (logits, rollout.groups, report, publish(&mut trainer, 1).stamp())
            };
            let (scalar, vector) = (run(Isa::SCALAR), run(Isa::detect()));
            assert!(scalar.0 == vector.0, "{family} {recipe}: logits");
            assert!(scalar.1 == vector.1, "{family} {recipe}: completions");
            assert!(scalar.2 == vector.2, "{family} {recipe}: report of the update");
            assert_eq!(scalar.3, vector.3, "{family} {recipe}: policy");
        }
    }
}

/// Whole runs are equal on every number of threads and with every instruction set.
#[test]
fn runs_do_not_depend_on_threads_or_instructions() {
    let workspace = Workspace::new("qwen3-moe");
    for recipe in [Recipe::Mxfp8, Recipe::Nvfp4Dequantized] {
        let overrides = [format!("precision.recipe={recipe}"), "run.steps=2".to_owned()];
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let run = |out: &str, machine: CpuRef| {
            let out = format!("{recipe}-{out}");
            let outcome = finish(workspace.builder_on(machine.backend().unwrap(), &out, &overrides)).unwrap();
            (outcome, workspace.metrics(&out))
        };
        let (wanted, metrics) = run("one", cpu(1));
        for (out, machine) in [("two", cpu(2)), ("five", cpu(5)), ("scalar", cpu(2).with_isa(Isa::SCALAR))] {
            let (outcome, found) = run(out, machine);
            assert_eq!(outcome, wanted, "{recipe} {out}");
            same_metrics(&found, &metrics, &format!("{recipe} {out}"));
        }
    }
}
