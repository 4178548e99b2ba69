//! The CPU quantizer: the format rules themselves, run on every core.
//!
//! The rules in `miles_core::format` *are* the reference, so there is no second arithmetic here. Where a built-in rule
//! treats bands of rows apart (`band_rows`), bands are quantized in parallel and joined; the bytes are those of
//! the whole. Registered formats and values passed to [`CpuQuantizer::with_rule`] go through their rule in one piece.

use std::sync::Arc;

use miles_core::format::nvfp4::Rounding;
use miles_core::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Nvfp4, Operand, QuantizeSpec, QuantizedParts,
    QuantizedTensor, ScaleScope, Source, builtin_rule, builtin_rules, fp8_block,
};
use miles_core::plugin::{Quantizer, Support};
use miles_core::{Error, Result, registry};
use rayon::prelude::*;

use crate::kernel::Compute;
use crate::ops::has_kernel;

/// Quantizes with the format rules of `miles-core`, the registered ones and those it is given.
#[derive(Clone)]
pub struct CpuQuantizer {
    compute: Compute,
    rules: Vec<Arc<dyn FormatRule>>,
}

impl CpuQuantizer {
    /// A quantizer of the built-in formats and of every registered one.
    ///
    /// # Errors
    /// If a format is registered twice or cannot be made without options.
    pub fn new(compute: Compute) -> Result<Self> {
        let registered = registry::format_names().into_iter();
        let make = |name| registry::format(name, &serde_json::Value::Null).map(Arc::from);
        Ok(CpuQuantizer { compute, rules: registered.map(make).collect::<Result<_>>()? })
    }

    /// The same with one more format, which goes before a registered one of the same name. A built-in name stays built in.
    #[must_use]
    pub fn with_rule(mut self, rule: Arc<dyn FormatRule>) -> Self {
        self.rules.insert(0, rule);
        self
    }

    /// Every format that this quantizer does.
    #[must_use]
    pub fn formats(&self) -> Vec<FormatId> {
        let mut formats: Vec<FormatId> = builtin_rules().map(FormatRule::id).collect();
        for rule in &self.rules {
            let id = rule.id();
            if !formats.contains(&id) {
                formats.push(id);
            }
        }
        formats
    }

    /// The rule of a format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that is neither built in nor known here.
    pub fn rule(&self, format: &FormatId, operation: &'static str) -> Result<&dyn FormatRule> {
        let own = || self.rules.iter().find(|rule| rule.id() == *format).map(AsRef::as_ref);
        builtin_rule(format).map(|rule| rule as &dyn FormatRule).or_else(own).ok_or_else(|| {
            let known: Vec<String> = self.formats().iter().map(FormatId::to_string).collect();
            Error::Unsupported {
                operation: format!("{operation} format `{format}`"),
                backend: self.id().to_owned(),
                why: format!("known formats are {}", known.join(", ")),
            }
        })
    }

    fn quantize_one(&self, rule: &dyn FormatRule, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor> {
        let whole = || Ok(rule.quantize(source, spec)?);
        let Some(band_rows) = band_rows(spec) else { return whole() };
        let rows_per_task = (BAND_ELEMENTS / source.cols().max(1)).next_multiple_of(band_rows).max(band_rows);
        if source.rows() <= rows_per_task || source.cols() == 0 || self.compute.threads() == 1 {
            return whole();
        }
        match self.quantize_bands(rule, source, spec, rows_per_task) {
            Ok(tensor) => Ok(tensor),
            // A band's error counts rows from the band's start; the whole tensor names the right one.
            Err(_) => whole(),
        }
    }

    fn quantize_bands(
        &self,
        rule: &dyn FormatRule,
        source: &Source<'_>,
        spec: &QuantizeSpec,
        rows_per_task: usize,
    ) -> Result<QuantizedTensor, FormatError> {
        let quantize_band = |band: usize| {
            let first = band * rows_per_task;
            rule.quantize(&source.row_range(first..source.rows().min(first + rows_per_task)), spec)
        };
        let bands = 0..source.rows().div_ceil(rows_per_task);
        let bands: Vec<QuantizedTensor> = self
            .compute
            .pool()
            .install(|| bands.into_par_iter().map(quantize_band).collect::<Result<_, FormatError>>())?;
        QuantizedTensor::from_parts(rule, source.name(), join(source, spec, &bands))
    }
}

impl Quantizer for CpuQuantizer {
    fn id(&self) -> &str {
        concat!("cpu-ref/", env!("CARGO_PKG_VERSION"))
    }

