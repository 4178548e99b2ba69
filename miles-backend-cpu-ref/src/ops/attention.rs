//! Causal attention over packed sequences: each sequence by itself, from its first position.
//!
//! The engine, which has cached keys and values, calls [`crate::kernel::attention`] directly; a row's result depends on
//! its position and history alone, so both give the same bits.

use std::ops::Range;
use std::sync::Arc;

use miles_core::Result;
use miles_core::network::AttentionShape;

use super::{Activation, Forward, same_size};
use crate::kernel::Compute;
use crate::kernel::attention::{Heads, History, SoftmaxRow, attention};
use crate::kernel::attention_backward::{AttentionForward, AttentionGradients, attention_backward};

/// A result of attention, and what its backward reads besides the inputs.
#[derive(Debug)]
pub struct Attended {
    /// `[rows, heads * v_dim]`
    pub output: Arc<Activation>,
    /// `[rows, heads]`
    softmax: Vec<SoftmaxRow>,
}

/// The kernel's description of an attention shape.
#[must_use]
pub fn heads(shape: &AttentionShape) -> Heads {
    Heads {
        query_heads: shape.heads,
        kv_heads: shape.kv_heads,
        qk_dim: shape.qk_dim,
        v_dim: shape.v_dim,
        scale: shape.scale,
    }
}

/// Attention of `sequences`, which are consecutive row ranges that cover the batch.
///
/// # Errors
/// If shapes disagree.
pub fn packed_attention(
    forward: &Forward<'_>,
    q: &Activation,
    k: &Activation,
    v: &Activation,
    shape: AttentionShape,
    sequences: &[Range<usize>],
) -> Result<Attended> {
    check_shapes(q, k, v, shape)?;
    let rows = sequences.last().map_or(0, |last| last.end);
    same_size("attention", "rows of all sequences", q.rows(), rows)?;
    let (heads, compute) = (heads(&shape), forward.context.compute());
    let out_cols = shape.heads * shape.v_dim;
    let mut out = vec![0.0; rows * out_cols];
    let mut softmax = vec![SoftmaxRow::default(); rows * shape.heads];
    let outs = split(&mut out, sequences, out_cols);
    let softmaxes = split(&mut softmax, sequences, shape.heads);
    let tasks: Vec<_> = sequences.iter().zip(outs).zip(softmaxes).collect();
    compute.for_each(tasks, |((rows, out), softmax)| {
        let history = History { keys: rows_of(k, rows), values: rows_of(v, rows) };
        attention(compute, &heads, rows_of(q, rows), history, 0, out, Some(softmax));
    });
    forward.round(&mut out);
    Ok(Attended { output: Arc::new(Activation::new(rows, out_cols, out)), softmax })
}

/// Gradients of q, k and v from `dy` `[rows, heads * v_dim]`.
#[must_use]
pub fn packed_attention_backward(
    compute: &Compute,
    [q, k, v]: [&Activation; 3],
    attended: &Attended,
    dy: &[f32],
    shape: AttentionShape,
    sequences: &[Range<usize>],
) -> [Vec<f32>; 3] {
    let heads = heads(&shape);
    let out_cols = shape.heads * shape.v_dim;
    let zeros = |x: &Activation| vec![0.0; x.values().len()];
    let (mut dq, mut dk, mut dv) = (zeros(q), zeros(k), zeros(v));
    let dqs = split(&mut dq, sequences, q.cols());
    let dks = split(&mut dk, sequences, k.cols());
    let dvs = split(&mut dv, sequences, v.cols());
    let tasks: Vec<_> = sequences.iter().zip(dqs).zip(dks).zip(dvs).collect();
    compute.for_each(tasks, |(((rows, dq), dk), dv)| {
        let forward = AttentionForward {
            q: rows_of(q, rows),
            history: History { keys: rows_of(k, rows), values: rows_of(v, rows) },
            first_position: 0,
            out: rows_of(&attended.output, rows),
            softmax: &attended.softmax[rows.start * shape.heads..rows.end * shape.heads],
        };
        let dy = &dy[rows.start * out_cols..rows.end * out_cols];
        attention_backward(compute, &heads, &forward, dy, AttentionGradients { dq, dk, dv });
    });
    [dq, dk, dv]
}

pub(crate) fn check_shapes(q: &Activation, k: &Activation, v: &Activation, shape: AttentionShape) -> Result<()> {
    same_size("attention", "width of q", shape.heads * shape.qk_dim, q.cols())?;
    same_size("attention", "width of k", shape.kv_heads * shape.qk_dim, k.cols())?;
    same_size("attention", "width of v", shape.kv_heads * shape.v_dim, v.cols())?;
    same_size("attention", "rows of k", q.rows(), k.rows())?;
    same_size("attention", "rows of v", q.rows(), v.rows())?;
    same_size("attention", "query heads beyond equal groups", 0, shape.heads % shape.kv_heads.max(1))?;
    Ok(())
}

fn rows_of<'a>(x: &'a Activation, rows: &Range<usize>) -> &'a [f32] {
    &x.values()[rows.start * x.cols()..rows.end * x.cols()]
}

/// `values` `[rows, cols]` cut at the sequences' borders.
fn split<'a, T>(mut values: &'a mut [T], sequences: &[Range<usize>], cols: usize) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(sequences.len());
    for rows in sequences {
        let (part, rest) = std::mem::take(&mut values).split_at_mut(rows.len() * cols);
        parts.push(part);
        values = rest;
    }
    parts
}
