//! Each operation, forward and backward, against PyTorch autograd in f64.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use miles_backend_cpu_ref::kernel::Isa;
use miles_backend_cpu_ref::ops::attention::{packed_attention, packed_attention_backward};
use miles_backend_cpu_ref::ops::embedding::embedding_backward;
use miles_backend_cpu_ref::ops::experts::{combine_backward, dispatch, dispatch_backward};
use miles_backend_cpu_ref::ops::heads::{head_columns, head_columns_backward, join_heads, join_heads_backward};
use miles_backend_cpu_ref::ops::logprob::{logprob_backward, score_rows};
use miles_backend_cpu_ref::ops::norm::rms_norm_backward;
use miles_backend_cpu_ref::ops::router::{Routing, route_backward};
use miles_backend_cpu_ref::ops::swiglu::swiglu_backward;
use miles_backend_cpu_ref::ops::{Activation, Context, Forward, PolicyWeights};
use miles_core::model::{AttentionConfig, MlpConfig, ModelConfig, RopePairing, RouterConfig};
use miles_core::network::{AttentionShape, HeadColumns, Network, Role, RopeShape};
use miles_core::plugin::ActivationDtype;
use miles_core::precision::{Recipe, Rule, TensorFormat, resolve};
use miles_core::tensor::Dtype;
use support::{NamedWeights, Tensors, assert_close, context, fixture, options, published};

const TOLERANCE: f64 = 2e-6;

/// Prepared weights of a model whose vectors stay F32.
fn prepared(context: &Context, config: &ModelConfig, values: HashMap<String, Vec<f32>>) -> Arc<PolicyWeights> {
    let network = Arc::new(Network::new(config));
    let vectors = [Role::Norm, Role::RouterBias];
    let present: Vec<Role> = vectors.into_iter().filter(|r| network.parameters.iter().any(|p| p.role == *r)).collect();
    let rule = Rule::roles(&present, TensorFormat::Dense(Dtype::F32));
    let map = resolve(&network, Recipe::Bf16, &[rule]).unwrap();
    let weights = NamedWeights { network: &network, values };
    let (trainer, _) = published(context, &network, map, &weights, options(ActivationDtype::F32));
    Arc::clone(trainer.current_weights().unwrap())
}

fn forward<'a>(context: &'a Context, weights: &'a PolicyWeights) -> Forward<'a> {
    Forward { context, weights, activations: ActivationDtype::F32 }
}

fn small_config() -> ModelConfig {
    let mut config = fixture("llama-tied").config().model().clone();
    config.hidden_size = 48;
    config.rms_norm_eps = 1e-6;
    config.attention = AttentionConfig::Grouped {
        heads: 3,
        kv_heads: 1,
        head_dim: 16,
        qkv_bias: false,
        output_bias: false,
        qk_norm: false,
    };
    config.rope.rotary_dim = 16;
    config.rope.theta = 10_000.0;
    config
}

fn activation(reference: &Tensors, name: &str) -> Activation {
    let shape = reference.shape(name);
    let rows = shape[0];
    Activation::new(rows, shape[1..].iter().product(), reference.f32(name))
}

#[test]
fn rms_norm() {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    let weight = reference.f32("rms_norm/weight");
    let named = HashMap::from([("model.norm.weight".to_owned(), weight.clone())]);
    let weights = prepared(&context, &small_config(), named);
    let x = activation(&reference, "rms_norm/x");
    let norm = weights.snapshot().network().final_norm;
    let y = forward(&context, &weights).rms_norm(&x, norm, 1, 1e-6).unwrap();
    assert_close("y", &reference.f64("rms_norm/y"), y.values(), TOLERANCE);
    let mut d_weight = vec![0.0; 48];
    let dy = reference.f32("rms_norm/dy");
    let dx = rms_norm_backward(context.compute(), &dy, &x, &weight, 1e-6, Some(&mut d_weight));
    assert_close("dx", &reference.f64("rms_norm/dx"), &dx, TOLERANCE);
    assert_close("dweight", &reference.f64("rms_norm/dweight"), &d_weight, TOLERANCE);
}

