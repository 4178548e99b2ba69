use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use miles_core::checkpoint::Checkpoint;
use miles_core::format::FormatId;
use miles_core::network::{Linear, Mlp, Operations};
use miles_core::plugin::ActivationDtype;
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, quantize_policy};
use miles_core::precision::{Recipe, Rule, TensorFormat, resolve};

use super::*;
use crate::CpuRef;
use crate::ops::PolicyWeights;
use crate::trainer::{Node, Packed, Tracked};

const ROWS: usize = 3;

/// Calls `test` with the forward functions of the mixture-of-experts fixture in a recipe, the head quantized too.
fn with_forward(recipe: Recipe, threads: usize, test: impl FnOnce(Forward<'_>)) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/fixtures/qwen3-moe");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let network = Arc::clone(checkpoint.network());
    let head = Rule::name("lm_head.weight", TensorFormat::Quantized(FormatId::fp8_block()));
    let map = Arc::new(resolve(&network, recipe, &[head]).unwrap());
    let context = CpuRef::new().with_threads(NonZeroUsize::new(threads).unwrap()).context().unwrap();
    let ledger = Ledger::discard();
    let who = PolicyContext { run: "test", step: 0, version: PolicyVersion(0), ledger: &ledger };
    let snapshot = quantize_policy(&network, &map, context.quantizer(), &checkpoint, who).unwrap();
    let weights = PolicyWeights::new(&Arc::new(snapshot), &context).unwrap();
    test(Forward { context: &context, weights: &weights, activations: ActivationDtype::Bf16 });
}

/// An activation of ones with values planted in it.
fn planted(cols: usize, values: &[(usize, f32)]) -> Activation {
    let mut all = vec![1.0; ROWS * cols];
    values.iter().for_each(|&(index, value)| all[index] = value);
    Activation::new(ROWS, cols, all)
}

#[test]
fn what_is_planted_in_a_layer_is_counted_there_once() {
    for threads in [1, 3] {
        with_forward(Recipe::Fp8Block, threads, |forward| {
            let batch = Packed::default();
            let mut tape = Tape::recording(forward, &batch);
            let network = Arc::clone(forward.weights.snapshot().network());
            let read = |tape: &mut Tape<'_>, index: usize, x: Activation, linears: &[&Linear]| {
                let x = Tracked { node: Node { index, elements: x.values().len() }, value: Arc::new(x) };
                for linear in linears {
                    tape.linear(&x, linear).unwrap();
                }
            };
            let attention = |layer: usize| match &network.layers[layer].attention {
                miles_core::network::Attention::Grouped(block) => block.clone(),
                other => panic!("{other:?}"),
            };
            // Rows of 64 are one block each. Infinity gives the block scale 1, so 500 and -450 saturate beside it.
            let (first, second, last) = (attention(0), attention(1), attention(3));
            let x = planted(64, &[(0, f32::INFINITY), (1, 500.0), (2, -450.0), (70, f32::NAN)]);
            read(&mut tape, 100, x, &[&first.q, &first.k, &first.v]);
            read(&mut tape, 101, planted(64, &[(3, f32::NAN)]), &[&second.q]);
            // The last layer of the recipe stays BF16, and so does every router.
            read(&mut tape, 102, planted(64, &[(3, f32::NAN)]), &[&last.q]);
            let Mlp::Moe(moe) = &network.layers[1].mlp else { panic!("a dense layer") };
            read(&mut tape, 103, planted(64, &[(9, f32::NAN)]), &[&moe.router]);

            let mut counts = ActivationCounts::default();
            counts.add_tape(&tape).unwrap();
            let hidden = planted(64, &[(5, f32::NEG_INFINITY), (6, 1000.0)]);
            counts.add_head(&forward, &hidden).unwrap();
            let elements = (ROWS * 64) as u64;
            let clean = QuantizeCounts { elements, blocks: ROWS as u64, ..QuantizeCounts::default() };
            let wanted = vec![
                (Some(0), QuantizeCounts { saturated: 2, non_finite: 2, ..clean }),
                (Some(1), QuantizeCounts { non_finite: 1, ..clean }),
                (None, QuantizeCounts { saturated: 1, non_finite: 1, ..clean }),
            ];
            assert_eq!(counts.into_report(), wanted, "{threads} threads");
        });
    }
}

#[test]
fn an_underflowed_block_of_a_routed_expert_is_counted() {
    with_forward(Recipe::Nvfp4Dequantized, 2, |forward| {
        let (batch, network) = (Packed::default(), Arc::clone(forward.weights.snapshot().network()));
        let Mlp::Moe(moe) = &network.layers[2].mlp else { panic!("a dense layer") };
        let mut tape = Tape::recording(forward, &batch);
        let logits = Activation::new(1, moe.gates.len(), (0..moe.gates.len()).map(|expert| expert as f32).collect());
        let logits = Tracked { node: Node { index: 0, elements: 0 }, value: Arc::new(logits) };
        let routing = tape.route(&logits, moe.selection_bias, &moe.rule, moe.experts_per_token).unwrap();
        // One row per chosen expert: blocks of 16 ones, but for one of 2^-20, which keeps nothing beside them.
        let rows = moe.experts_per_token;
        let mut values = vec![1.0; rows * 64];
        values[16..32].fill(2.0_f32.powi(-20));
        let x = Tracked {
            node: Node { index: 7, elements: rows * 64 },
            value: Arc::new(Activation::new(rows, 64, values)),
        };
        tape.expert_linear(&x, &routing, &moe.gates).unwrap();
        tape.expert_linear(&x, &routing, &moe.ups).unwrap();
        let mut counts = ActivationCounts::default();
        counts.add_tape(&tape).unwrap();
        let (elements, blocks) = (rows as u64 * 64, rows as u64 * 4);
        let wanted = QuantizeCounts { elements, blocks, underflowed_blocks: 1, ..QuantizeCounts::default() };
        assert_eq!(counts.into_report(), vec![(Some(2), wanted)]);
    });
}
