//! A format rule with one defect, around a good one.

use super::defects;
use crate::format::{
    CodeDependence, FormatError, FormatId, FormatRule, Partition, QuantizeSpec, QuantizedParts, QuantizedTensor,
    Source, SourceDtype, TensorLayout,
};

defects! {
    /// What is wrong with a format rule.
    FormatDefect {
        /// Claims the name of a built-in format and has other bytes.
        ClaimsABuiltInName => "declared/name",
        /// Says that the largest code is a smaller one.
        LiesAboutTheLargestCode => "declared/largest_code",
        /// Says that the largest code is one that decodes to NaN.
        LargestCodeIsNan => "declared/largest_code",
        /// Lines are quantized up to their 600th element.
        ShortLines => "blocks/weight-row-tensor",
        /// The same values have other codes when they come as BF16.
        ReadsBf16Otherwise => "bf16/weight-row-tensor",
        /// Magnitudes above 2^120 are 2^120.
        CapsLargeValues => "finite/weight-row-tensor",
        /// Magnitudes below 1e-30 are 0.
        FlushesSmallValues => "error_bound/weight-row-tensor",
        /// Of the tensors that are quantized together the third and later ones share nothing.
        PairsOnly => "joint/weight-row-tensor",
        /// Of two tensors that are quantized together only the first one decides the outer scale.
        FirstDecides => "joint/weight-row-tensor",
        /// A matrix that is cut has the outer scale of the whole in every shard.
        IgnoresTheCut => "partition/weight-row-tensor",
        /// Shards may be cut through a block.
        CutsThroughBlocks => "partition/weight-row-tensor",
    }
}

/// A format rule with one defect. The suite is shown to catch each in the rule of `nvfp4` or `mxfp8`.
pub struct BrokenFormat<'a> {
    inner: &'a dyn FormatRule,
    defect: FormatDefect,
}

impl<'a> BrokenFormat<'a> {
    /// A good rule, broken.
    #[must_use]
    pub fn new(inner: &'a dyn FormatRule, defect: FormatDefect) -> Self {
        BrokenFormat { inner, defect }
    }

    /// The values that are quantized in place of the source's.
    fn values(&self, source: &Source<'_>) -> Vec<f32> {
        let cols = source.cols();
        let limit = libm::ldexpf(1.0, 120);
        let changed = |(index, &x): (usize, &f32)| match self.defect {
            FormatDefect::ShortLines if index % cols >= 600 => 0.0,
            FormatDefect::CapsLargeValues if x.is_finite() => x.clamp(-limit, limit),
            FormatDefect::FlushesSmallValues if x.abs() < 1e-30 => 0.0,
            _ => x,
        };
        source.values().iter().enumerate().map(changed).collect()
    }

    /// The codes and scales of `made` in the frame that the layout of `spec` has.
    fn framed(&self, made: &QuantizedTensor, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let mut parts = made.to_parts();
        let outer_len = self.layout(made.rows(), made.cols(), spec)?.outer_len;
        if let ([outer], [amax]) = (parts.outer.as_slice(), parts.amax.as_slice()) {
            (parts.outer, parts.amax) = (vec![*outer; outer_len], vec![*amax; outer_len]);
        }
        QuantizedTensor::from_parts(self, None, QuantizedParts { partition: spec.partition, ..parts })
    }

