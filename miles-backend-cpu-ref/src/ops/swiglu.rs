//! `silu(gate) * up`.

use miles_core::Result;

use super::{Activation, Forward, same_size};
use crate::kernel::Compute;
use crate::kernel::rowwise::gate;

impl Forward<'_> {
    /// `silu(gate) * up`, elementwise.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn swiglu(&self, gate: &Activation, up: &Activation) -> Result<Activation> {
        same_size("swiglu", "number of rows", gate.rows(), up.rows())?;
        same_size("swiglu", "number of columns", gate.cols(), up.cols())?;
        let mut out = vec![0.0; gate.values().len()];
        gate::swiglu(self.context.compute(), gate.values(), up.values(), &mut out);
        self.round(&mut out);
        Ok(Activation::new(gate.rows(), gate.cols(), out))
    }
}

/// Gradients of gate and up from `dy`, all of one length.
#[must_use]
pub fn swiglu_backward(compute: &Compute, dy: &[f32], gate: &[f32], up: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut d_gate, mut d_up) = (vec![0.0; dy.len()], vec![0.0; dy.len()]);
    gate::swiglu_backward(compute, dy, gate, up, &mut d_gate, &mut d_up);
    (d_gate, d_up)
}
