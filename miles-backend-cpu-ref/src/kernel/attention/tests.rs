//! Attention against its definition bit for bit, against double precision, and in every cut of the rows.

use super::*;
use crate::kernel::decode::bf16;
use crate::kernel::reduce::combine;
use crate::kernel::testing::{assert_close, assert_same_bits, computes, numbers};

const LAYERS: [Heads; 4] = [
    Heads { query_heads: 9, kv_heads: 3, qk_dim: 64, v_dim: 64, scale: 0.125 },
    Heads { query_heads: 4, kv_heads: 4, qk_dim: 24, v_dim: 16, scale: 0.3 },
    Heads { query_heads: 2, kv_heads: 1, qk_dim: 7, v_dim: 13, scale: 1.0 },
    Heads { query_heads: 1, kv_heads: 1, qk_dim: 192, v_dim: 128, scale: 0.07 },
];

/// The definition for one row and head: probabilities and output.
fn naive(heads: &Heads, q: &[f32], keys: &[f32], values: &[f32], kv_head: usize, positions: usize) -> Vec<f32> {
    let mut scores = Vec::new();
    for j in 0..positions {
        let mut lanes = [0.0f32; 8];
        for i in 0..heads.qk_dim {
            let key = keys[(j * heads.kv_heads + kv_head) * heads.qk_dim + i];
            lanes[i % 8] = q[i].mul_add(key, lanes[i % 8]);
        }
        scores.push(combine(lanes) * heads.scale);
    }
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut lanes = [0.0f32; 8];
    for (j, score) in scores.iter_mut().enumerate() {
        *score = exp(*score - max);
        lanes[j % 8] += *score;
    }
    let sum = combine(lanes);
    let mut out = vec![0.0f32; heads.v_dim];
    for (j, score) in scores.iter().enumerate() {
        for (c, out) in out.iter_mut().enumerate() {
            *out = (score / sum).mul_add(values[(j * heads.kv_heads + kv_head) * heads.v_dim + c], *out);
        }
    }
    out
}

fn oracle(heads: &Heads, q: &[f32], keys: &[f32], values: &[f32], kv_head: usize, positions: usize) -> Vec<f64> {
    let score = |j: usize| -> f64 {
        let key = &keys[(j * heads.kv_heads + kv_head) * heads.qk_dim..][..heads.qk_dim];
        q.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() * f64::from(heads.scale)
    };
    let weights: Vec<f64> = (0..positions).map(|j| score(j).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..heads.v_dim)
        .map(|c| {
            let value = |j: usize| f64::from(values[(j * heads.kv_heads + kv_head) * heads.v_dim + c]);
            weights.iter().enumerate().map(|(j, w)| w * value(j)).sum::<f64>() / sum
        })
        .collect()
}

#[test]
fn rows_equal_the_definition_in_every_cut_isa_and_thread_count() {
    for heads in &LAYERS {
        let positions = 37;
        let q = numbers(1, positions * heads.query_heads * heads.qk_dim);
        let bits: Vec<u16> = numbers(2, heads.keys_len(positions)).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let value_bits: Vec<u16> =
            numbers(3, heads.values_len(positions)).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let keys: Vec<f32> = bits.iter().map(|&b| bf16(b)).collect();
        let values: Vec<f32> = value_bits.iter().map(|&b| bf16(b)).collect();
        let mut want = Vec::new();
        let mut exact = Vec::new();
        for row in 0..positions {
            for head in 0..heads.query_heads {
                let query = &q[(row * heads.query_heads + head) * heads.qk_dim..][..heads.qk_dim];
                want.extend(naive(heads, query, &keys, &values, head / heads.group(), row + 1));
                exact.extend(oracle(heads, query, &keys, &values, head / heads.group(), row + 1));
            }
        }
        assert_close(&exact, &want, 1e-5, "oracle");
        let (q_row, out_row) = (heads.query_heads * heads.qk_dim, heads.query_heads * heads.v_dim);
        for compute in computes() {
            for cut in [1, 2, 7, 33, 37] {
                let mut out = vec![f32::NAN; want.len()];
                let mut stored = vec![f32::NAN; want.len()];
                for first in (0..positions).step_by(cut) {
                    let rows = first..positions.min(first + cut);
                    let (q, at) = (&q[rows.start * q_row..rows.end * q_row], rows.start * out_row..rows.end * out_row);
                    let history = History { keys: &keys[..], values: &values[..] };
                    attention(&compute, heads, q, history, first, &mut out[at.clone()], None);
                    let history = History { keys: &bits[..], values: &value_bits[..] };
                    attention(&compute, heads, q, history, first, &mut stored[at], None);
                }
                assert_same_bits(&want, &out, "FP32 history");
                assert_same_bits(&want, &stored, "BF16 history");
            }
        }
    }
}

#[test]
fn softmax_rows_give_the_log_sum_of_exponentials() {
    let heads = Heads { query_heads: 1, kv_heads: 1, qk_dim: 1, v_dim: 1, scale: 1.0 };
    let mut softmax = [SoftmaxRow::default(); 2];
    let history = History { keys: &[1.0f32, 3.0], values: &[1.0, 2.0] };
    attention(&computes()[0], &heads, &[1.0, 1.0], history, 0, &mut [0.0; 2], Some(&mut softmax));
    assert_eq!(softmax[0], SoftmaxRow { max: 1.0, sum: 1.0 });
    assert!((f64::from(softmax[1].log_sum_exp()) - (1f64.exp() + 3f64.exp()).ln()).abs() < 1e-6);
}

#[test]
fn no_rows_is_nothing() {
    let history = History::<f32> { keys: &[], values: &[] };
    attention(&computes()[1], &LAYERS[0], &[], history, 0, &mut [], None);
}
