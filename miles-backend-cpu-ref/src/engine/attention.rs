//! Causal attention over cached keys and values, of all segments of a batch at once.
//!
//! The steps are those of [`crate::kernel::attention`], applied to a history in two pieces (a shared prompt's run, then
//! the sequence's own): scores of both pieces in key order, one softmax over all of them, and one chain of fused
//! multiply-adds that continues from the first piece into the second. The bits are those of one contiguous history.

use miles_core::network::AttentionShape;
use miles_core::plugin::RolloutError;
use miles_core::policy::PolicyStamp;

use super::batch::{Batch, Segment};
use super::cache::{KvCache, Runs};
use crate::kernel::attention::{Heads, raw_scores, softmax_in_place, weighted_sum};
use crate::kernel::reduce::Stored;
use crate::kernel::{Compute, Isa};
use crate::ops::attention::heads;
use crate::ops::{Activation, Forward};

/// Attention of every row of `batch` over its own history in `cache`, its own key included:
/// `[rows, heads * qk_dim] -> [rows, heads * v_dim]`. The caller has checked `q` against `shape`.
///
/// # Errors
/// [`RolloutError::MissingKeys`] if a history was not computed by the policy of `forward`.
pub(super) fn cached_attention(
    forward: &Forward<'_>,
    q: &Activation,
    batch: &Batch,
    cache: &KvCache,
    shape: AttentionShape,
) -> Result<Activation, RolloutError> {
    let width = shape.heads * shape.v_dim;
    let mut out = vec![0.0; q.rows() * width];
    let compute = forward.context.compute();
    let policy = forward.weights.stamp();
    match cache {
        KvCache::Bf16(runs) => {
            attend_batch(compute, q, batch, &histories(batch, runs, policy, shape)?, shape, &mut out)
        }
        KvCache::F32(runs) => attend_batch(compute, q, batch, &histories(batch, runs, policy, shape)?, shape, &mut out),
    }
    forward.round(&mut out);
    Ok(Activation::new(q.rows(), width, out))
}

/// The history of every segment of a batch in one layer.
fn histories<'a, T: Stored>(
    batch: &Batch,
    runs: &'a Runs<T>,
    policy: PolicyStamp,
    shape: AttentionShape,
) -> Result<Vec<History<'a, T>>, RolloutError> {
    let read = |run| runs.read(run, policy, shape.layer).ok_or(RolloutError::MissingKeys { policy });
    let history = |segment: &Segment| {
        let shared = segment.prefix.map_or(Ok((&[][..], &[][..])), read)?;
        Ok([shared, read(segment.run)?])
    };
    batch.segments().iter().map(history).collect()
}

fn attend_batch<T: Stored>(
    compute: &Compute,
    q: &Activation,
    batch: &Batch,
    histories: &[History<'_, T>],
    shape: AttentionShape,
    out: &mut [f32],
) {
    let mut items = Vec::with_capacity(q.rows() * shape.heads);
    let mut rows = out.chunks_exact_mut(shape.heads * shape.v_dim).enumerate();
    for (segment, history) in batch.segments().iter().zip(histories) {
        for ((row, out), position) in rows.by_ref().take(segment.rows.len()).zip(segment.start..) {
            let queries = q.row(row).chunks_exact(shape.qk_dim);
            let outputs = queries.zip(out.chunks_exact_mut(shape.v_dim)).enumerate();
            items.extend(outputs.map(|(head, (q, out))| Item { q, out, history, head, keys: position + 1 }));
        }
    }
    let heads = heads(&shape);
    compute.for_each(tasks(items), |task| {
        let mut scores = Vec::new();
        for item in task {
            scores.clear();
            scores.resize(item.keys, 0.0);
            item.attend(compute.isa(), &heads, &mut scores);
        }
    });
}

/// Keys and values of a sequence in one layer: those of a shared prompt (or none), then its own.
type History<'a, T> = [(&'a [T], &'a [T]); 2];

/// One query head of one row.
struct Item<'a, T> {
    q: &'a [f32],
    out: &'a mut [f32],
    history: &'a History<'a, T>,
    head: usize,
    /// Keys that the row sees.
    keys: usize,
}

impl<T: Stored> Item<'_, T> {
    #[inline(never)]
    fn attend(self, isa: Isa, heads: &Heads, scores: &mut [f32]) {
        let [(shared_keys, shared_values), (own_keys, own_values)] = *self.history;
        let shared = shared_keys.len() / heads.keys_len(1);
        let kv_head = self.head / heads.group();
        let (stride, offset) = (heads.values_len(1), kv_head * heads.v_dim);
        isa.run(
            #[inline(always)]
            || {
                let (first, second) = scores.split_at_mut(shared);
                raw_scores(heads, self.q, shared_keys, kv_head, first);
                raw_scores(heads, self.q, own_keys, kv_head, second);
                softmax_in_place(scores);
                let (first, second) = scores.split_at(shared);
                self.out.fill(0.0);
                weighted_sum(first, shared_values, stride, offset, self.out);
                weighted_sum(second, own_values, stride, offset, self.out);
            },
        );
    }
}

/// Cuts items into tasks that read about [`TASK_KEYS`] keys each.
fn tasks<T>(items: Vec<Item<'_, T>>) -> Vec<Vec<Item<'_, T>>> {
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
