//! A quantizer with one defect, around a good one.
//!
//! Defects of the arithmetic itself are those of [`broken`](crate::conformance::broken).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::defects;
use crate::format::{
    FormatError, FormatId, QuantizeCounts, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleScope, Source,
    SourceValues, builtin_rule,
};
use crate::plugin::{Quantizer, Support};
use crate::{Error, Result};

defects! {
    /// What is wrong with a quantizer.
    QuantizerDefect {
        /// A matrix that is cut has the outer scale of the whole in every shard.
        IgnoresTheCut => "partition/nvfp4",
        /// Tensors of a group have outer scales of their own.
        IgnoresGroups => "scopes/nvfp4",
        /// Of the tensors that are quantized together the third and later ones share nothing.
        PairsOnly => "joint/nvfp4",
        /// Sources without a name are refused.
        NeedsNames => "names/mxfp8",
        /// Calls share a buffer.
        SharesABuffer => "threads/mxfp8",
        /// Lines are quantized up to their 2048th element.
        ShortLines => "large/mxfp8",
        /// BF16 that is read in place is read with its bytes swapped.
        SwapsStoredBytes => "shapes/mxfp8",
        /// Decoded values that are subnormal are 0.
        FlushesDecoded => "extremes/mxfp8",
        /// Decoded values end at 1e30.
        CapsDecoded => "extremes/fp8-block",
        /// The NaN code decodes to the largest value.
        DecodesNanAsLargest => "extremes/fp8-channel",
        /// Saturated elements are not counted.
        CountsNoSaturation => "counts/mxfp8/ocp-floor",
    }
}

/// A quantizer with one defect.
pub struct BrokenQuantizer {
    inner: Arc<dyn Quantizer>,
    defect: QuantizerDefect,
    running: AtomicUsize,
}

impl BrokenQuantizer {
    /// A good quantizer, broken.
    #[must_use]
    pub fn new(inner: Arc<dyn Quantizer>, defect: QuantizerDefect) -> Self {
        BrokenQuantizer { inner, defect, running: AtomicUsize::new(0) }
    }

    fn cut(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let honest = self.inner.quantize(sources, spec)?;
        let whole = self.inner.quantize(sources, &spec.clone().with_partition(crate::format::Partition::WHOLE))?;
        let relabelled = honest.iter().zip(whole).map(|(honest, whole)| {
            let parts = whole.to_parts();
            let repeated = |values: &[f32]| match values {
                [one] => vec![*one; honest.outer().len()],
                _ => values.to_vec(),
            };
            let (outer, amax) = (repeated(&parts.outer), repeated(&parts.amax));
            rebuilt(honest, QuantizedParts { partition: spec.partition, outer, amax, ..parts })
        });
        relabelled.collect()
    }

    /// Another call at the same time leaves its codes behind.
    fn shared(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        self.running.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(Duration::from_millis(1));
        let made = self.inner.quantize(sources, spec);
        match (self.running.fetch_sub(1, Ordering::AcqRel), made) {
            (1, made) => made,
            (_, made) => made?.iter().map(|tensor| with_codes(tensor, |_, code| code ^ 1)).collect(),
        }
    }

    fn short(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let made = self.inner.quantize(sources, spec)?.into_iter();
        made.map(|tensor| match tensor.cols() > 2048 && tensor.codes().len() == tensor.rows() * tensor.cols() {
            true => with_codes(&tensor, |index, code| if index % tensor.cols() < 2048 { code } else { 0 }),
            false => Ok(tensor),
        })
        .collect()
    }

    fn swapped(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let read = |source: &Source<'_>| match source.storage() {
            SourceValues::F32(_) => None,
            SourceValues::Bf16(values) => Some(values.iter().map(|&[low, high]| [high, low]).collect::<Vec<_>>()),
        };
        let held: Vec<Option<Vec<[u8; 2]>>> = sources.iter().map(read).collect();
        let swap = |(source, bytes): (&Source<'_>, &'_ Option<Vec<[u8; 2]>>)| -> Result<Vec<QuantizedTensor>> {
            let (rows, cols) = (source.rows(), source.cols());
            match bytes {
                Some(bytes) => {
                    let spec = spec.clone().with_non_finite(crate::format::NonFinite::Hardware);
                    self.inner.quantize(&[Source::bf16(bytes, rows, cols, source.name())?], &spec)
                }
                None => self.inner.quantize(&[*source], spec),
            }
        };
        match held.iter().any(Option::is_some) {
            true => Ok(sources.iter().zip(&held).map(swap).collect::<Result<Vec<_>>>()?.concat()),
            false => self.inner.quantize(sources, spec),
        }
    }

    fn apart(&self, sources: &[Source<'_>], spec: &QuantizeSpec, together: usize) -> Result<Vec<QuantizedTensor>> {
        let (first, others) = sources.split_at(sources.len().min(together));
        let mut made = self.inner.quantize(first, spec)?;
        for other in others {
            made.extend(self.inner.quantize(std::slice::from_ref(other), spec)?);
        }
        Ok(made)
    }
}

