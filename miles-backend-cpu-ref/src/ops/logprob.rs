//! Log-softmax of `logits / temperature` over the whole vocabulary: logprobs, entropies and their gradient, in f32.

use super::Forward;
use crate::kernel::Compute;
use crate::kernel::rowwise::log_softmax::LogSoftmaxRow;

/// Logprob of each row's target and entropy of each row's distribution, in nats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Logprobs.
    pub logprobs: Vec<f32>,
    /// Entropies.
    pub entropies: Vec<f32>,
}

impl Scores {
    /// Adds later rows.
    pub fn append(&mut self, mut later: Scores) {
        self.logprobs.append(&mut later.logprobs);
        self.entropies.append(&mut later.entropies);
    }
}

impl Forward<'_> {
    /// Logprob of one token under one row of logits `[vocab]`, the same bits as [`score_rows`].
    #[must_use]
    pub fn logprob(&self, logits: &[f32], temperature: f32, token: u32) -> f32 {
        let row = LogSoftmaxRow::new(self.context.compute().isa(), logits, temperature);
        row.log_probability(logits[token as usize])
    }
}

/// Scores each row of `logits` `[rows, vocab]` at its target.
///
/// # Panics
/// When the lengths differ, a target is outside the vocabulary or the temperature is not above 0.
#[must_use]
pub fn score_rows(compute: &Compute, logits: &[f32], vocab_size: usize, temperature: f32, targets: &[u32]) -> Scores {
    assert_eq!(logits.len(), targets.len() * vocab_size, "one target per row of logits");
    let mut scored = vec![(0.0, 0.0); targets.len()];
    let tasks: Vec<_> = scored.iter_mut().zip(logits.chunks_exact(vocab_size)).zip(targets).collect();
    compute.for_each(tasks, |((scored, logits), &target)| {
        let row = LogSoftmaxRow::new(compute.isa(), logits, temperature);
        *scored = (row.log_probability(logits[target as usize]), row.entropy);
    });
    let (logprobs, entropies) = scored.into_iter().unzip();
    Scores { logprobs, entropies }
}

/// Replaces `logits` `[rows, vocab]` by the gradient of `sum(gradient * logprob(target))` with respect to them.
///
/// # Panics
/// As [`score_rows`].
pub fn logprob_backward(
    compute: &Compute,
    logits: &mut [f32],
    vocab_size: usize,
    temperature: f32,
    targets: &[u32],
    gradient: &[f32],
) {
    assert_eq!(logits.len(), targets.len() * vocab_size, "one target per row of logits");
    assert_eq!(gradient.len(), targets.len(), "one gradient per target");
    let rows = logits.chunks_exact_mut(vocab_size).zip(targets).zip(gradient);
    compute.for_each(rows.collect(), |((logits, &target), &gradient)| {
        let row = LogSoftmaxRow::new(compute.isa(), logits, temperature);
        let values = logits.to_vec();
        row.logits_gradient(compute.isa(), &values, target as usize, gradient, logits);
    });
}
