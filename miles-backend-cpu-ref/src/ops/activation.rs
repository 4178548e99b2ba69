//! Activations `[rows, cols]`, one row per token, and their quantized copies.

use std::sync::{Arc, Mutex, PoisonError};

use miles_core::Result;
use miles_core::format::nvfp4::activation_format;
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source, SourceDtype};
use miles_core::plugin::ActivationDtype;

use super::Context;
use super::error::same_size;

/// Activations `[rows, cols]` as f32 (BF16 values in a BF16 run), row-major.
///
/// Quantized copies are made when the first linear layer asks for them and kept, so that layers that read the same
/// activation (q, k and v; gate and up) share one copy.
#[derive(Debug)]
pub struct Activation {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    quantized: Mutex<Vec<(FormatId, Arc<QuantizedRows>)>>,
}

impl Activation {
    /// Wraps row-major values.
    ///
    /// # Panics
    /// When there are not `rows * cols` values.
    #[must_use]
    pub fn new(rows: usize, cols: usize, values: Vec<f32>) -> Self {
        assert_eq!(values.len(), rows * cols, "activation values do not fill [{rows}, {cols}]");
        Activation { rows, cols, values, quantized: Mutex::default() }
    }

    /// Rows (tokens).
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns (features).
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The values, row-major.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One row.
    ///
    /// # Panics
    /// When `row` is not below [`Activation::rows`].
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// Takes the values out.
    #[must_use]
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// The copy in `format`, each row quantized by itself; made at most once.
    ///
    /// # Errors
    /// Whatever the quantizer reports.
    pub fn quantized(
        &self,
        context: &Context,
        dtype: ActivationDtype,
        format: &FormatId,
    ) -> Result<Arc<QuantizedRows>> {
        let mut copies = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copy)) = copies.iter().find(|(known, _)| known == format) {
            return Ok(Arc::clone(copy));
        }
        let copy = Arc::new(QuantizedRows::new(context, &self.values, self.rows, self.cols, dtype, format)?);
        copies.push((format.clone(), Arc::clone(&copy)));
        Ok(copy)
    }

    /// The quantized copies that were made so far.
    pub(crate) fn copies(&self) -> Vec<Arc<QuantizedRows>> {
        let copies = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        copies.iter().map(|(_, copy)| Arc::clone(copy)).collect()
    }
}

/// A row-wise quantized copy of an activation.
#[derive(Debug)]
pub struct QuantizedRows {
    pub(crate) tensor: QuantizedTensor,
}

impl QuantizedRows {
    /// Quantizes rows `[rows, cols]` as the activation operand beside a weight of `format`.
    ///
    /// # Errors
    /// Whatever the quantizer reports.
    pub fn new(
        context: &Context,
        values: &[f32],
        rows: usize,
        cols: usize,
        dtype: ActivationDtype,
        format: &FormatId,
    ) -> Result<Self> {
        let source = Source::new(values, rows, cols, source_dtype(dtype), Some("activation"))?;
        let spec = QuantizeSpec::activation(activation_format(format));
        let made = context.quantizer().quantize(&[source], &spec)?;
        Ok(QuantizedRows { tensor: only(made)? })
    }

    /// The values that codes and scales stand for, `[rows, cols]`, in the format's decode order.
    ///
    /// # Errors
    /// Whatever the quantizer reports.
    pub fn dequantize(&self, context: &Context) -> Result<Vec<f32>> {
        context.quantizer().dequantize(&self.tensor)
    }
}

/// The precision that activations are held in before they are quantized.
pub(crate) fn source_dtype(dtype: ActivationDtype) -> SourceDtype {
    match dtype {
        ActivationDtype::Bf16 => SourceDtype::Bf16,
        ActivationDtype::F32 => SourceDtype::F32,
    }
}

/// The one result of quantizing one source.
pub(crate) fn only(mut made: Vec<QuantizedTensor>) -> Result<QuantizedTensor> {
    same_size("quantize", "number of results", 1, made.len())?;
    Ok(made.swap_remove(0))
}
