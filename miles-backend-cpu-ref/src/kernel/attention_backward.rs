//! Gradients of [`super::attention`] for one sequence.
//!
//! With p recomputed from the saved maximum and sum (the forward's very bits), and `D = dot8(dout, out)`:
//!
//! * `dp[j] = dot8(dout, v[j])`, `ds[j] = (p[j] * (dp[j] - D)) * scale`;
//! * `dq = fma(ds[j], k[j], dq)` over keys in order from +0;
//! * `dk[j] = fma(ds[j], q, dk[j])` and `dv[j] = fma(p[j], dout, dv[j])` over rows in order, within a row over the heads of the group in
//!   order, continuing from the buffers.
//!
//! A key/value head is one task, so no two threads touch a gradient.

use super::attention::{Heads, History, SoftmaxRow, raw_scores, weighted_sum};
use super::math::exp;
use super::pack::check;
use super::reduce::{Stored, dot_lanes};
use super::{Compute, Isa};

/// What the forward pass read and made, all rows of one call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionForward<'a, T> {
    /// Queries `[rows, query_heads, qk_dim]`.
    pub q: &'a [f32],
    /// The history, at least `first_position + rows` positions.
    pub history: History<'a, T>,
    /// Position of the first row.
    pub first_position: usize,
    /// Output `[rows, query_heads, v_dim]`.
    pub out: &'a [f32],
    /// Softmax rows `[rows, query_heads]`.
    pub softmax: &'a [SoftmaxRow],
}

/// Gradient buffers.
#[derive(Debug)]
pub struct AttentionGradients<'a> {
    /// `[rows, query_heads, qk_dim]`, overwritten.
    pub dq: &'a mut [f32],
    /// `[positions, kv_heads, qk_dim]`, continued.
    pub dk: &'a mut [f32],
    /// `[positions, kv_heads, v_dim]`, continued.
    pub dv: &'a mut [f32],
}

/// Fills the gradients from `dout` `[rows, query_heads, v_dim]`; `dk` and `dv` are as long as the history that the rows read
/// (`first_position + rows` positions).
///
/// # Panics
/// When a length differs from the shape.
pub fn attention_backward<T: Stored>(
    compute: &Compute,
    heads: &Heads,
    forward: &AttentionForward<T>,
    dout: &[f32],
    gradients: AttentionGradients,
) {
    let rows = forward.q.len() / (heads.query_heads * heads.qk_dim);
    let positions = forward.first_position + rows;
    check("attention output", forward.out.len(), rows * heads.query_heads * heads.v_dim);
    check("output gradient", dout.len(), forward.out.len());
    check("softmax rows", forward.softmax.len(), rows * heads.query_heads);
    check("query gradient", gradients.dq.len(), forward.q.len());
    check("key gradient", gradients.dk.len(), heads.keys_len(positions));
    check("value gradient", gradients.dv.len(), heads.values_len(positions));
    let isa = compute.isa();
    let mut tasks: Vec<Task> =
        (0..heads.kv_heads).map(|kv_head| Task { kv_head, dq: Vec::new(), dk: Vec::new(), dv: Vec::new() }).collect();
    for (group, dq) in gradients.dq.chunks_mut(heads.group() * heads.qk_dim).enumerate() {
        tasks[group % heads.kv_heads].dq.push(dq);
    }
    for (index, dk) in gradients.dk.chunks_mut(heads.qk_dim).enumerate() {
        tasks[index % heads.kv_heads].dk.push(dk);
    }
    for (index, dv) in gradients.dv.chunks_mut(heads.v_dim).enumerate() {
        tasks[index % heads.kv_heads].dv.push(dv);
    }
    compute.for_each(tasks, |mut task| {
        let (mut p, mut ds) = (Vec::new(), Vec::new());
        for row in 0..rows {
            for member in 0..heads.group() {
                let len = forward.first_position + row + 1;
                p.resize(len, 0.0);
                ds.resize(len, 0.0);
                row_backward(isa, heads, forward, dout, row, member, &mut task, &mut p, &mut ds);
            }
        }
    });
}

/// One key/value head: its pieces of the gradients, `dq` per row, `dk` and `dv` per position.
struct Task<'a> {
    kv_head: usize,
    dq: Vec<&'a mut [f32]>,
    dk: Vec<&'a mut [f32]>,
    dv: Vec<&'a mut [f32]>,
}

#[allow(clippy::too_many_arguments)]
#[inline(never)]
fn row_backward<T: Stored>(
    isa: Isa,
    heads: &Heads,
    forward: &AttentionForward<T>,
    dout: &[f32],
    row: usize,
    member: usize,
    task: &mut Task,
    p: &mut [f32],
    ds: &mut [f32],
) {
    let kv_head = task.kv_head;
    let item = row * heads.query_heads + kv_head * heads.group() + member;
    let q = &forward.q[item * heads.qk_dim..][..heads.qk_dim];
    let out = &forward.out[item * heads.v_dim..][..heads.v_dim];
    let dout = &dout[item * heads.v_dim..][..heads.v_dim];
    let softmax = forward.softmax[item];
    let dq = &mut task.dq[row][member * heads.qk_dim..][..heads.qk_dim];
    let (k_stride, k_offset) = (heads.kv_heads * heads.qk_dim, kv_head * heads.qk_dim);
    let (v_stride, v_offset) = (heads.kv_heads * heads.v_dim, kv_head * heads.v_dim);
    isa.run(
        #[inline(always)]
        || {
            raw_scores(heads, q, forward.history.keys, kv_head, p);
            p.iter_mut().for_each(|score| *score = exp(*score - softmax.max) / softmax.sum);
            let delta = dot_lanes(dout, out);
            for (j, ds) in ds.iter_mut().enumerate() {
                let value = &forward.history.values[j * v_stride + v_offset..][..heads.v_dim];
                *ds = (p[j] * (dot_lanes(dout, value) - delta)) * heads.scale;
            }
            dq.fill(0.0);
            weighted_sum(ds, forward.history.keys, k_stride, k_offset, dq);
            for j in 0..p.len() {
                add_scaled(ds[j], q, task.dk[j]);
                add_scaled(p[j], dout, task.dv[j]);
            }
        },
    );
}