#[test]
fn swiglu() {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    let weights = prepared(&context, &small_config(), HashMap::new());
    let (gate, up) = (activation(&reference, "swiglu/gate"), activation(&reference, "swiglu/up"));
    let y = forward(&context, &weights).swiglu(&gate, &up).unwrap();
    assert_close("y", &reference.f64("swiglu/y"), y.values(), TOLERANCE);
    let dy = reference.f32("swiglu/dy");
    let (d_gate, d_up) = swiglu_backward(context.compute(), &dy, gate.values(), up.values());
    assert_close("dgate", &reference.f64("swiglu/dgate"), &d_gate, TOLERANCE);
    assert_close("dup", &reference.f64("swiglu/dup"), &d_up, TOLERANCE);
}

#[test]
fn rope_in_both_pairings() {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    for (pairing, name) in [(RopePairing::Halves, "half_split"), (RopePairing::Interleaved, "interleaved")] {
        let mut config = small_config();
        config.rope.pairing = pairing;
        let weights = prepared(&context, &config, HashMap::new());
        let forward = forward(&context, &weights);
        let (positions, shape) = (reference.u32("rope/positions"), RopeShape { heads: 3, head_dim: 16, offset: 0 });
        let y = forward.rope(&activation(&reference, "rope/x"), shape, &positions).unwrap();
        // Angles are products in f32, as transformers computes them: position 511 carries an angle error near 3e-5.
        assert_close(name, &reference.f64(&format!("rope/{name}/y")), y.values(), 5e-5);
        let dx = forward.rope_backward(reference.f32("rope/dy"), shape, &positions);
        assert_close(name, &reference.f64(&format!("rope/{name}/dx")), &dx, 5e-5);
    }
}

fn attention(operation: &str, shape: AttentionShape) {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    let weights = prepared(&context, &small_config(), HashMap::new());
    let tensor = |name: &str| activation(&reference, &format!("{operation}/{name}"));
    let (q, k, v, dy) = (tensor("q"), tensor("k"), tensor("v"), tensor("dy"));
    let rows = 0..q.rows();
    let whole = std::slice::from_ref(&rows);
    let attended = packed_attention(&forward(&context, &weights), &q, &k, &v, shape, whole).unwrap();
    let want = |name: &str| reference.f64(&format!("{operation}/{name}"));
    assert_close("y", &want("y"), attended.output.values(), TOLERANCE);
    let [dq, dk, dv] = packed_attention_backward(context.compute(), [&q, &k, &v], &attended, dy.values(), shape, whole);
    assert_close("dq", &want("dq"), &dq, TOLERANCE);
    assert_close("dk", &want("dk"), &dk, TOLERANCE);
    assert_close("dv", &want("dv"), &dv, TOLERANCE);
}

#[test]
fn grouped_query_attention() {
    attention("gqa_attention", AttentionShape { layer: 0, heads: 4, kv_heads: 2, qk_dim: 16, v_dim: 16, scale: 0.25 });
}

#[test]
fn latent_attention_with_narrower_values() {
    let scale = 1.0 / 48f32.sqrt();
    attention("mla_attention", AttentionShape { layer: 0, heads: 3, kv_heads: 3, qk_dim: 48, v_dim: 32, scale });
}

#[test]
fn log_softmax_and_entropy() {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    let (mut logits, targets) =
        (reference.f32("log_softmax_gather/logits"), reference.u32("log_softmax_gather/targets"));
    let scores = score_rows(context.compute(), &logits, 50, 0.7, &targets);
    assert_close("logprobs", &reference.f64("log_softmax_gather/y"), &scores.logprobs, TOLERANCE);
    assert_close("entropies", &reference.f64("log_softmax_gather/entropy/y"), &scores.entropies, TOLERANCE);
    let dy = reference.f32("log_softmax_gather/dy");
    logprob_backward(context.compute(), &mut logits, 50, 0.7, &targets, &dy);
    assert_close("dlogits", &reference.f64("log_softmax_gather/dlogits"), &logits, TOLERANCE);
}