/// The same tensor with other codes.
fn with_codes(tensor: &QuantizedTensor, code: impl Fn(usize, u8) -> u8) -> Result<QuantizedTensor> {
    let mut parts = tensor.to_parts();
    parts.codes.iter_mut().enumerate().for_each(|(index, byte)| *byte = code(index, *byte));
    rebuilt(tensor, parts)
}

fn rebuilt(tensor: &QuantizedTensor, parts: QuantizedParts) -> Result<QuantizedTensor> {
    match builtin_rule(tensor.format()) {
        Some(rule) => Ok(QuantizedTensor::from_parts(rule, None, parts)?),
        None => Ok(tensor.clone()),
    }
}

#[deny(clippy::missing_trait_methods)]
impl Quantizer for BrokenQuantizer {
    fn id(&self) -> &str {
        "broken"
    }

    fn support(&self, format: &FormatId) -> Support {
        self.inner.support(format)
    }

    fn concurrency(&self) -> usize {
        self.inner.concurrency()
    }

    fn scratch_bytes(&self, spec: &QuantizeSpec, elements: usize) -> u64 {
        self.inner.scratch_bytes(spec, elements)
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        match self.defect {
            QuantizerDefect::IgnoresTheCut if spec.partition.shards_here() > 1 => self.cut(sources, spec),
            QuantizerDefect::IgnoresGroups if spec.scope == ScaleScope::Group => self.apart(sources, spec, 1),
            QuantizerDefect::PairsOnly => self.apart(sources, spec, 2),
            QuantizerDefect::NeedsNames if sources.iter().any(|source| source.name().is_none()) => {
                Err(Error::Format(FormatError::UnknownFormat { format: spec.format.clone(), known: Vec::new() }))
            }
            QuantizerDefect::SharesABuffer => self.shared(sources, spec),
            QuantizerDefect::ShortLines => self.short(sources, spec),
            QuantizerDefect::SwapsStoredBytes => self.swapped(sources, spec),
            _ => self.inner.quantize(sources, spec),
        }
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        let mut values = self.inner.dequantize(tensor)?;
        for value in &mut values {
            *value = match self.defect {
                QuantizerDefect::FlushesDecoded if value.is_subnormal() => 0.0_f32.copysign(*value),
                QuantizerDefect::CapsDecoded => value.clamp(-1e30, 1e30),
                QuantizerDefect::DecodesNanAsLargest if value.is_nan() => 448.0,
                _ => *value,
            };
        }
        Ok(values)
    }

    fn count(&self, source: &Source<'_>, tensor: &QuantizedTensor) -> Result<Option<QuantizeCounts>> {
        let counts = self.inner.count(source, tensor)?;
        Ok(counts.map(|counts| match self.defect {
            QuantizerDefect::CountsNoSaturation => QuantizeCounts { saturated: 0, ..counts },
            _ => counts,
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::conformance::fixture::RuleQuantizer;
    use crate::conformance::{Outcome, quantizer_group};

    #[test]
    fn every_broken_quantizer_is_caught_by_the_case_of_its_defect() {
        for &defect in QuantizerDefect::ALL {
            let case = defect.caught_by();
            let sound = quantizer_group(&RuleQuantizer::new(), case);
            assert_eq!(sound.outcome(case), Some(&Outcome::Passed), "{sound}");
            let report = quantizer_group(&BrokenQuantizer::new(Arc::new(RuleQuantizer::new()), defect), case);
            let Some(Outcome::Failed { why }) = report.outcome(case) else { panic!("{defect:?}\n{report}") };
            assert!(!why.contains("panicked"), "{defect:?}: {why}");
        }
    }
}