    fn support(&self, format: &FormatId) -> Support {
        match (builtin_rule(format), self.rules.iter().any(|rule| rule.id() == *format)) {
            (Some(_), _) if has_kernel(format) => Support::Native,
            (Some(_), _) | (None, true) => Support::Emulated,
            (None, false) => Support::Unsupported,
        }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let rule = self.rule(&spec.format, "quantize to")?;
        match sources {
            [source] => Ok(vec![self.quantize_one(rule, source, spec)?]),
            _ => Ok(rule.quantize_joint(sources, spec)?),
        }
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Ok(self.rule(tensor.format(), "dequantize")?.dequantize(tensor)?)
    }
}

impl std::fmt::Debug for CpuQuantizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuQuantizer").field("id", &self.id()).field("formats", &self.formats()).finish()
    }
}

/// How many rows a built-in rule treats as one piece, or `None` where the whole tensor is one.
fn band_rows(spec: &QuantizeSpec) -> Option<usize> {
    if spec.axis == Axis::Column {
        return None;
    }
    if let Some(rule) = Nvfp4::of(&spec.format) {
        // Random bits go by line number, which a band would count from its own start.
        let by_row = !matches!(rule.rounding(), Rounding::Stochastic { .. }) && spec.partition.is_whole();
        return (by_row && spec.scope == ScaleScope::Row).then_some(1);
    }
    match (spec.format.as_str(), spec.operand, spec.scope) {
        ("mxfp8", ..) => Some(1),
        ("fp8-block" | "fp8-block/power-of-two", Operand::Activation, _) => Some(1),
        ("fp8-block" | "fp8-block/power-of-two", Operand::Weight, _) => Some(fp8_block::BLOCK),
        _ => None,
    }
}

/// The parts of consecutive row bands, one after the other: every part is row-major on the row axis.
fn join(source: &Source<'_>, spec: &QuantizeSpec, bands: &[QuantizedTensor]) -> QuantizedParts {
    // `concat` allocates what it needs: these vectors live as long as the policy version.
    let bytes = |part: fn(&QuantizedTensor) -> &[u8]| bands.iter().map(part).collect::<Vec<_>>().concat();
    let floats = |part: fn(&QuantizedTensor) -> &[f32]| bands.iter().map(part).collect::<Vec<_>>().concat();
    let scales = match bands.first().map(QuantizedTensor::scales) {
        Some(BlockScales::F32(_)) => BlockScales::F32(floats(|band| band.scales().as_f32().unwrap_or_default())),
        _ => BlockScales::U8(bytes(|band| band.scales().as_u8().unwrap_or_default())),
    };
    QuantizedParts {
        outer: floats(QuantizedTensor::outer),
        amax: floats(QuantizedTensor::amax),
        ..QuantizedParts::new(source, spec, bytes(QuantizedTensor::codes), scales)
    }
}

