//! What every forward function knows: where it runs, the weights, and the activation type.

use miles_core::plugin::ActivationDtype;

use super::rounding::round_to;
use super::{Context, PolicyWeights};

/// The forward functions of one policy version.
///
/// A batch-aware type (the engine's, the trainer's) holds one and adds what only it knows: token ids, positions and
/// keys and values.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// Threads, quantizer and packed weights.
    pub context: &'a Context,
    /// The policy version.
    pub weights: &'a PolicyWeights,
    /// Activation type.
    pub activations: ActivationDtype,
}

impl Forward<'_> {
    /// Rounds an operation's result to the activation type.
    pub(crate) fn round(&self, values: &mut [f32]) {
        round_to(self.activations, self.context.compute(), values);
    }
}
