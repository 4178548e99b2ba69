//! Causal attention of query rows of one sequence over its contiguous key/value history.
//!
//! Row r is at position `first_position + r` and reads the keys 0 to that position:
//!
//! * `s[j] = dot8(q, k[j]) * scale`;
//! * `e[j] = exp(s[j] - max)`, `sum = sum8(e)` with lane = key position mod 8, `p[j] = e[j] / sum`;
//! * `out = fma(p[j], v[j], out)` over j in order from +0.
//!
//! Query heads share key/value heads in equal groups (head h reads h / (`query_heads` / `kv_heads`)). Query-key and value dimensions
//! may differ. A row's result depends on its position and history alone: decode, prefill in any cut and training agree.

use super::math::exp;
use super::pack::check;
use super::reduce::{LANES, Stored, dot_lanes, max_lanes, sum_lanes};
use super::{Compute, Isa};

/// Heads and dimensions of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Query heads, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Dimension of a query and a key head.
    pub qk_dim: usize,
    /// Dimension of a value and an output head.
    pub v_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl Heads {
    /// Query heads per key/value head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// Length of the key history of a position count.
    #[must_use]
    pub fn keys_len(&self, positions: usize) -> usize {
        positions * self.kv_heads * self.qk_dim
    }

    /// Length of the value history of a position count.
    #[must_use]
    pub fn values_len(&self, positions: usize) -> usize {
        positions * self.kv_heads * self.v_dim
    }
}

/// What the backward pass needs of one softmax row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoftmaxRow {
    /// Largest score.
    pub max: f32,
    /// Sum of `exp(score - max)`.
    pub sum: f32,
}

impl SoftmaxRow {
    /// ln of the sum of `exp(score)`.
    #[must_use]
    pub fn log_sum_exp(&self) -> f32 {
        self.max + super::math::ln(self.sum)
    }
}

/// The history of one sequence, `[positions, kv_heads, dim]`, FP32 values or BF16 bits.
#[derive(Clone, Copy, Debug)]
pub struct History<'a, T> {
    /// `[positions, kv_heads, qk_dim]`.
    pub keys: &'a [T],
    /// `[positions, kv_heads, v_dim]`.
    pub values: &'a [T],
}

/// `out` `[rows, query_heads, v_dim]` from `q` `[rows, query_heads, qk_dim]` at positions from `first_position` on.
///
/// `softmax` `[rows, query_heads]`, when given, receives what [`super::attention_backward::attention_backward`] reads. The history may be
/// longer than `first_position + rows`; what lies beyond a row's position is not read for it.
///
/// # Panics
/// When a length differs from the shape, the history is too short or heads do not divide.
pub fn attention<T: Stored>(
    compute: &Compute,
    heads: &Heads,
    q: &[f32],
    history: History<T>,
    first_position: usize,
    out: &mut [f32],
    softmax: Option<&mut [SoftmaxRow]>,
) {
    assert_eq!(heads.query_heads % heads.kv_heads, 0, "query heads must be a multiple of key/value heads");
    let rows = q.len() / (heads.query_heads * heads.qk_dim);
    check("queries", q.len(), rows * heads.query_heads * heads.qk_dim);
    check("attention output", out.len(), rows * heads.query_heads * heads.v_dim);
    let positions = first_position + rows;
    assert!(history.keys.len() >= heads.keys_len(positions), "key history is shorter than the positions");
    assert!(history.values.len() >= heads.values_len(positions), "value history is shorter than the positions");
    let mut unused = Vec::new();
    let softmax = match softmax {
        Some(softmax) => softmax,
        None => {
            unused.resize(rows * heads.query_heads, SoftmaxRow::default());
            &mut unused
        }
    };
    check("softmax rows", softmax.len(), rows * heads.query_heads);
    let isa = compute.isa();
    let items: Vec<Item> = out
        .chunks_mut(heads.v_dim.max(1))
        .zip(softmax)
        .zip(q.chunks(heads.qk_dim))
        .enumerate()
        .map(|(index, ((out, softmax), q))| Item { index, q, out, softmax })
        .collect();
    // Neighbouring items are the heads of one row; a task is worth a fixed number of key reads.
    let per_task = (TASK_KEYS / positions.max(1)).max(1);
    compute.for_each(tasks(items, per_task), |task| {
        let mut scores = Vec::with_capacity(positions);
        for item in task {
            let (row, head) = (item.index / heads.query_heads, item.index % heads.query_heads);
            scores.clear();
            scores.resize(first_position + row + 1, 0.0);
            *item.softmax = attend(isa, heads, item.q, &history, head / heads.group(), &mut scores, item.out);
        }
    });
}