/// `sum = fma(factor, row, sum)`.
#[inline(always)]
fn add_scaled(factor: f32, row: &[f32], sum: &mut [f32]) {
    for (sum, &value) in sum.iter_mut().zip(row) {
        *sum = factor.mul_add(value, *sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::attention::attention;
    use crate::kernel::testing::{assert_close, assert_same_bits, computes, numbers};

    const LAYERS: [Heads; 3] = [
        Heads { query_heads: 6, kv_heads: 2, qk_dim: 64, v_dim: 64, scale: 0.125 },
        Heads { query_heads: 2, kv_heads: 2, qk_dim: 24, v_dim: 16, scale: 0.3 },
        Heads { query_heads: 2, kv_heads: 1, qk_dim: 7, v_dim: 13, scale: 1.0 },
    ];

    struct Sequence {
        q: Vec<f32>,
        keys: Vec<f32>,
        values: Vec<f32>,
        dout: Vec<f32>,
        positions: usize,
    }

    fn sequence(heads: &Heads, positions: usize) -> Sequence {
        Sequence {
            q: numbers(1, positions * heads.query_heads * heads.qk_dim),
            keys: numbers(2, heads.keys_len(positions)),
            values: numbers(3, heads.values_len(positions)),
            dout: numbers(4, positions * heads.query_heads * heads.v_dim),
            positions,
        }
    }

    /// Forward and backward in pieces of `cut` rows: dq, dk, dv in one vector.
    fn gradients(compute: &Compute, heads: &Heads, s: &Sequence, cut: usize) -> Vec<f32> {
        let (mut dq, mut dk, mut dv) = (vec![f32::NAN; s.q.len()], vec![0.0; s.keys.len()], vec![0.0; s.values.len()]);
        let (q_row, out_row) = (heads.query_heads * heads.qk_dim, heads.query_heads * heads.v_dim);
        for first in (0..s.positions).step_by(cut) {
            let end = s.positions.min(first + cut);
            let (q, dout) = (&s.q[first * q_row..end * q_row], &s.dout[first * out_row..end * out_row]);
            let history = History { keys: &s.keys[..], values: &s.values[..] };
            let mut out = vec![0.0; dout.len()];
            let mut softmax = vec![SoftmaxRow::default(); (end - first) * heads.query_heads];
            attention(compute, heads, q, history, first, &mut out, Some(&mut softmax));
            let forward = AttentionForward { q, history, first_position: first, out: &out, softmax: &softmax };
            let gradients = AttentionGradients {
                dq: &mut dq[first * q_row..end * q_row],
                dk: &mut dk[..heads.keys_len(end)],
                dv: &mut dv[..heads.values_len(end)],
            };
            attention_backward(compute, heads, &forward, dout, gradients);
        }
        [dq, dk, dv].concat()
    }

    /// Double precision, straight from the formulas.
    fn oracle(heads: &Heads, s: &Sequence) -> Vec<f64> {
        let at = |values: &[f32], index: usize| f64::from(values[index]);
        let (mut dq, mut dk, mut dv) = (vec![0.0; s.q.len()], vec![0.0; s.keys.len()], vec![0.0; s.values.len()]);
        let (dim, v_dim, scale) = (heads.qk_dim, heads.v_dim, f64::from(heads.scale));
        for row in 0..s.positions {
            for head in 0..heads.query_heads {
                let (q, o) = ((row * heads.query_heads + head) * dim, (row * heads.query_heads + head) * v_dim);
                let k = |j: usize| (j * heads.kv_heads + head / heads.group()) * dim;
                let v = |j: usize| (j * heads.kv_heads + head / heads.group()) * v_dim;
                let score = |j| (0..dim).map(|i| at(&s.q, q + i) * at(&s.keys, k(j) + i)).sum::<f64>() * scale;
                let weights: Vec<f64> = (0..=row).map(|j| score(j).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let dp: Vec<f64> =
                    (0..=row).map(|j| (0..v_dim).map(|c| at(&s.dout, o + c) * at(&s.values, v(j) + c)).sum()).collect();
                let delta: f64 = weights.iter().zip(&dp).map(|(w, dp)| w / sum * dp).sum();
                for j in 0..=row {
                    let p = weights[j] / sum;
                    let ds = p * (dp[j] - delta) * scale;
                    for i in 0..dim {
                        dq[q + i] += ds * at(&s.keys, k(j) + i);
                        dk[k(j) + i] += ds * at(&s.q, q + i);
                    }
                    for c in 0..v_dim {
                        dv[v(j) + c] += p * at(&s.dout, o + c);
                    }
                }
            }
        }
        [dq, dk, dv].concat()
    }

    #[test]
    fn gradients_agree_with_double_precision_and_keep_bits_in_every_cut() {
        for heads in &LAYERS {
            let s = sequence(heads, 35);
            let want = gradients(&computes()[0], heads, &s, 35);
            assert_close(&oracle(heads, &s), &want, 2e-5, "oracle");
            for compute in computes() {
                for cut in [1, 2, 7, 33, 35] {
                    assert_same_bits(&want, &gradients(&compute, heads, &s, cut), &format!("cut {cut}"));
                }
            }
        }
    }
}
