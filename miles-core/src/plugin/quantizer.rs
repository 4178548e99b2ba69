//! Turning high-precision tensors into codes and scales on a device.

use super::Support;
use crate::Result;
use crate::format::{FormatId, QuantizeCounts, QuantizeSpec, QuantizedTensor, Source, builtin_rule};

/// Quantizes tensors. Every implementation gives the bytes of the format's rule, to the bit.
pub trait Quantizer: Send + Sync {
    /// Name and version, written into every ledger event (for example `cpu-ref/0.1.0`).
    fn id(&self) -> &str;

    /// Whether and how a format is quantized here.
    fn support(&self, format: &FormatId) -> Support;

    /// Quantizes `sources` together: they share one outer scale where the format has a tensor-wide one. One result
    /// per source, in order.
    ///
    /// # Errors
    /// `Unsupported` for a format this quantizer does not do; a format error that names tensor, row and block for
    /// values or shapes that do not fit.
    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>>;

    /// How many calls of [`quantize`](Self::quantize) at once are worth making. One, unless overridden.
    fn concurrency(&self) -> usize {
        1
    }

    /// The values `[rows, cols]` that the codes and scales stand for, in the format's decode order, as F32.
    ///
    /// # Errors
    /// `Unsupported` for a format this quantizer does not do.
    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>>;

    /// Most memory, in bytes, that quantizing a source of `elements` by `spec` takes beside the source and the result. It
    /// is counted against budgets and changes nothing else. Unless overridden: two copies in F32.
    fn scratch_bytes(&self, _spec: &QuantizeSpec, elements: usize) -> u64 {
        8 * elements as u64
    }

    /// What quantizing `source` to `tensor` could not keep; `None` where that is not known. Every built-in format is
    /// counted unless this method is overridden.
    ///
    /// # Errors
    /// A format error when the two do not belong together.
    fn count(&self, source: &Source<'_>, tensor: &QuantizedTensor) -> Result<Option<QuantizeCounts>> {
        Ok(builtin_rule(tensor.format()).map(|rule| QuantizeCounts::of(rule, source, tensor)).transpose()?)
    }
}
