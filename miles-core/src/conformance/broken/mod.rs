//! Quantizers with exactly one defect each, to test tests: each writes real wrong bytes and is caught by a known case.
//!
//! [`Broken`] is a second implementation of the four formats `nvfp4`, `mxfp8`, `fp8-block` and `fp8-block/power-of-two`,
//! slow and straight from their definitions, that shares no arithmetic with the rules. [`Broken::sound`] passes the
//! whole suite; [`Broken::with`] has one [`Defect`]. The defect of the hand-off, quantizing the F32 master instead of
//! its BF16 rounding, is no property of a quantizer: [`publish_masters`] has it.
//!
//! ```
//! use miles_core::conformance::{broken::{Broken, Defect}, quantizer_group};
//!
//! let report = quantizer_group(&Broken::with(Defect::SwappedNibbles), "golden_bytes");
//! assert!(report.failed().any(|case| case.name == Defect::SwappedNibbles.caught_by()));
//! ```

mod masters;
mod steps;
mod walk;

pub use masters::{PUBLISH_MASTERS_CAUGHT_BY, publish_masters};

use std::sync::{Mutex, PoisonError};

use crate::format::{
    FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedTensor, ScaleKind, Source, TensorLayout, builtin_rule,
};
use crate::plugin::{Quantizer, Support};
use crate::{Error, Result};

/// What is wrong with a [`Broken`] quantizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// The middle of two codes goes to the smaller magnitude instead of the even code. Caught by `ties/mxfp8`.
    RoundHalfDown,
    /// A loop over whole blocks leaves the codes of a last block that is cut short at 0. Caught by `shapes/nvfp4`.
    TruncatedTail,
    /// The even element is in the high nibble. Caught by `golden_bytes/nvfp4`.
    SwappedNibbles,
    /// A block's maximum is taken over two neighbouring rows. Caught by `neighbours/mxfp8`.
    NeighbourScale,
    /// Division by a maximum is multiplication by its rounded reciprocal. Caught by `division/fp8-block`.
    ReciprocalForDivision,
    /// A block of zeros has a NaN scale, as 0/0 gives it. Caught by `zeros/mxfp8`.
    NanScaleOnZeroBlock,
    /// Negative zeros, and negative values that round to zero, have the code of positive zero. Caught by
    /// `negative_zeros/nvfp4`.
    LostSignOfZero,
    /// The scale matrix is written in the order of its transpose. Caught by `shapes/fp8-block`.
    TransposedScales,
    /// The buffer that pads a last block keeps the values of earlier blocks. Caught by `repeat/mxfp8`.
    StalePadding,
    /// Subnormal operands and results are zero, as under `-ftz`. Caught by `subnormals/nvfp4`.
    FlushToZero,
    /// A scaled element is rounded to BF16 before it is rounded to its code. Caught by `ties/fp8-block`.
    DoubleRounding,
}

impl Defect {
    /// Every defect.
    pub const ALL: [Defect; 11] = [
        Defect::RoundHalfDown,
        Defect::TruncatedTail,
        Defect::SwappedNibbles,
        Defect::NeighbourScale,
        Defect::ReciprocalForDivision,
        Defect::NanScaleOnZeroBlock,
        Defect::LostSignOfZero,
        Defect::TransposedScales,
        Defect::StalePadding,
        Defect::FlushToZero,
        Defect::DoubleRounding,
    ];

    /// The case of the quantizer suite that is there for this defect.
    #[must_use]
    pub const fn caught_by(self) -> &'static str {
        match self {
            Defect::RoundHalfDown => "ties/mxfp8",
            Defect::TruncatedTail => "shapes/nvfp4",
            Defect::SwappedNibbles => "golden_bytes/nvfp4",
            Defect::NeighbourScale => "neighbours/mxfp8",
            Defect::ReciprocalForDivision => "division/fp8-block",
            Defect::NanScaleOnZeroBlock => "zeros/mxfp8",
            Defect::LostSignOfZero => "negative_zeros/nvfp4",
            Defect::TransposedScales => "shapes/fp8-block",
            Defect::StalePadding => "repeat/mxfp8",
            Defect::FlushToZero => "subnormals/nvfp4",
            Defect::DoubleRounding => "ties/fp8-block",
        }
    }
}

/// A slow quantizer of four formats, sound or with one defect.
#[derive(Debug)]
pub struct Broken {
    steps: steps::Steps,
    id: String,
    /// The block that values are padded in; cleared for every block unless the defect is that it is not.
    staging: Mutex<Vec<f32>>,
}

impl Broken {
    /// Without a defect: passes the quantizer suite.
    #[must_use]
    pub fn sound() -> Self {
        Broken { steps: steps::Steps { defect: None }, id: "broken/sound".to_owned(), staging: Mutex::default() }
    }

