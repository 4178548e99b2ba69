//! RMS norm over equal column ranges of each row: `x / sqrt(mean(x^2) + eps) * weight`.

use miles_core::Result;
use miles_core::network::ParamId;

use super::{Activation, Forward, same_size};
use crate::kernel::Compute;
use crate::kernel::rowwise::norm;

impl Forward<'_> {
    /// The norm of each of `groups` column ranges (1: the whole row; the number of heads: each head).
    ///
    /// # Errors
    /// If the ranges are not as wide as the weight.
    pub fn rms_norm(&self, x: &Activation, weight: ParamId, groups: usize, eps: f32) -> Result<Activation> {
        let weight = self.weights.vector(weight)?;
        same_size("rms_norm", "width of the activation", weight.len() * groups, x.cols())?;
        let mut y = vec![0.0; x.values().len()];
        let mut inverse_rms = vec![0.0; x.rows() * groups];
        norm::rms_norm(self.context.compute(), x.values(), weight, eps, &mut y, &mut inverse_rms);
        self.round(&mut y);
        Ok(Activation::new(x.rows(), x.cols(), y))
    }
}

/// Gradient of [`Forward::rms_norm`] with respect to `x`; that of the weight is added to `d_weight`, rows (and within a
/// row groups) in order.
#[must_use]
pub fn rms_norm_backward(
    compute: &Compute,
    dy: &[f32],
    x: &Activation,
    weight: &[f32],
    eps: f32,
    d_weight: Option<&mut [f32]>,
) -> Vec<f32> {
    // One vector of [rows * groups] reciprocals is cheaper to make again than to keep; the bits are the forward's.
    let x = x.values();
    let mut unused = vec![0.0; x.len()];
    let mut inverse_rms = vec![0.0; x.len().checked_div(weight.len()).unwrap_or(0)];
    norm::rms_norm(compute, x, weight, eps, &mut unused, &mut inverse_rms);
    let mut dx = unused;
    norm::rms_norm_input_gradient(compute, dy, x, weight, &inverse_rms, &mut dx);
    if let Some(d_weight) = d_weight {
        norm::rms_norm_weight_gradient(compute, dy, x, &inverse_rms, d_weight);
    }
    dx
}
