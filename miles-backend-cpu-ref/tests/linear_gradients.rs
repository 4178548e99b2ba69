//! One linear layer in every format and backward mode, against f64 products of exactly those operands.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use miles_backend_cpu_ref::kernel::Isa;
use miles_backend_cpu_ref::ops::{Activation, Forward, has_kernel};
use miles_backend_cpu_ref::trainer::{BackwardPass, Gradients};
use miles_core::format::{FormatId, FormatRule, QuantizeSpec, Source, SourceDtype, builtin_rules};
use miles_core::model::{AttentionConfig, ModelConfig};
use miles_core::network::{Attention, Linear, Network};
use miles_core::plugin::ActivationDtype;
use miles_core::precision::{BackwardMode, PrecisionMap, Recipe, Rule, TensorFormat, resolve};
use support::{NamedWeights, Tensors, assert_close, bits, context, fixture, options, published};

const TOLERANCE: f64 = 2e-6;

/// Results of one layer: y, dX and dW.
struct Results {
    y: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
}

/// A one-layer model whose query projection is `[out, in]`.
fn config(outputs: usize, inputs: usize) -> ModelConfig {
    let mut config = fixture("llama-tied").config().model().clone();
    config.hidden_size = inputs;
    config.mlps.truncate(1);
    config.attention = AttentionConfig::Grouped {
        heads: outputs / 2,
        kv_heads: 1,
        head_dim: 2,
        qkv_bias: false,
        output_bias: false,
        qk_norm: false,
    };
    config
}

fn map(network: &Network, format: Option<FormatId>, mode: BackwardMode) -> PrecisionMap {
    let rules: Vec<Rule> = format
        .map(|format| Rule::name("*q_proj.weight", TensorFormat::Quantized(format)).with_backward(mode))
        .into_iter()
        .collect();
    resolve(network, Recipe::Bf16, &rules).unwrap()
}

fn run(
    reference: &Tensors,
    case: &str,
    format: Option<FormatId>,
    mode: BackwardMode,
    isa: Isa,
    threads: usize,
) -> Results {
    let (x, w, g) = (format!("{case}x"), format!("{case}w"), format!("{case}g"));
    let ([rows, inputs], [outputs, _]) = (shape(reference, &x), shape(reference, &w));
    let network = Arc::new(Network::new(&config(outputs, inputs)));
    let Attention::Grouped(block) = &network.layers[0].attention else { panic!("grouped attention") };
    let linear: Linear = block.q;
    let name = network.parameter(linear.weight).name.clone();
    let weights = NamedWeights { network: &network, values: HashMap::from([(name, reference.f32(&w))]) };
    let context = context(isa, threads);
    let map = map(&network, format, mode);
    let (trainer, _) = published(&context, &network, map, &weights, options(ActivationDtype::F32));
    let forward =
        Forward { context: &context, weights: trainer.current_weights().unwrap(), activations: ActivationDtype::F32 };
    let x = Activation::new(rows, inputs, reference.f32(&x));
    let y = forward.linear(&x, &linear).unwrap().into_values();
    let mut gradients = Gradients::zeroed(&network, true);
    let mut pass = BackwardPass { forward, masters: trainer.masters(), gradients: &mut gradients };
    let dx = pass.linear(&x, &linear, reference.f32(&g)).unwrap();
    Results { y, dx, dw: gradients.of(linear.weight).unwrap().to_vec() }
}

fn shape(reference: &Tensors, name: &str) -> [usize; 2] {
    reference.shape(name).try_into().unwrap()
}

fn formats() -> [FormatId; 3] {
    [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block()]
}

#[test]
fn high_precision_gradients_read_the_original_operands_in_every_format() {
    let reference = Tensors::read("gradients/linear.safetensors");
    for format in [None].into_iter().chain(formats().map(Some)) {
        let got = run(&reference, "", format.clone(), BackwardMode::HighPrecision, Isa::detect(), 2);
        let y = format.as_ref().map_or("high-precision/y".to_owned(), |format| format!("{format}/y"));
        assert_close(&y, &reference.f64(&y), &got.y, TOLERANCE);
        assert_close("dx", &reference.f64("high-precision/dx"), &got.dx, TOLERANCE);
        assert_close("dw", &reference.f64("high-precision/dw"), &got.dw, TOLERANCE);
    }
}

