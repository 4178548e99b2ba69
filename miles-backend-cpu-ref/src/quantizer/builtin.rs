//! Which kernel quantizes which built-in format, and how its results become tensors.

use miles_core::format::nvfp4::OuterScale;
use miles_core::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Fp8Block, Mxfp8, NonFinite, Nvfp4, Operand, QuantizeSpec,
    QuantizedParts, QuantizedTensor, ScaleScope, Source, SourceValues,
};

use crate::kernel::Compute;
use crate::kernel::quantize::element::Element;
use crate::kernel::quantize::fp8_block::Scaling;
use crate::kernel::quantize::{Amax, Quantized, fp8_block, mxfp8, nvfp4, tensor_amax};

/// The formats that have a kernel.
#[derive(Clone, Copy)]
pub(super) enum Kernel {
    Nvfp4,
    Mxfp8,
    Fp8Block(Fp8Block),
}

impl Kernel {
    /// The kernel of a format, if it has one.
    pub(super) fn of(format: &FormatId) -> Option<Kernel> {
        let fp8_block = [Fp8Block::FP32_SCALES, Fp8Block::POW2_SCALES].into_iter().find(|rule| rule.id() == *format);
        match fp8_block {
            Some(rule) => Some(Kernel::Fp8Block(rule)),
            None if Nvfp4::DEFAULT.id() == *format => Some(Kernel::Nvfp4),
            None if Mxfp8::DEFAULT.id() == *format => Some(Kernel::Mxfp8),
            None => None,
        }
    }

    /// Quantizes `sources` together by `rule`, whose kernel this is. `None` when that is the rule's own
    /// business: shards with outer scales of their own, and sources that it refuses for their shapes or values, in its own
    /// words.
    ///
    /// # Errors
    /// What the rule says about the scales that came out.
    pub(super) fn quantize(
        self,
        compute: &Compute,
        rule: &dyn FormatRule,
        sources: &[Source<'_>],
        spec: &QuantizeSpec,
    ) -> Result<Option<Vec<QuantizedTensor>>, FormatError> {
        let has_shard_scales = matches!(self, Kernel::Nvfp4) && spec.partition.shards_here() > 1;
        if has_shard_scales || sources.windows(2).any(|pair| pair[0].cols() != pair[1].cols()) {
            return Ok(None);
        }
        if sources.iter().any(|source| rule.layout(source.rows(), source.cols(), spec).is_err()) {
            return Ok(None);
        }
        let shared = match (self, spec.scope) {
            (Kernel::Nvfp4, ScaleScope::Row) | (Kernel::Mxfp8 | Kernel::Fp8Block(_), _) => None,
            (Kernel::Nvfp4, _) => {
                let amax = sources.iter().map(|source| source_amax(compute, source)).fold(Amax::ZERO, Amax::or);
                if !amax.finite && spec.non_finite == NonFinite::Error {
                    return Ok(None);
                }
                Some(OuterScale::from_amax(amax.value))
            }
        };
        let mut tensors = Vec::with_capacity(sources.len());
        for source in sources {
            let parts = match source.storage() {
                SourceValues::F32(values) => self.parts(compute, source, values, spec, shared),
                SourceValues::Bf16(values) => self.parts(compute, source, values, spec, shared),
                _ => self.parts(compute, source, &source.values(), spec, shared),
            };
            let Some(parts) = parts else { return Ok(None) };
            tensors.push(QuantizedTensor::from_parts(rule, source.name(), parts)?);
        }
        Ok(Some(tensors))
    }

    /// The parts of one tensor, or `None` when a value is not finite and `spec` refuses that.
    fn parts<E: Element>(
        self,
        compute: &Compute,
        source: &Source<'_>,
        values: &[E],
        spec: &QuantizeSpec,
        shared: Option<OuterScale>,
    ) -> Option<QuantizedParts> {
        let shape @ [_, cols] = [source.rows(), source.cols()];
        let refused = |finite: bool| !finite && spec.non_finite == NonFinite::Error;
        match self {
            Kernel::Mxfp8 => {
                let made = match spec.axis {
                    Axis::Row => mxfp8::row_axis(compute, values, cols),
                    Axis::Column => mxfp8::column_axis(compute, values, cols),
                };
                (!refused(made.finite)).then(|| loose(source, spec, made, BlockScales::U8))
            }
            Kernel::Fp8Block(rule) => {
                let scaling = Scaling { rule, dtype: source.dtype() };
                let made = match (spec.operand, spec.axis) {
                    (Operand::Activation, Axis::Row) => fp8_block::activation_rows(compute, scaling, values, cols),
                    (Operand::Activation, Axis::Column) => {
                        fp8_block::activation_columns(compute, scaling, values, shape)
                    }
                    (Operand::Weight, Axis::Row) => fp8_block::weight_rows(compute, scaling, values, cols),
                    (Operand::Weight, Axis::Column) => fp8_block::weight_columns(compute, scaling, values, shape),
                };
                (!refused(made.finite)).then(|| loose(source, spec, made, BlockScales::F32))
            }
            Kernel::Nvfp4 => {
                let (made, line_amax) = match spec.axis {
                    Axis::Row => nvfp4::row_axis(compute, values, shape, shared.as_ref()),
                    Axis::Column => nvfp4::column_axis(compute, values, shape, shared.as_ref()),
                };
                if refused(made.finite) {
                    return None;
                }
                let (outer, amax) = match shared {
                    Some(shared) => (vec![shared.tensor_decode()], vec![shared.amax()]),
                    None => {
                        let decode = line_amax.iter().map(|&amax| OuterScale::from_amax(amax).row_decode());
                        (decode.collect(), line_amax)
                    }
                };
                Some(QuantizedParts { outer, amax, ..loose(source, spec, made, BlockScales::U8) })
            }
        }
    }
}

fn source_amax(compute: &Compute, source: &Source<'_>) -> Amax {
    match source.storage() {
        SourceValues::F32(values) => tensor_amax(compute, values),
        SourceValues::Bf16(values) => tensor_amax(compute, values),
        _ => tensor_amax(compute, &source.values()),
    }
}

fn loose<S>(
    source: &Source<'_>,
    spec: &QuantizeSpec,
    made: Quantized<S>,
    storage: fn(Vec<S>) -> BlockScales,
) -> QuantizedParts {
    QuantizedParts::new(source, spec, made.codes, storage(made.scales))
}
