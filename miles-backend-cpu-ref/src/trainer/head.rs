//! Scoring completion tokens, and the gradient that enters the network through the vocabulary head.
//!
//! Logits `[rows, vocab]` are the largest activation by far, so only completion positions get any, and only
//! [`LOGITS_BUDGET_BYTES`] of them exist at a time. A run of samples whose logits fit is scored, judged by the loss and
//! sent backward at once; a single sample that does not fit is scored piece by piece, judged, and its logits are computed
//! again for the backward pass. Either way every chain runs over rows in order, so the bits are the same.

use std::ops::Range;

use miles_core::Result;
use miles_core::network::Linear;
use miles_core::plugin::SampleScores;

use super::backward::BackwardPass;
use crate::ops::logprob::{Scores, logprob_backward, score_rows};
use crate::ops::{Activation, Forward};

/// Most bytes of logits at a time.
pub const LOGITS_BUDGET_BYTES: usize = 256 << 20;

/// Writes the gradient of the loss with respect to one sample's logprobs: (sample, logprobs, gradient), the last zeroed.
pub type Judge<'j> = dyn FnMut(usize, &[f32], &mut [f32]) + 'j;

/// The vocabulary head at a temperature.
#[derive(Clone, Copy)]
pub struct ScoringHead<'a> {
    /// Forward functions.
    pub forward: Forward<'a>,
    /// Divisor of the logits.
    pub temperature: f32,
    /// Most rows of logits at a time.
    pub max_rows: usize,
}

impl<'a> ScoringHead<'a> {
    /// A head that keeps to [`LOGITS_BUDGET_BYTES`].
    #[must_use]
    pub fn new(forward: Forward<'a>, temperature: f32) -> Self {
        let row_bytes = forward.weights.snapshot().network().config.vocab_size * size_of::<f32>();
        ScoringHead { forward, temperature, max_rows: (LOGITS_BUDGET_BYTES / row_bytes.max(1)).max(1) }
    }

    /// Logprob and entropy of each target under hidden states `[rows, hidden]`.
    ///
    /// # Errors
    /// Whatever the head's linear layer reports.
    pub fn score(&self, hidden: &Activation, targets: &[u32]) -> Result<Scores> {
        let mut scores = Scores::default();
        for rows in pieces(0..hidden.rows(), self.max_rows) {
            let (_, logits) = self.logits(hidden, rows.clone())?;
            scores.append(self.score_logits(&logits, &targets[rows]));
        }
        Ok(scores)
    }

    /// Scores each sample (a range of rows), asks `judge` for the gradient of the loss with respect to its logprobs,
    /// and adds the head's parameter gradients. Returns each sample's scores and the gradient of `hidden`.
    ///
    /// # Errors
    /// Whatever the head's linear layer reports.
    pub fn score_and_backward(
        &self,
        hidden: &Activation,
        targets: &[u32],
        samples: &[Range<usize>],
        judge: &mut Judge<'_>,
        pass: &mut BackwardPass<'_>,
    ) -> Result<(Vec<SampleScores>, Vec<f32>)> {
        let mut all_scores = Vec::with_capacity(samples.len());
        let mut d_hidden = Vec::with_capacity(hidden.values().len());
        let mut first = 0;
        for run in runs(samples, self.max_rows) {
            let rows = samples[run.start].start..samples[run.end - 1].end;
            let mut gradient = vec![0.0; rows.len()];
            let mut judge_run = |scores: &Scores, gradient: &mut [f32]| {
                for (index, sample) in samples[run.clone()].iter().enumerate() {
                    let local = sample.start - rows.start..sample.end - rows.start;
                    let logprobs = &scores.logprobs[local.clone()];
                    judge(first + index, logprobs, &mut gradient[local.clone()]);
                    all_scores.push(SampleScores {
                        logprobs: logprobs.to_vec(),
                        entropies: scores.entropies[local].to_vec(),
                    });
                }
            };
            if rows.len() <= self.max_rows {
                let (x, logits) = self.logits(hidden, rows.clone())?;
                judge_run(&self.score_logits(&logits, &targets[rows.clone()]), &mut gradient);
                d_hidden.extend(self.backward(&x, logits, &targets[rows], &gradient, pass)?);
            } else {
                let mut scores = Scores::default();
                for piece in pieces(rows.clone(), self.max_rows) {
                    let (_, logits) = self.logits(hidden, piece.clone())?;
                    scores.append(self.score_logits(&logits, &targets[piece]));
                }
                judge_run(&scores, &mut gradient);
                for piece in pieces(rows.clone(), self.max_rows) {
                    let (x, logits) = self.logits(hidden, piece.clone())?;
                    let gradient = &gradient[piece.start - rows.start..piece.end - rows.start];
                    d_hidden.extend(self.backward(&x, logits, &targets[piece], gradient, pass)?);
                }
            }
            first += run.len();
        }
        Ok((all_scores, d_hidden))
    }

    fn backward(
        &self,
        x: &Activation,
        logits: Activation,
        targets: &[u32],
        gradient: &[f32],
        pass: &mut BackwardPass<'_>,
    ) -> Result<Vec<f32>> {
        let vocab_size = logits.cols();
        let mut d_logits = logits.into_values();
        let compute = self.forward.context.compute();
        logprob_backward(compute, &mut d_logits, vocab_size, self.temperature, targets, gradient);
        pass.linear(x, self.head(), d_logits)
    }

    /// Some rows of the hidden states and their logits.
    fn logits(&self, hidden: &Activation, rows: Range<usize>) -> Result<(Activation, Activation)> {
        let values = hidden.values()[rows.start * hidden.cols()..rows.end * hidden.cols()].to_vec();
        let x = Activation::new(rows.len(), hidden.cols(), values);
        let logits = self.forward.linear(&x, self.head())?;
        Ok((x, logits))
    }

    fn score_logits(&self, logits: &Activation, targets: &[u32]) -> Scores {
        score_rows(self.forward.context.compute(), logits.values(), logits.cols(), self.temperature, targets)
    }

    fn head(&self) -> &'a Linear {
        &self.forward.weights.snapshot().network().head
    }
}

/// Consecutive samples whose rows fit together, or one sample that does not fit.
fn runs(samples: &[Range<usize>], max_rows: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if sample.end - samples[run.start].start <= max_rows => run.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// `rows` in pieces of at most `max_rows`.
fn pieces(rows: Range<usize>, max_rows: usize) -> impl Iterator<Item = Range<usize>> {
    rows.clone().step_by(max_rows).map(move |start| start..rows.end.min(start + max_rows))
}
