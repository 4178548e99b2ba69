//! `y = x Wᵀ + b` in the format that the policy holds `W` in.

use std::ops::Range;

use miles_core::Result;
use miles_core::network::{Linear, LinearOutput};
use miles_core::plugin::ActivationDtype;

use super::activation::{Activation, QuantizedRows};
use super::error::same_size;
use super::weights::{Matrix, Operand};
use super::{Context, Forward};
use crate::kernel::linear::{Activations, linear as product};

impl Forward<'_> {
    /// `x W^T + b`: `[rows, in] -> [rows, out]`. The bias is added with one rounding after the product.
    ///
    /// # Errors
    /// If the widths differ or the activation cannot be quantized.
    pub fn linear(&self, x: &Activation, linear: &Linear) -> Result<Activation> {
        let matrix = self.weights.matrix(linear.weight)?;
        same_size("linear", "width of the activation", matrix.packed.k(), x.cols())?;
        let cols = matrix.packed.n();
        let mut out = vec![0.0; x.rows() * cols];
        multiply(self.context, self.activations, x, 0..x.rows(), matrix, &mut out)?;
        self.finish_linear(linear, &mut out, cols)?;
        Ok(Activation::new(x.rows(), cols, out))
    }

    /// Adds the bias and rounds to the layer's output type.
    pub(super) fn finish_linear(&self, linear: &Linear, out: &mut [f32], cols: usize) -> Result<()> {
        if let Some(bias) = linear.bias {
            let bias = self.weights.vector(bias)?;
            same_size("linear", "length of the bias", cols, bias.len())?;
            for row in out.chunks_exact_mut(cols) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
        if linear.output == LinearOutput::Activation {
            self.round(out);
        }
        Ok(())
    }
}

/// `out = x[rows] W^T`, with the activation in the form that the matrix multiplies.
pub(super) fn multiply(
    context: &Context,
    dtype: ActivationDtype,
    x: &Activation,
    rows: Range<usize>,
    matrix: &Matrix,
    out: &mut [f32],
) -> Result<()> {
    let (count, cols) = (rows.len(), x.cols());
    let compute = context.compute();
    match &matrix.operand {
        Operand::Values => {
            let values = &x.values()[rows.start * cols..rows.end * cols];
            product(compute, Activations::Values(values), count, &matrix.packed, out);
        }
        Operand::Codes(format) => {
            let quantized = x.quantized(context, dtype, format)?;
            product(compute, quantized.view(rows), count, &matrix.packed, out);
        }
        Operand::Dequantized(format) => {
            let values = x.quantized(context, dtype, format)?.dequantize(context)?;
            let values = &values[rows.start * cols..rows.end * cols];
            product(compute, Activations::Values(values), count, &matrix.packed, out);
        }
    }
    Ok(())
}

impl QuantizedRows {
    /// Some of the rows as the kernels read them; only for a format that has a kernel.
    pub(crate) fn view(&self, rows: Range<usize>) -> Activations<'_> {
        let tensor = &self.tensor;
        let part = |total: usize| {
            let per_row = total.checked_div(tensor.rows()).unwrap_or(0);
            rows.start * per_row..rows.end * per_row
        };
        let codes = &tensor.codes()[part(tensor.codes().len())];
        match (tensor.scales().as_u8(), tensor.scales().as_f32(), tensor.outer()) {
            (Some(scales), _, []) => Activations::Mxfp8 { codes, scales: &scales[part(scales.len())] },
            (Some(scales), _, outer) => {
                let token_scales = &outer[part(outer.len())];
                Activations::Nvfp4 { codes, scales: &scales[part(scales.len())], token_scales }
            }
            (None, scales, _) => {
                let scales = scales.unwrap_or_default();
                Activations::Fp8Block { codes, scales: &scales[part(scales.len())] }
            }
        }
    }
}
