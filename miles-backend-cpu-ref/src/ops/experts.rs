//! Routed experts: rows copied to their experts, one linear layer per expert, and the weighted sum back.
//!
//! An expert may get any number of rows, also none; nothing is padded.

use miles_core::Result;
use miles_core::network::Linear;

use super::Forward;
use super::activation::Activation;
use super::error::{OperationError, same_size};
use super::linear::multiply;
use super::router::Routing;
use crate::kernel::Compute;
use crate::kernel::reduce::dot8;

/// The rows of `x` copied to their experts: `[rows, hidden] -> [rows * k, hidden]`, ordered by expert, then row.
///
/// # Errors
/// If the routing is of another number of rows.
pub fn dispatch(x: &Activation, routing: &Routing) -> Result<Activation> {
    same_size("dispatch", "number of rows", routing.rows(), x.rows())?;
    let values = routing.source_rows().iter().flat_map(|&row| x.row(row as usize)).copied().collect();
    Ok(Activation::new(routing.source_rows().len(), x.cols(), values))
}

/// Gradient of [`dispatch`]: adds the copies' gradients `dy` into `dx` `[rows, cols]`, each row's in ascending expert
/// order.
pub fn dispatch_backward(dy: &[f32], routing: &Routing, cols: usize, dx: &mut [f32]) {
    for (dx, copies) in dx.chunks_exact_mut(cols).zip(routing.dispatched().chunks_exact(routing.per_row())) {
        for &copy in copies {
            let dy = &dy[copy as usize * cols..][..cols];
            dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
        }
    }
}

impl Forward<'_> {
    /// One linear layer per expert over dispatched rows: `[rows * k, in] -> [rows * k, out]`.
    ///
    /// # Errors
    /// If shapes disagree, the experts differ in shape, or the activation cannot be quantized.
    pub fn expert_linear(&self, x: &Activation, routing: &Routing, experts: &[Linear]) -> Result<Activation> {
        same_size("expert_linear", "number of dispatched rows", routing.source_rows().len(), x.rows())?;
        let first = experts.first().ok_or(OperationError::Shape {
            operation: "expert_linear",
            what: "number of experts",
            expected: 1,
            actual: 0,
        })?;
        let cols = self.weights.matrix(first.weight)?.packed.n();
        let mut out = vec![0.0; x.rows() * cols];
        for (expert, linear) in experts.iter().enumerate() {
            let rows = routing.expert_rows(expert);
            let matrix = self.weights.matrix(linear.weight)?;
            same_size("expert_linear", "width of the activation", matrix.packed.k(), x.cols())?;
            same_size("expert_linear", "outputs of the expert", cols, matrix.packed.n())?;
            if rows.is_empty() {
                continue;
            }
            let out = &mut out[rows.start * cols..rows.end * cols];
            multiply(self.context, self.activations, x, rows, matrix, out)?;
            self.finish_linear(linear, out, cols)?;
        }
        Ok(Activation::new(x.rows(), cols, out))
    }

    /// Weighted sum of each row's expert results: `[rows * k, hidden] -> [rows, hidden]`, one chain of fused
    /// multiply-adds from +0 in ascending expert order.
    ///
    /// # Errors
    /// If the routing is of another number of rows.
    pub fn combine(&self, x: &Activation, routing: &Routing) -> Result<Activation> {
        same_size("combine", "number of dispatched rows", routing.source_rows().len(), x.rows())?;
        let cols = x.cols();
        let mut out = vec![0.0f32; routing.rows() * cols];
        let compute = self.context.compute();
        compute.for_row_pieces(&mut out, cols, |first_row, rows| {
            compute.isa().run(
                #[inline(always)]
                || {
                    for (row, out) in rows.chunks_exact_mut(cols).enumerate() {
                        let slots = (first_row + row) * routing.per_row()..(first_row + row + 1) * routing.per_row();
                        for slot in slots {
                            let (at, weight) = (routing.dispatched()[slot] as usize, routing.weights()[slot]);
                            out.iter_mut().zip(x.row(at)).for_each(|(sum, x)| *sum = weight.mul_add(*x, *sum));
                        }
                    }
                },
            );
        });
        self.round(&mut out);
        Ok(Activation::new(routing.rows(), cols, out))
    }
}

/// Gradient of [`Forward::combine`]: that with respect to `x` `[rows * k, cols]`, and to the weights `[rows, k]`.
#[must_use]
pub fn combine_backward(compute: &Compute, dy: &[f32], x: &Activation, routing: &Routing) -> (Vec<f32>, Vec<f32>) {
    let cols = x.cols();
    let mut dx = vec![0.0; x.rows() * cols];
    let mut d_weights = Vec::with_capacity(routing.weights().len());
    for (slot, (&at, &weight)) in routing.dispatched().iter().zip(routing.weights()).enumerate() {
        let dy = &dy[slot / routing.per_row() * cols..][..cols];
        dx[at as usize * cols..][..cols].iter_mut().zip(dy).for_each(|(dx, dy)| *dx = weight * dy);
        d_weights.push(dot8(compute.isa(), dy, x.row(at as usize)));
    }
    (dx, d_weights)
}