/// Compares a routing, whose experts are ascending, with references in descending order of score.
fn compare_routing(reference: &Tensors, operation: &str, variant: &str, routing: &Routing, rule: &RouterConfig) {
    let per_row = routing.per_row();
    let experts = reference.u32(&format!("{operation}/experts"));
    let (want, dy) = (reference.f64(&format!("{operation}/{variant}/y")), reference.f32(&format!("{operation}/dy")));
    let (mut sorted_want, mut sorted_dy) = (Vec::new(), Vec::new());
    for row in 0..routing.rows() {
        let mut order: Vec<usize> = (row * per_row..(row + 1) * per_row).collect();
        order.sort_by_key(|&slot| experts[slot]);
        let chosen: Vec<u32> = order.iter().map(|&slot| experts[slot]).collect();
        assert_eq!(routing.experts()[row * per_row..(row + 1) * per_row], chosen, "{operation} row {row}");
        sorted_want.extend(order.iter().map(|&slot| want[slot]));
        sorted_dy.extend(order.iter().map(|&slot| dy[slot]));
    }
    assert_close(variant, &sorted_want, routing.weights(), TOLERANCE);
    let d_logits = route_backward(routing, rule, &sorted_dy);
    assert_close(variant, &reference.f64(&format!("{operation}/{variant}/dlogits")), &d_logits, TOLERANCE);
}

#[test]
fn softmax_router() {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    let weights = prepared(&context, &small_config(), HashMap::new());
    for (variant, normalize) in [("plain", false), ("normalized", true)] {
        let rule = RouterConfig::SoftmaxTopK { normalize };
        let logits = activation(&reference, "softmax_router/logits");
        let routing = forward(&context, &weights).route(&logits, None, &rule, 3).unwrap();
        compare_routing(&reference, "softmax_router", variant, &routing, &rule);
    }
}

#[test]
fn grouped_router() {
    let reference = Tensors::read("gradients/ops.safetensors");
    let context = context(Isa::detect(), 2);
    let mut config = fixture("deepseek-v3").config().model().clone();
    for mlp in &mut config.mlps {
        if let MlpConfig::Moe(moe) = mlp {
            moe.experts = 16;
        }
    }
    let network = Network::new(&config);
    let bias = network.parameters.iter().find(|parameter| parameter.role == Role::RouterBias).unwrap().name.clone();
    let named = HashMap::from([(bias.clone(), reference.f32("grouped_router/e_score_correction_bias"))]);
    let weights = prepared(&context, &config, named);
    for (variant, normalize) in [("plain", false), ("normalized", true)] {
        let rule = RouterConfig::SigmoidGrouped { groups: 4, groups_per_token: 2, normalize, scaling_factor: 2.5 };
        let logits = activation(&reference, "grouped_router/logits");
        let routing = forward(&context, &weights).route(&logits, network.find(&bias), &rule, 4).unwrap();
        compare_routing(&reference, "grouped_router", variant, &routing, &rule);
    }
}

#[test]
fn equal_scores_choose_the_lower_expert() {
    let context = context(Isa::detect(), 1);
    let weights = prepared(&context, &small_config(), HashMap::new());
    let rule = RouterConfig::SoftmaxTopK { normalize: true };
    let logits = Activation::new(2, 5, vec![1.0, 2.0, 1.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5]);
    let routing = forward(&context, &weights).route(&logits, None, &rule, 2).unwrap();
    assert_eq!(routing.experts(), [1, 3, 0, 1]);
    assert_eq!(routing.weights(), [0.5; 4]);
}

