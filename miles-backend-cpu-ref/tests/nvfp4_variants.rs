//! Every NVFP4 variant runs in the engine and in the trainer, which agree to the bit.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::sync::Arc;

use futures_lite::future::block_on;
use miles_backend_cpu_ref::CpuRef;
use miles_backend_cpu_ref::kernel::Isa;
use miles_backend_cpu_ref::ops::{PolicyWeights, has_kernel};
use miles_backend_cpu_ref::trainer::CpuTrainer;
use miles_core::Error;
use miles_core::format::{FormatId, FormatRule, builtin_rules};
use miles_core::network::Role;
use miles_core::plugin::{
    ActivationDtype, CancelToken, EngineOptions, GenerateRequest, PromptRequest, PublicationMode, RolloutEngine,
    Sampling, ScoredPolicy, TrainSample, Trainer,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyTensor, PolicyVersion, Snapshot, quantize_policy};
use miles_core::precision::{
    BackwardMode, PartitionAxis, PartitionPlan, Recipe, Rule, TensorFormat, resolve, resolve_with,
};
use support::{WeightedSum, batch, bits, context, fixture, options, published};

const COMBINED: [&str; 3] = [
    "nvfp4/four-over-six-mse-256/16x16/decode-scale-order",
    "nvfp4/te-2.13/stochastic/hadamard",
    "nvfp4/python-reference/zero-scale-zero",
];

fn variants() -> Vec<FormatId> {
    let listed = builtin_rules().map(FormatRule::id).filter(|format| format.family() == "nvfp4");
    listed.chain(COMBINED.map(|name| FormatId::new(name).unwrap())).collect()
}

/// A trainer whose experts have that format, and the version that it published.
fn policy(format: &FormatId) -> (CpuTrainer, Arc<Snapshot>) {
    let checkpoint = fixture("qwen3-moe");
    let experts = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
    let rule = Rule::roles(&experts, TensorFormat::Quantized(format.clone())).with_backward(BackwardMode::Dequantized);
    let map = resolve(checkpoint.network(), Recipe::Bf16, &[rule]).unwrap();
    let context = context(Isa::detect(), 2);
    published(&context, checkpoint.network(), map, &checkpoint, options(ActivationDtype::Bf16))
}

fn sampled(snapshot: &Arc<Snapshot>) -> Vec<TrainSample> {
    let network = Arc::clone(snapshot.network());
    let engine = CpuRef::new().engine(EngineOptions {
        context_tokens: network.config.context_tokens,
        network,
        activations: ActivationDtype::Bf16,
        max_running: 3,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    });
    let engine = engine.unwrap();
    block_on(engine.load(Arc::clone(snapshot))).unwrap();
    let prompt = |key: u64, length: u32, completions| PromptRequest {
        key,
        tokens: (0..length).map(|index| (index * 7 + key as u32 * 13) % 60).collect(),
        completions,
    };
    let sampling =
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens: 9, eos_token_ids: vec![] };
    let request = GenerateRequest { prompts: vec![prompt(1, 5, 3), prompt(2, 2, 2)], sampling, seed: 3, step: 0 };
    let rollout = block_on(engine.generate(&request, &CancelToken::default())).unwrap();
    let mut samples = Vec::new();
    for group in &rollout.groups {
        for completion in &group.completions {
            samples.push(TrainSample {
                tokens: [group.prompt_tokens.as_slice(), &completion.tokens].concat(),
                prompt_tokens: group.prompt_tokens.len(),
                rollout_logprobs: completion.logprobs.clone(),
                reference_logprobs: None,
                advantage: 1.0,
            });
        }
    }
    samples
}

#[test]
fn every_variant_runs_in_engine_and_trainer_without_mismatch() {
    let mut seen = Vec::new();
    for format in variants() {
        let (mut trainer, snapshot) = policy(&format);
        let quantized =
            |tensor: &PolicyTensor| matches!(tensor, PolicyTensor::Quantized(tensor) if *tensor.format() == format);
        assert!(snapshot.network().ids().any(|id| quantized(snapshot.tensor(id))), "{format}");
        let samples = sampled(&snapshot);
        let scores = trainer.score(ScoredPolicy::Current, &batch(&samples, snapshot.stamp())).unwrap();
        assert_eq!(scores.len(), 5);
        for (sample, scores) in samples.iter().zip(&scores) {
            assert!(scores.logprobs.iter().all(|logprob| logprob.is_finite()), "{format}");
            assert_eq!(bits(&scores.logprobs), bits(&sample.rollout_logprobs), "{format}");
        }
        let report = trainer.update(&batch(&samples, snapshot.stamp()), &WeightedSum, 1e-3).unwrap();
        assert!(report.grad_norm.is_finite() && report.grad_norm > 0.0, "{format}");
        seen.push(snapshot.stamp().digest);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), variants().len(), "each variant is a policy of its own");
}

#[test]
fn only_rotated_variants_have_no_kernel() {
    for format in variants() {
        assert_eq!(has_kernel(&format), !format.as_str().contains("hadamard"), "{format}");
    }
}

/// A weight whose shards have outer scales of their own is refused before anything is multiplied.
#[test]
fn a_weight_with_several_outer_scales_is_refused() {
    let checkpoint = fixture("qwen3-moe");
    let plan = PartitionPlan::new(2, PartitionAxis::Intermediate).unwrap();
    let map = resolve_with(checkpoint.network(), Recipe::Nvfp4Dequantized, &[], &[], plan).unwrap();
    let (context, ledger) = (context(Isa::detect(), 1), Ledger::discard());
    let who = PolicyContext { run: "test", step: 0, version: PolicyVersion(0), ledger: &ledger };
    let cut = quantize_policy(checkpoint.network(), &Arc::new(map), context.quantizer(), &checkpoint, who).unwrap();
    let down = cut.network().ids().find(|&id| cut.network().parameter(id).role == Role::ExpertDown).unwrap();
    let PolicyTensor::Quantized(tensor) = cut.tensor(down).as_ref() else { panic!("experts are quantized") };
    assert_eq!(tensor.outer().len(), 2);
    match PolicyWeights::new(&Arc::new(cut), &context).unwrap_err() {
        Error::Unsupported { operation, .. } => {
            assert!(operation.contains("experts.0") && operation.contains("x 2"), "{operation}");
        }
        other => panic!("{other}"),
    }
}