    /// With one defect.
    #[must_use]
    pub fn with(defect: Defect) -> Self {
        let steps = steps::Steps { defect: Some(defect) };
        Broken { steps, id: format!("broken/{defect:?}"), staging: Mutex::default() }
    }

    fn unsupported(&self, operation: &str, format: &FormatId) -> Error {
        Error::Unsupported {
            operation: format!("{operation} `{format}`"),
            backend: self.id.clone(),
            why: "it has the four default formats alone".to_owned(),
        }
    }

    /// The largest magnitude of each shard over all tensors, which have the layout that `spec` needs.
    fn shared_amax(sources: &[Source<'_>], spec: &QuantizeSpec) -> Vec<f32> {
        let mut shared: Vec<f32> = vec![0.0; spec.partition.shards_here()];
        for source in sources {
            let (rows, cols) = (source.rows(), source.cols());
            for (index, x) in source.values().iter().enumerate() {
                let amax = &mut shared[spec.partition.shard_of(index / cols, index % cols, rows, cols)];
                *amax = amax.max(x.abs());
            }
        }
        shared
    }

    fn quantize_one(&self, source: &Source<'_>, spec: &QuantizeSpec, shared_amax: &[f32]) -> Result<QuantizedTensor> {
        let Some(rule) = builtin_rule(&spec.format) else { return Err(self.unsupported("quantize to", &spec.format)) };
        let block = walk::Blocks::of(spec).length;
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            crate::format::Axis::Row => column / block,
            crate::format::Axis::Column => row / block,
        })?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = walk::quantize(&self.steps, source, spec, shared_amax, &mut staging);
        let lax = Lax(rule);
        let rule: &dyn FormatRule = if self.steps.has(Defect::NanScaleOnZeroBlock) { &lax } else { rule };
        Ok(QuantizedTensor::from_parts(rule, source.name(), parts)?)
    }
}

impl Quantizer for Broken {
    fn id(&self) -> &str {
        &self.id
    }

    fn support(&self, format: &FormatId) -> Support {
        if walk::FORMATS.contains(&format.as_str()) { Support::Native } else { Support::Unsupported }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        if self.support(&spec.format) == Support::Unsupported {
            return Err(self.unsupported("quantize to", &spec.format));
        }
        if let Some(first) = sources.first()
            && let Some(other) = sources.iter().find(|source| source.cols() != first.cols())
        {
            return Err(FormatError::JointWidth {
                tensor: other.tensor_name(),
                first: first.tensor_name(),
                expected: first.cols(),
                found: other.cols(),
            }
            .into());
        }
        let rule = builtin_rule(&spec.format).ok_or_else(|| self.unsupported("quantize to", &spec.format))?;
        for source in sources {
            rule.layout(source.rows(), source.cols(), spec)?;
        }
        let shared = Self::shared_amax(sources, spec);
        sources.iter().map(|source| self.quantize_one(source, spec, &shared)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        match (self.support(tensor.format()), builtin_rule(tensor.format())) {
            (Support::Unsupported, _) | (_, None) => Err(self.unsupported("dequantize", tensor.format())),
            (_, Some(rule)) => Ok(rule.dequantize(tensor)?),
        }
    }
}

/// A rule that claims the format of another one and lets NaN scale bytes pass.
struct Lax(&'static dyn FormatRule);

impl FormatRule for Lax {
    fn id(&self) -> FormatId {
        self.0.id()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let layout = self.0.layout(rows, cols, spec)?;
        match layout.scale_kind {
            ScaleKind::F32 => Ok(layout),
            _ => Ok(TensorLayout { scale_kind: ScaleKind::Byte, ..layout }),
        }
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        self.0.quantize(source, spec)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        self.0.quantize_joint(sources, spec)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        self.0.dequantize(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Outcome, quantizer, quantizer_group};

    #[test]
    fn without_a_defect_the_whole_suite_passes() {
        let report = quantizer(&Broken::sound());
        assert!(report.require().is_ok(), "{report}");
        assert!(report.passed() >= 4 * 17, "{report}");
    }

    #[test]
    fn each_defect_is_caught_by_the_case_in_its_documentation() {
        let page = include_str!("mod.rs");
        for defect in Defect::ALL {
            let case = defect.caught_by();
            assert!(page.contains(&format!("`{case}`.\n    {defect:?},")), "the documentation of {defect:?}");
            let group = case.split('/').next().unwrap_or_default();
            let report = quantizer_group(&Broken::with(defect), group);
            assert!(matches!(report.outcome(case), Some(Outcome::Failed { .. })), "{defect:?}\n{report}");
            let why = report.to_string();
            assert!(!why.contains("panicked") && !why.contains("refused"), "wrong bytes, no error: {why}");
        }
    }
}
