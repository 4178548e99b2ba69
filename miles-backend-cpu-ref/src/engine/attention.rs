//! Causal attention over cached keys and values, of all segments of a batch at once.
//!
//! The steps are those of [`crate::kernel::attention`], applied to a history in two pieces (a shared prompt's run, then
//! the sequence's own): scores of both pieces in key order, one softmax over all of them, and one chain of fused
//! multiply-adds that continues from the first piece into the second. The bits are those of one contiguous history.

use miles_core::Result;
use miles_core::network::AttentionShape;

use super::batch::Batch;
use super::cache::{KvCache, KvSlice};
use crate::kernel::Isa;
use crate::kernel::attention::{Heads, raw_scores, softmax_in_place, weighted_sum};
use crate::kernel::reduce::Stored;
use crate::ops::{Activation, Forward, same_size};

/// Attention of every row of `batch` over its own history in `cache`, its own key included:
/// `[rows, heads * qk_dim] -> [rows, heads * v_dim]`.
///
/// # Errors
/// If the queries' width is not that of the shape.
pub(super) fn cached_attention(
    forward: &Forward<'_>,
    q: &Activation,
    batch: &Batch,
    cache: &KvCache,
    shape: AttentionShape,
) -> Result<Activation> {
    let AttentionShape { layer, heads: query_heads, kv_heads, qk_dim, v_dim, scale } = shape;
    let heads = Heads { query_heads, kv_heads, qk_dim, v_dim, scale };
    same_size("attention", "width of the queries", query_heads * qk_dim, q.cols())?;
    let width = query_heads * v_dim;
    let mut out = vec![0.0; q.rows() * width];
    let histories: Vec<History<'_>> = batch.segments().iter().map(|segment| {
        let prefix = segment.prefix.map(|prefix| cache.read(prefix, layer));
        History { prefix, own: cache.read(segment.run, layer) }
    }).collect();

    let mut items = Vec::with_capacity(q.rows() * query_heads);
    let mut rows = out.chunks_exact_mut(width).enumerate();
    for (segment, history) in batch.segments().iter().zip(&histories) {
        for ((row, out), position) in rows.by_ref().take(segment.rows.len()).zip(segment.start..) {
            let queries = q.row(row).chunks_exact(qk_dim);
            let outputs = queries.zip(out.chunks_exact_mut(v_dim)).enumerate();
            items.extend(outputs.map(|(head, (q, out))| Item { q, out, history, head, keys: position + 1 }));
        }
    }
    let compute = forward.context.compute();
    compute.for_each(tasks(items), |task| {
        let mut scores = Vec::new();
        for item in task {
            item.attend(compute.isa(), &heads, &mut scores);
        }
    });
    forward.round(&mut out);
    Ok(Activation::new(q.rows(), width, out))
}

/// Keys and values of a sequence: those of a shared prompt, then its own.
struct History<'a> {
    prefix: Option<(KvSlice<'a>, KvSlice<'a>)>,
    own: (KvSlice<'a>, KvSlice<'a>),
}

/// One query head of one row.
struct Item<'a> {
    q: &'a [f32],
    out: &'a mut [f32],
    history: &'a History<'a>,
    head: usize,
    /// Keys that the row sees.
    keys: usize,
}

impl Item<'_> {
    fn attend(self, isa: Isa, heads: &Heads, scores: &mut Vec<f32>) {
        scores.clear();
        scores.resize(self.keys, 0.0);
        match self.history.own {
            (KvSlice::Bf16(keys), KvSlice::Bf16(values)) => {
                let prefix = match self.history.prefix {
                    Some((KvSlice::Bf16(keys), KvSlice::Bf16(values))) => (keys, values),
                    _ => Default::default(),
                };
                self.over([prefix, (keys, values)], isa, heads, scores);
            }
            (KvSlice::F32(keys), KvSlice::F32(values)) => {
                let prefix = match self.history.prefix {
                    Some((KvSlice::F32(keys), KvSlice::F32(values))) => (keys, values),
                    _ => Default::default(),
                };
                self.over([prefix, (keys, values)], isa, heads, scores);
            }
            // A cache holds rows of one type.
            _ => {}
        }
    }

    /// Attention over pieces of `(keys, values)`, in order.
    #[inline(never)]
    fn over<T: Stored>(self, pieces: [(&[T], &[T]); 2], isa: Isa, heads: &Heads, scores: &mut [f32]) {
        let kv_head = self.head / heads.group();
        let (stride, offset) = (heads.kv_heads * heads.v_dim, kv_head * heads.v_dim);
        let in_prefix = pieces[0].0.len() / (heads.kv_heads * heads.qk_dim);
        isa.run(
            #[inline(always)]
            || {
                let (first, second) = scores.split_at_mut(in_prefix);
                raw_scores(heads, self.q, pieces[0].0, kv_head, first);
                raw_scores(heads, self.q, pieces[1].0, kv_head, second);
                softmax_in_place(scores);
                let (first, second) = scores.split_at(in_prefix);
                self.out.fill(0.0);
                weighted_sum(first, pieces[0].1, stride, offset, self.out);
                weighted_sum(second, pieces[1].1, stride, offset, self.out);
            },
        );
    }
}

/// Cuts items into tasks that read about [`TASK_KEYS`] keys each.
fn tasks(items: Vec<Item<'_>>) -> Vec<Vec<Item<'_>>> {
    let mut tasks = Vec::new();
    let (mut task, mut keys) = (Vec::new(), 0);
    for item in items {
        keys += item.keys;
        task.push(item);
        if keys >= TASK_KEYS {
            tasks.push(std::mem::take(&mut task));
            keys = 0;
        }
    }
    if !task.is_empty() {
        tasks.push(task);
    }
    tasks
}

/// Keys worth a task of their own.
const TASK_KEYS: usize = 4096;