/// Natively or through F32 values, the product is that of the operands that the format's rule makes.
#[test]
fn every_eight_bit_and_integer_format_multiplies_what_its_rule_decodes() {
    let reference = Tensors::read("gradients/linear.safetensors");
    let ([rows, inputs], [outputs, _]) = (shape(&reference, "wide/x"), shape(&reference, "wide/w"));
    let decoded = |rule: &dyn FormatRule, values: &[f32], rows: usize, dtype: SourceDtype, spec: &QuantizeSpec| {
        let source = Source::new(values, rows, inputs, dtype, None).unwrap();
        rule.dequantize(&rule.quantize(&source, spec).unwrap()).unwrap()
    };
    let weight: Vec<f32> = reference.f32("wide/w").into_iter().map(miles_core::number::bf16::round).collect();
    let mut native = 0;
    for rule in builtin_rules().filter(|rule| rule.id().family() != "nvfp4") {
        let got = run(&reference, "wide/", Some(rule.id()), BackwardMode::HighPrecision, Isa::detect(), 2);
        let activation = QuantizeSpec::activation(rule.id());
        let x = decoded(rule, &reference.f32("wide/x"), rows, SourceDtype::F32, &activation);
        let w = decoded(rule, &weight, outputs, SourceDtype::Bf16, &QuantizeSpec::weight(rule.id()));
        let product = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
        let y: Vec<f64> =
            x.chunks(inputs).flat_map(|x| w.chunks(inputs).map(|w| product(x, w)).collect::<Vec<_>>()).collect();
        assert_close(rule.id().as_str(), &y, &got.y, TOLERANCE);
        native += usize::from(has_kernel(&rule.id()));
    }
    assert_eq!(native, 14, "six of MXFP8 and eight of block FP8");
    assert!(!has_kernel(&FormatId::new("mxfp8/of-a-user").unwrap()));
}

#[test]
fn dequantized_gradients_read_the_values_of_the_forward_pass() {
    let reference = Tensors::read("gradients/linear.safetensors");
    for format in formats() {
        let got = run(&reference, "", Some(format.clone()), BackwardMode::Dequantized, Isa::detect(), 2);
        assert_close("dx", &reference.f64(&format!("{format}/dequantized/dx")), &got.dx, TOLERANCE);
        assert_close("dw", &reference.f64(&format!("{format}/dequantized/dw")), &got.dw, TOLERANCE);
    }
}

#[test]
fn quantized_gradients_group_tokens_from_the_first_row_and_count_a_ragged_block_as_zero_padded() {
    let reference = Tensors::read("gradients/linear.safetensors");
    let cases = [("", FormatId::mxfp8()), ("", FormatId::fp8_block()), ("wide/", FormatId::fp8_block())];
    for (case, format) in cases {
        let got = run(&reference, case, Some(format.clone()), BackwardMode::Quantized, Isa::detect(), 2);
        for (what, got) in [("y", &got.y), ("quantized/dx", &got.dx), ("quantized/dw", &got.dw)] {
            let name = format!("{case}{format}/{what}");
            assert_close(&name, &reference.f64(&name), got, TOLERANCE);
        }
    }
}

#[test]
fn every_mode_keeps_its_bits_on_any_threads_and_instruction_set() {
    let reference = Tensors::read("gradients/linear.safetensors");
    for format in formats() {
        let modes = [BackwardMode::HighPrecision, BackwardMode::Dequantized, BackwardMode::Quantized];
        for mode in modes.into_iter().filter(|mode| *mode != BackwardMode::Quantized || format != FormatId::nvfp4()) {
            let want = run(&reference, "", Some(format.clone()), mode, Isa::SCALAR, 1);
            for (isa, threads) in [(Isa::detect(), 1), (Isa::detect(), 3), (Isa::SCALAR, 2)] {
                let got = run(&reference, "", Some(format.clone()), mode, isa, threads);
                for (want, got) in [(&want.y, &got.y), (&want.dx, &got.dx), (&want.dw, &got.dw)] {
                    assert_eq!(bits(want), bits(got), "{format} {mode:?}");
                }
            }
        }
    }
}