    fn apart(
        &self,
        sources: &[Source<'_>],
        spec: &QuantizeSpec,
        together: usize,
    ) -> Result<Vec<QuantizedTensor>, FormatError> {
        let (first, others) = sources.split_at(sources.len().min(together));
        let mut made = self.inner.quantize_joint(first, spec)?;
        for other in others {
            made.extend(self.inner.quantize_joint(std::slice::from_ref(other), spec)?);
        }
        Ok(made)
    }
}

fn without_cut(spec: &QuantizeSpec) -> QuantizeSpec {
    spec.clone().with_partition(Partition::WHOLE)
}

#[deny(clippy::missing_trait_methods)]
impl FormatRule for BrokenFormat<'_> {
    fn id(&self) -> FormatId {
        self.inner.id()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        match (self.inner.layout(rows, cols, spec), self.defect) {
            (Err(FormatError::UnevenShards { .. }), FormatDefect::CutsThroughBlocks) => {
                spec.partition.check(&spec.format, (rows, cols), (1, 1))?;
                self.inner.layout(rows, cols, &without_cut(spec))
            }
            (layout, _) => layout,
        }
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let values = self.values(source);
        let changed = Source::new(&values, source.rows(), source.cols(), source.dtype(), source.name())?;
        let source = match self.defect {
            FormatDefect::ShortLines | FormatDefect::CapsLargeValues | FormatDefect::FlushesSmallValues => &changed,
            _ => source,
        };
        match self.defect {
            FormatDefect::ClaimsABuiltInName => with_codes(self, &self.inner.quantize(source, spec)?),
            FormatDefect::ReadsBf16Otherwise if source.dtype() == SourceDtype::Bf16 => {
                with_codes(self, &self.inner.quantize(source, spec)?)
            }
            FormatDefect::IgnoresTheCut if spec.partition.shards_here() > 1 => {
                self.inner.layout(source.rows(), source.cols(), spec)?;
                self.framed(&self.inner.quantize(source, &without_cut(spec))?, spec)
            }
            FormatDefect::CutsThroughBlocks if !spec.partition.is_whole() => {
                self.layout(source.rows(), source.cols(), spec)?;
                match self.inner.quantize(source, spec) {
                    Err(FormatError::UnevenShards { .. }) => {
                        self.framed(&self.inner.quantize(source, &without_cut(spec))?, spec)
                    }
                    made => made,
                }
            }
            _ => self.inner.quantize(source, spec),
        }
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        match (self.defect, sources) {
            (_, [one]) => Ok(vec![self.quantize(one, spec)?]),
            (FormatDefect::PairsOnly, _) => self.apart(sources, spec, 2),
            (FormatDefect::FirstDecides, [first, others @ ..]) => {
                let amax = first.values().iter().fold(0.0_f32, |amax, x| amax.max(x.abs()));
                let mut made = self.inner.quantize_joint(std::slice::from_ref(first), spec)?;
                for other in others {
                    // What is beyond the first one's range saturates.
                    let values: Vec<f32> = other.values().iter().map(|x| x.clamp(-amax, amax)).collect();
                    let other = Source::new(&values, other.rows(), other.cols(), SourceDtype::F32, other.name())?;
                    made.extend(self.inner.quantize_joint(&[*first, other], spec)?.into_iter().skip(1));
                }
                Ok(made)
            }
            _ => self.inner.quantize_joint(sources, spec),
        }
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        self.inner.dequantize(tensor)
    }

    fn largest_code(&self) -> Option<u8> {
        match self.defect {
            FormatDefect::LiesAboutTheLargestCode => Some(0x33),
            FormatDefect::LargestCodeIsNan => Some(0x7F),
            _ => self.inner.largest_code(),
        }
    }

    fn code_dependence(&self) -> CodeDependence {
        self.inner.code_dependence()
    }
}

/// The same tensor with one bit of every code changed.
fn with_codes(rule: &dyn FormatRule, tensor: &QuantizedTensor) -> Result<QuantizedTensor, FormatError> {
    let mut parts = tensor.to_parts();
    parts.codes.iter_mut().for_each(|code| *code ^= 1);
    QuantizedTensor::from_parts(rule, None, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Outcome, format_group};
    use crate::format::{Mxfp8, Nvfp4};

    #[test]
    fn every_broken_format_is_caught_by_the_case_of_its_defect() {
        for &defect in FormatDefect::ALL {
            let inner: &dyn FormatRule = match defect {
                FormatDefect::PairsOnly | FormatDefect::FirstDecides | FormatDefect::IgnoresTheCut => &Nvfp4::DEFAULT,
                _ => &Mxfp8::DEFAULT,
            };
            let case = defect.caught_by();
            let sound = format_group(inner, case);
            assert_eq!(sound.outcome(case), Some(&Outcome::Passed), "{sound}");
            let report = format_group(&BrokenFormat::new(inner, defect), case);
            let Some(Outcome::Failed { why }) = report.outcome(case) else { panic!("{defect:?}\n{report}") };
            assert!(!why.contains("panicked"), "{defect:?}: {why}");
        }
    }
}
