//! The backward products of a linear layer: `dX = dY W` and `dW += dYᵀ X`.
//!
//! | mode | W | X | dY |
//! |---|---|---|---|
//! | high-precision | the policy's own values, or the master rounded to BF16 where the policy holds codes | as in the forward pass, before quantization | as it arrives |
//! | dequantized | codes and scales of the forward pass, dequantized to BF16 | the same | as it arrives |
//! | quantized, for dX | quantized again along its outputs | | quantized along its outputs |
//! | quantized, for dW | | quantized again along tokens | quantized along tokens |
//!
//! "As it arrives" is rounded to BF16 in a BF16 run. Quantized operands are always made from the high-precision source,
//! never from codes; block FP8 reads the 128x128 tiles of its weight in both directions, so its turned copy has the same
//! codes.
//!
//! **Grouping of tokens.** In the quantized mode the blocks along tokens are runs of 32 (MXFP8) or 128 (block FP8)
//! consecutive rows, counted from the first row that the layer sees in the micro-batch: all packed rows for a dense
//! layer, the rows dispatched to an expert for that expert. A last block that is cut short counts as padded with zeros,
//! which changes no code of a real row. So in this mode, and only in this mode, the weight gradient depends on how a
//! batch is cut into micro-batches; it is still a function of that cut alone.
//!
//! Each dW element is one chain of fused multiply-adds over tokens in order that goes on from the value in the gradient
//! buffer, so that in the other modes the cut does not change a bit. Block FP8 chains within 128 tokens and adds a whole
//! micro-batch's sum to the buffer.

use std::borrow::Cow;

use miles_core::format::{Axis, FormatId, QuantizeSpec, QuantizedTensor, Source, SourceDtype};
use miles_core::number::bf16;
use miles_core::plugin::ActivationDtype;
use miles_core::policy::PolicyTensor;
use miles_core::precision::BackwardMode;
use miles_core::tensor::Dtype;
use miles_core::{Error, Result};

use super::activation::{only, source_dtype};
use super::residual::accumulate;
use super::rounding::{round_to, round_to_bf16};
use super::weights::{FP8_TILE_ROWS, has_eight_bit_kernel};
use super::{Activation, BACKEND, Context};
use crate::kernel::backward::{input_gradient, weight_gradient};
use crate::kernel::linear::{Activations, linear as product};
use crate::kernel::pack::PackedWeight;

/// The backward products of one weight `[out, in]`.
#[derive(Clone, Copy)]
pub struct LinearBackward<'a> {
    /// Where products run.
    pub context: &'a Context,
    /// Activation type.
    pub activations: ActivationDtype,
    /// Operands.
    pub mode: BackwardMode,
    /// The weight as the forward pass multiplied it.
    pub tensor: &'a PolicyTensor,
    /// The master weight `[out, in]`.
    pub master: MasterValues<'a>,
}

/// Master values in the number type that they are kept in.
#[derive(Clone, Copy, Debug)]
pub enum MasterValues<'a> {
    /// F32.
    F32(&'a [f32]),
    /// BF16 bits.
    Bf16(&'a [u16]),
}

impl MasterValues<'_> {
    /// The BF16 bits that a version is quantized from.
    fn bf16_bits(self) -> Vec<u16> {
        match self {
            MasterValues::F32(values) => values.iter().copied().map(bf16::encode).collect(),
            MasterValues::Bf16(bits) => bits.to_vec(),
        }
    }
}

