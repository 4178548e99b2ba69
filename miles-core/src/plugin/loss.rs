//! A training objective over sampled tokens.

/// Turns the logprobs of one completion into its part of the loss and the gradient on each logprob.
///
/// The batch's totals are given, so that a sample's part never depends on how the batch is cut.
pub trait Loss: Send + Sync {
    /// Adds nothing and reads nothing but its arguments. `gradient[t]` becomes d loss / d logprob of token `t`;
    /// `gradient` arrives zeroed and has one element per completion token.
    fn evaluate(&self, input: &LossInput<'_>, totals: &BatchTotals, gradient: &mut [f32]) -> LossTerms;
}

/// One completion, per token.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// Trainer logprobs.
    pub logprobs: &'a [f32],
    /// Logprobs at sampling time.
    pub rollout_logprobs: &'a [f32],
    /// Logprobs under the reference policy, where they were computed.
    pub reference_logprobs: Option<&'a [f32]>,
    /// Advantage of the completion.
    pub advantage: f32,
}

/// Counts over the whole batch of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTotals {
    /// Completions.
    pub samples: usize,
    /// Completion tokens.
    pub tokens: usize,
}

/// One completion's part of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossTerms {
    /// Its share of the loss, denominators applied.
    pub loss: f64,
    /// Tokens whose ratio was clipped.
    pub clipped_tokens: usize,
}