/// One query head of one row.
struct Item<'a> {
    index: usize,
    q: &'a [f32],
    out: &'a mut [f32],
    softmax: &'a mut SoftmaxRow,
}

fn tasks(items: Vec<Item<'_>>, per_task: usize) -> Vec<Vec<Item<'_>>> {
    let mut tasks = Vec::with_capacity(items.len().div_ceil(per_task));
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        tasks.push(items.by_ref().take(per_task).collect());
    }
    tasks
}

/// One query over `scores.len()` keys.
#[inline(never)]
fn attend<T: Stored>(
    isa: Isa,
    heads: &Heads,
    q: &[f32],
    history: &History<T>,
    kv_head: usize,
    scores: &mut [f32],
    out: &mut [f32],
) -> SoftmaxRow {
    isa.run(
        #[inline(always)]
        || {
            raw_scores(heads, q, history.keys, kv_head, scores);
            let row = softmax_in_place(scores);
            out.fill(0.0);
            weighted_sum(scores, history.values, heads.kv_heads * heads.v_dim, kv_head * heads.v_dim, out);
            row
        },
    )
}

/// `scores[j] = dot8(q, k[j]) * scale`.
#[inline(always)]
pub(crate) fn raw_scores<T: Stored>(heads: &Heads, q: &[f32], keys: &[T], kv_head: usize, scores: &mut [f32]) {
    let stride = heads.kv_heads * heads.qk_dim;
    for (j, score) in scores.iter_mut().enumerate() {
        let key = &keys[j * stride + kv_head * heads.qk_dim..][..heads.qk_dim];
        *score = dot_lanes(q, key) * heads.scale;
    }
}

/// Scores to probabilities.
#[inline(always)]
pub(crate) fn softmax_in_place(scores: &mut [f32]) -> SoftmaxRow {
    let max = max_lanes(scores);
    scores.iter_mut().for_each(|score| *score = exp(*score - max));
    let sum = sum_lanes(scores);
    scores.iter_mut().for_each(|score| *score /= sum);
    SoftmaxRow { max, sum }
}

/// `out = fma(weights[j], rows[j], out)` over j in order; row j starts at `j * stride + offset`.
#[inline(always)]
pub(crate) fn weighted_sum<T: Stored>(weights: &[f32], rows: &[T], stride: usize, offset: usize, out: &mut [f32]) {
    let dim = out.len();
    let mut at = 0;
    while at < dim {
        let width = (dim - at).min(WIDE);
        if width == WIDE {
            weighted_columns::<T, WIDE>(weights, rows, stride, offset + at, &mut out[at..]);
            at += WIDE;
        } else if width >= LANES {
            weighted_columns::<T, LANES>(weights, rows, stride, offset + at, &mut out[at..]);
            at += LANES;
        } else {
            weighted_columns::<T, 1>(weights, rows, stride, offset + at, &mut out[at..]);
            at += 1;
        }
    }
}

/// `C` columns of [`weighted_sum`], held in registers over all rows.
#[inline(always)]
fn weighted_columns<T: Stored, const C: usize>(
    weights: &[f32],
    rows: &[T],
    stride: usize,
    offset: usize,
    out: &mut [f32],
) {
    let Some(out) = out.first_chunk_mut::<C>() else {
        return;
    };
    let mut acc = *out;
    for (j, &weight) in weights.iter().enumerate() {
        if let Some(row) = rows[j * stride + offset..].first_chunk::<C>() {
            for c in 0..C {
                acc[c] = weight.mul_add(row[c].widen(), acc[c]);
            }
        }
    }
    *out = acc;
}

/// Columns summed at once: eight AVX2 registers.
const WIDE: usize = 64;
/// Keys a task reads.
const TASK_KEYS: usize = 2048;

#[cfg(test)]
mod tests;