impl<'a> LinearBackward<'a> {
    /// `dX[rows, in] = dY[rows, out] W`, rounded to the activation type.
    ///
    /// # Errors
    /// Whatever the quantizer reports.
    pub fn input_gradient(&self, dy: &[f32], rows: usize) -> Result<Vec<f32>> {
        let (outputs, inputs) = self.shape();
        let mut dx = vec![0.0; rows * inputs];
        match self.quantized_format() {
            Some(format) => self.quantized_input_gradient(format, dy, rows, &mut dx)?,
            None => {
                let (compute, shape) = (self.context.compute(), [rows, outputs, inputs]);
                match self.weight_operand()? {
                    WeightOperand::Bf16(bits) => input_gradient(compute, dy, &bits, shape, &mut dx),
                    WeightOperand::F32(values) => input_gradient(compute, dy, &values, shape, &mut dx),
                }
            }
        }
        round_to(self.activations, self.context.compute(), &mut dx);
        Ok(dx)
    }

    /// `gradient[out, in] += dY[rows, out]^T X[rows, in]`; `x` holds these rows of [`LinearBackward::activation_operand`].
    ///
    /// # Errors
    /// Whatever the quantizer reports.
    pub fn add_weight_gradient(&self, dy: &[f32], x: &[f32], rows: usize, gradient: &mut [f32]) -> Result<()> {
        let (outputs, inputs) = self.shape();
        let compute = self.context.compute();
        let Some(format) = self.quantized_format() else {
            weight_gradient(compute, dy, x, [rows, outputs, inputs], gradient);
            return Ok(());
        };
        if rows == 0 {
            return Ok(());
        }
        let spec = QuantizeSpec::activation(format.clone()).with_axis(Axis::Column);
        let dy = self.quantize(dy, rows, outputs, &spec)?;
        let x = self.quantize(x, rows, inputs, &spec)?;
        match (dy.scales().as_f32(), x.scales().as_f32()) {
            (Some(dy_scales), Some(x_scales)) => {
                let packed = PackedWeight::from_fp8_block(compute, x.codes(), x_scales, 1, inputs, rows);
                let dy = Activations::Fp8Block { codes: dy.codes(), scales: dy_scales };
                let mut sum = vec![0.0; gradient.len()];
                product(compute, dy, outputs, &packed, &mut sum);
                accumulate(gradient, &sum);
            }
            _ => {
                let quantizer = self.context.quantizer();
                let (dy, x) = (quantizer.dequantize(&dy)?, quantizer.dequantize(&x)?);
                weight_gradient(compute, &dy, &x, [rows, outputs, inputs], gradient);
            }
        }
        Ok(())
    }