/// Values that differ everywhere and add exactly.
fn counted(rows: usize, cols: usize, step: f32) -> Activation {
    Activation::new(rows, cols, (0..rows * cols).map(|index| (index as f32 - 7.0) * step).collect())
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// A backward of a linear map is its adjoint: `<A x, dy> = <x, A' dy>`.
#[test]
fn moving_heads_has_its_adjoint_as_gradient() {
    let x = counted(5, 3 * 7, 0.5);
    let columns = HeadColumns { heads: 3, width: 7, start: 2, end: 6 };
    let y = head_columns(&x, columns).unwrap();
    assert_eq!((y.rows(), y.cols()), (5, 12));
    assert_eq!(y.row(1)[4..8], x.row(1)[9..13]);
    let dy = counted(5, 12, 0.25);
    let mut dx = vec![0.0; 5 * 21];
    head_columns_backward(dy.values(), columns, &mut dx);
    assert_eq!(dot(y.values(), dy.values()), dot(x.values(), &dx));

    let (a, b) = (counted(5, 3 * 4, 0.5), counted(5, 2, 0.125));
    let joined = join_heads(&a, &b, 3).unwrap();
    assert_eq!(joined.row(2)[6..12], [&a.row(2)[4..8], b.row(2)].concat());
    let dy = counted(5, 18, 0.25);
    let (mut da, mut db) = (vec![0.0; 60], vec![0.0; 10]);
    join_heads_backward(dy.values(), 3, 4, 2, &mut da, &mut db);
    assert_eq!(dot(joined.values(), dy.values()), dot(a.values(), &da) + dot(b.values(), &db));
}

/// Experts with many rows, one row and none (field case O4).
#[test]
fn dispatch_and_combine_for_any_number_of_rows_per_expert() {
    let context = context(Isa::detect(), 2);
    let weights = prepared(&context, &small_config(), HashMap::new());
    let forward = forward(&context, &weights);
    let rows = 37;
    // Expert 2 gets every row, expert 0 one row, expert 4 none, experts 1 and 3 the rest.
    let logits = (0..rows).flat_map(|row| {
        let second = if row == 5 { 0 } else { 1 + 2 * (row % 2) };
        (0..5).map(move |expert| {
            if expert == 2 {
                3.0
            } else if expert == second {
                2.0
            } else {
                -9.0
            }
        })
    });
    let logits = Activation::new(rows, 5, logits.collect());
    let routing = forward.route(&logits, None, &RouterConfig::SoftmaxTopK { normalize: true }, 2).unwrap();
    let counts: Vec<usize> = (0..5).map(|expert| routing.expert_rows(expert).len()).collect();
    assert_eq!(counts, [1, 19, 37, 17, 0]);

    let x = counted(rows, 6, 0.5);
    let sent = dispatch(&x, &routing).unwrap();
    assert_eq!(sent.row(0), x.row(5));
    let dy = counted(2 * rows, 6, 0.25);
    let mut dx = vec![0.0; rows * 6];
    dispatch_backward(dy.values(), &routing, 6, &mut dx);
    assert_eq!(dot(sent.values(), dy.values()), dot(x.values(), &dx));

    let combined = forward.combine(&sent, &routing).unwrap();
    for (got, want) in combined.values().iter().zip(x.values()) {
        assert!((got - want).abs() <= 1e-5 * want.abs(), "weights sum to one: {got} {want}");
    }
    let dy = counted(rows, 6, 0.25);
    let (d_sent, d_weights) = combine_backward(context.compute(), dy.values(), &sent, &routing);
    let whole = dot(combined.values(), dy.values());
    assert!((whole - dot(sent.values(), &d_sent)).abs() < 1e-4 * whole.abs());
    assert!((whole - dot(routing.weights(), &d_weights)).abs() < 1e-4 * whole.abs());
}

#[test]
fn embedding_gradients_add_in_row_order() {
    let mut table = vec![0.0; 4 * 2];
    embedding_backward(&[1.0, 2.0, 10.0, 20.0, 0.5, 0.25], &[3, 0, 3], 2, &mut table);
    assert_eq!(table, [10.0, 20.0, 0.0, 0.0, 0.0, 0.0, 1.5, 2.25]);
}