/// Elements worth a task of their own.
const BAND_ELEMENTS: usize = 64 * 1024;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroUsize;

    use miles_core::format::{NonFinite, SourceDtype, TensorLayout};
    use miles_core::random::{Coordinates, Stream, normal};

    use super::*;

    fn quantizer(threads: usize) -> CpuQuantizer {
        CpuQuantizer::new(Compute::new(NonZeroUsize::new(threads).unwrap()).unwrap()).unwrap()
    }

    fn values(rows: usize, cols: usize) -> Vec<f32> {
        let draw = |index| normal(5, Stream::Data, Coordinates { prompt: index as u64, ..Coordinates::default() });
        (0..rows * cols).map(|index| draw(index) as f32).collect()
    }

    fn specs() -> Vec<QuantizeSpec> {
        let variants = ["nvfp4/four-over-six-mae-256", "nvfp4/stochastic", "nvfp4/te-2.13/python-reference"];
        let formats = [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block(), FormatId::fp8_block_pow2()];
        let formats = formats.into_iter().chain(variants.map(|name| FormatId::new(name).unwrap()));
        let mut specs = Vec::new();
        for format in formats {
            for base in [QuantizeSpec::activation(format.clone()), QuantizeSpec::weight(format.clone())] {
                for axis in [Axis::Row, Axis::Column] {
                    for scope in [ScaleScope::Row, ScaleScope::Tensor] {
                        specs.push(base.clone().with_axis(axis).with_scope(scope));
                    }
                }
            }
        }
        specs
    }

    #[test]
    fn bands_in_parallel_give_the_bytes_of_the_rule() {
        // 514 columns: no multiple of any block; the rows make several bands, the last one cut short.
        let (rows, cols) = (700, 514);
        let values = values(rows, cols);
        let source = Source::new(&values, rows, cols, SourceDtype::F32, Some("w")).unwrap();
        for spec in specs() {
            let want = builtin_rule(&spec.format).unwrap().quantize(&source, &spec).unwrap();
            for threads in [1, 3] {
                let got = quantizer(threads).quantize(&[source], &spec).unwrap();
                assert_eq!(got[0].canonical_bytes(), want.canonical_bytes(), "{spec:?}, {threads} threads");
                assert_eq!(got[0].digest(), want.digest());
            }
        }
        let split = specs().iter().filter(|spec| band_rows(spec).is_some()).count();
        assert_eq!(split, 18, "the row-axis specs but the tensor-scoped and the stochastic nvfp4 ones");
    }

    #[test]
    fn an_error_in_a_later_band_names_the_row_of_the_whole_tensor() {
        let (rows, cols) = (700, 512);
        let mut values = values(rows, cols);
        values[650 * cols + 100] = f32::NAN;
        let source = Source::new(&values, rows, cols, SourceDtype::F32, Some("w")).unwrap();
        for format in [FormatId::mxfp8(), FormatId::fp8_block()] {
            let spec = QuantizeSpec::weight(format).with_non_finite(NonFinite::Error);
            let error = quantizer(2).quantize(&[source], &spec).unwrap_err();
            let Error::Format(FormatError::NonFinite { tensor, row, column, .. }) = error else { panic!("{error}") };
            assert_eq!((tensor.as_str(), row, column), ("w", 650, 100));
        }
    }

    #[test]
    fn a_pair_shares_one_outer_scale() {
        let (rows, cols) = (8, 32);
        let (gate, up) = (values(rows, cols), values(rows, cols).iter().map(|x| x * 3.0).collect::<Vec<_>>());
        let source = |values| Source::new(values, rows, cols, SourceDtype::F32, None).unwrap();
        let spec = QuantizeSpec::weight(FormatId::nvfp4());
        let pair = quantizer(2).quantize(&[source(&gate), source(&up)], &spec).unwrap();
        let alone = quantizer(2).quantize(&[source(&gate)], &spec).unwrap();
        assert_eq!(pair[0].outer(), pair[1].outer());
        assert_ne!(pair[0].outer(), alone[0].outer());
    }

    /// Keeps nothing: every value becomes code 0.
    struct Zeros;

    impl FormatRule for Zeros {
        fn id(&self) -> FormatId {
            FormatId::new("zeros").unwrap()
        }

        fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
            let mut like = spec.clone();
            like.format = FormatId::mxfp8();
            builtin_rule(&like.format).unwrap().layout(rows, cols, &like)
        }

        fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
            let layout = self.layout(source.rows(), source.cols(), spec)?;
            let parts = QuantizedParts {
                format: self.id(),
                operand: spec.operand,
                axis: spec.axis,
                scope: spec.scope,
                partition: spec.partition,
                rows: source.rows(),
                cols: source.cols(),
                codes: vec![0; layout.codes_bytes],
                scales: BlockScales::U8(vec![0; layout.scale_rows * layout.scale_cols]),
                outer: Vec::new(),
                amax: Vec::new(),
            };
            QuantizedTensor::from_parts(self, source.name(), parts)
        }

        fn quantize_joint(
            &self,
            sources: &[Source<'_>],
            spec: &QuantizeSpec,
        ) -> Result<Vec<QuantizedTensor>, FormatError> {
            sources.iter().map(|source| self.quantize(source, spec)).collect()
        }

        fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
            Ok(vec![0.0; tensor.rows() * tensor.cols()])
        }
    }

    #[test]
    fn a_rule_passed_as_a_value_is_used_and_an_unknown_one_is_refused() {
        let values = values(2, 32);
        let source = Source::new(&values, 2, 32, SourceDtype::F32, None).unwrap();
        let format = FormatId::new("zeros").unwrap();
        let spec = QuantizeSpec::activation(format.clone());

        let plain = quantizer(1);
        assert_eq!(plain.support(&format), Support::Unsupported);
        let error = plain.quantize(&[source], &spec).unwrap_err().to_string();
        assert!(error.contains("`zeros`") && error.contains("nvfp4"), "{error}");

        let own = plain.with_rule(Arc::new(Zeros));
        assert_eq!(own.support(&format), Support::Emulated);
        let tensor = &own.quantize(&[source], &spec).unwrap()[0];
        assert_eq!(own.dequantize(tensor).unwrap(), vec![0.0; 64]);
    }
}