    /// X as the weight-gradient product multiplies it: the activation's own values, or in the dequantized mode those
    /// that the forward pass multiplied, rounded to BF16.
    ///
    /// # Errors
    /// Whatever the quantizer reports.
    pub fn activation_operand<'x>(&self, x: &'x Activation) -> Result<Cow<'x, [f32]>> {
        let Some(format) = self.dequantized_format() else { return Ok(Cow::Borrowed(x.values())) };
        let mut values = x.quantized(self.context, self.activations, format)?.dequantize(self.context)?;
        round_to_bf16(self.context.compute(), &mut values);
        Ok(Cow::Owned(values))
    }

    /// The format that [`LinearBackward::activation_operand`] goes through, if any.
    #[must_use]
    pub fn dequantized_format(&self) -> Option<&'a FormatId> {
        match (self.tensor, self.mode) {
            (PolicyTensor::Quantized(quantized), BackwardMode::Dequantized) => Some(quantized.format()),
            _ => None,
        }
    }

    fn quantized_input_gradient(&self, format: &FormatId, dy: &[f32], rows: usize, dx: &mut [f32]) -> Result<()> {
        let (outputs, inputs) = self.shape();
        let compute = self.context.compute();
        let dy = self.quantize(dy, rows, outputs, &QuantizeSpec::activation(format.clone()))?;
        let spec = QuantizeSpec::weight(format.clone()).with_axis(Axis::Column);
        let weight = quantize(self.context, &self.rounded_master(), outputs, inputs, SourceDtype::Bf16, &spec)?;
        match (dy.scales().as_f32(), weight.scales().as_f32()) {
            (Some(scales), Some(weight_scales)) => {
                let codes = weight.codes();
                let packed =
                    PackedWeight::from_fp8_block(compute, codes, weight_scales, FP8_TILE_ROWS, inputs, outputs);
                product(compute, Activations::Fp8Block { codes: dy.codes(), scales }, rows, &packed, dx);
            }
            _ => {
                let quantizer = self.context.quantizer();
                let (dy, weight) = (quantizer.dequantize(&dy)?, quantizer.dequantize(&weight)?);
                input_gradient(compute, &dy, &weight, [rows, outputs, inputs], dx);
            }
        }
        Ok(())
    }

    /// W `[out, in]` as the high-precision and dequantized modes multiply it.
    fn weight_operand(&self) -> Result<WeightOperand> {
        Ok(match (self.tensor, self.mode) {
            (PolicyTensor::Dense(dense), _) if dense.dtype() == Dtype::Bf16 => {
                let bits = dense.bytes().as_chunks::<2>().0.iter();
                WeightOperand::Bf16(bits.map(|bytes| u16::from_le_bytes(*bytes)).collect())
            }
            (PolicyTensor::Dense(dense), _) => WeightOperand::F32(dense.to_f32()),
            (PolicyTensor::Quantized(quantized), BackwardMode::Dequantized) => {
                let values = self.context.quantizer().dequantize(quantized)?;
                WeightOperand::Bf16(values.into_iter().map(bf16::encode).collect())
            }
            (PolicyTensor::Quantized(_), BackwardMode::HighPrecision | BackwardMode::Quantized) => {
                WeightOperand::Bf16(self.master.bf16_bits())
            }
        })
    }

    /// The source that the forward pass quantized, made again from the master.
    fn rounded_master(&self) -> Vec<f32> {
        match self.master {
            MasterValues::F32(values) => {
                let mut values = values.to_vec();
                round_to_bf16(self.context.compute(), &mut values);
                values
            }
            MasterValues::Bf16(bits) => bits.iter().copied().map(bf16::decode).collect(),
        }
    }

    /// The format of the backward operands, where they are quantized.
    fn quantized_format(&self) -> Option<&'a FormatId> {
        match (self.tensor, self.mode) {
            (PolicyTensor::Quantized(quantized), BackwardMode::Quantized) => Some(quantized.format()),
            _ => None,
        }
    }

    fn quantize(&self, values: &[f32], rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<QuantizedTensor> {
        quantize(self.context, values, rows, cols, source_dtype(self.activations), spec)
    }

    fn shape(&self) -> (usize, usize) {
        match self.tensor {
            PolicyTensor::Quantized(quantized) => (quantized.rows(), quantized.cols()),
            PolicyTensor::Dense(dense) => match dense.shape() {
                [rows, cols] => (*rows, *cols),
                other => (1, other.iter().product()),
            },
        }
    }
}

/// A weight in the precision that a backward product reads it in.
enum WeightOperand {
    Bf16(Vec<u16>),
    F32(Vec<f32>),
}

/// Refuses a backward mode that this backend has no products for.
///
/// # Errors
/// `Unsupported` for the quantized mode of a format other than MXFP8, block FP8 and their variants.
pub fn check_backward_mode(format: &FormatId, mode: BackwardMode) -> Result<()> {
    if mode != BackwardMode::Quantized || has_eight_bit_kernel(format) {
        return Ok(());
    }
    Err(Error::Unsupported {
        operation: format!("the quantized backward of {format}"),
        backend: BACKEND.to_owned(),
        why: "only mxfp8, fp8-block and their variants have one; use high-precision or dequantized".to_owned(),
    })
}

fn quantize(
    context: &Context,
    values: &[f32],
    rows: usize,
    cols: usize,
    dtype: SourceDtype,
    spec: &QuantizeSpec,
) -> Result<QuantizedTensor> {
    let source = Source::new(values, rows, cols, dtype, Some("backward operand"))?;
    only(context.quantizer().quantize(&[source], spec)?)
}
