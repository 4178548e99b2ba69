//! Cutting a batch into micro-batches, and packing one for the forward pass.
//!
//! ```text
//! samples   [p p p c c] [p p c]            p prompt, c completion token
//! rows       p p p c     p p               each sample without its last token, one after the other, no padding
//! outputs        2 3       5               the rows whose next token is a completion token
//! ```
//!
//! Samples stay in order and whole. Nothing that is computed depends on the cut, except where the quantized backward
//! groups rows into blocks (see [`crate::ops::linear_backward`]).

use std::ops::Range;

use miles_core::network::Network;
use miles_core::plugin::{TrainError, TrainSample};

/// Samples packed into one row batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// The rows of each sample.
    pub sequences: Vec<Range<usize>>,
    /// Rows whose next token is scored.
    pub outputs: Vec<usize>,
    /// The scored token of each output row.
    pub targets: Vec<u32>,
    /// The output rows of each sample, as a range of [`Packed::outputs`].
    pub scored: Vec<Range<usize>>,
}

impl Packed {
    /// Packs samples in order.
    #[must_use]
    pub fn new(samples: &[TrainSample]) -> Self {
        let mut packed = Packed::default();
        for sample in samples {
            let (first_row, first_output) = (packed.tokens.len(), packed.outputs.len());
            let rows = sample.tokens.len() - 1;
            packed.tokens.extend_from_slice(&sample.tokens[..rows]);
            packed.positions.extend(0..rows as u32);
            packed.sequences.push(first_row..first_row + rows);
            packed.outputs.extend((sample.prompt_tokens - 1..rows).map(|row| first_row + row));
            packed.targets.extend_from_slice(&sample.tokens[sample.prompt_tokens..]);
            packed.scored.push(first_output..packed.outputs.len());
        }
        packed
    }

    /// Rows of the batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}

/// Cuts samples, in order, into runs of at most `budget_tokens` tokens; a longer sample is a run of its own.
#[must_use]
pub fn micro_batches(samples: &[TrainSample], budget_tokens: usize) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (index, sample) in samples.iter().enumerate() {
        if index > start && tokens + sample.tokens.len() > budget_tokens {
            cuts.push(start..index);
            (start, tokens) = (index, 0);
        }
        tokens += sample.tokens.len();
    }
    if start < samples.len() {
        cuts.push(start..samples.len());
    }
    cuts
}

/// Refuses samples that the network cannot run.
///
/// # Errors
/// If a token id is outside the vocabulary or a sample is longer than the context.
pub fn check_samples(samples: &[TrainSample], network: &Network) -> Result<(), TrainError> {
    let (vocab_size, context_tokens) = (network.config.vocab_size, network.config.context_tokens);
    for (index, sample) in samples.iter().enumerate() {
        if sample.tokens.len() > context_tokens {
            return Err(TrainError::ContextExceeded { index, tokens: sample.tokens.len(), context_tokens });
        }
        if let Some(&id) = sample.tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(TrainError::TokenOutOfRange { index, id, vocab_size });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tokens: &[u32], prompt_tokens: usize) -> TrainSample {
        TrainSample {
            tokens: tokens.to_vec(),
            prompt_tokens,
            rollout_logprobs: vec![0.0; tokens.len() - prompt_tokens],
            reference_logprobs: None,
            advantage: 0.0,
        }
    }

    #[test]
    fn a_row_per_token_but_the_last_and_an_output_per_completion_token() {
        let packed = Packed::new(&[sample(&[1, 2, 3, 4, 5], 3), sample(&[6, 7, 8], 2)]);
        assert_eq!(packed.tokens, [1, 2, 3, 4, 6, 7]);
        assert_eq!(packed.positions, [0, 1, 2, 3, 0, 1]);
        assert_eq!(packed.sequences, [0..4, 4..6]);
        assert_eq!(packed.outputs, [2, 3, 5]);
        assert_eq!(packed.targets, [4, 5, 8]);
        assert_eq!(packed.scored, [0..2, 2..3]);
    }

    #[test]
    fn cuts_keep_samples_whole_and_in_order() {
        let samples = [sample(&[0; 4], 1), sample(&[0; 3], 1), sample(&[0; 9], 1), sample(&[0; 2], 1)];
        assert_eq!(micro_batches(&samples, 7), [0..2, 2..3, 3..4]);
        assert_eq!(micro_batches(&samples, 1), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(micro_batches(&samples, 100), vec![0..4]);
        assert!(micro_batches(&[], 7).is_empty());
    }
}
