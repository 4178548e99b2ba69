//! The only place where weights are quantized: once per policy version.

use std::sync::Arc;

use super::{Ledger, LedgerEvent, PolicyError, PolicyTensor, PolicyVersion, Snapshot};
use crate::Result;
use crate::digest::Digest;
use crate::format::{NonFinite, QuantizeSpec, QuantizedTensor, Source, SourceDtype};
use crate::network::{Network, ParamId};
use crate::plugin::Quantizer;
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::{DenseTensor, Dtype};

/// High-precision values of a policy's tensors.
pub trait WeightSource {
    /// Replaces `into` by the values of one parameter, row-major.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()>;
}

/// Who makes a version, for the ledger.
#[derive(Clone, Copy)]
pub struct PolicyContext<'a> {
    /// Run.
    pub run: &'a str,
    /// Training step that makes the version.
    pub step: u64,
    /// The version.
    pub version: PolicyVersion,
    /// Where events go.
    pub ledger: &'a Ledger,
}

/// Makes one policy version from high-precision values.
///
/// Each tensor is rounded to BF16 first (nearest even) and that rounding is what is stored or quantized, so that every
/// copy of a policy starts from the same bits. Gate and up projections are quantized as one pair with a shared outer
/// scale; routed experts are quantized shard by shard where the map's plan cuts them. High precision is held for one tensor (or pair) at a time.
///
/// # Errors
/// If a value is not finite, a format does not fit a tensor, the source or the ledger fails.
pub fn quantize_policy(
    network: &Arc<Network>,
    map: &Arc<PrecisionMap>,
    quantizer: &dyn Quantizer,
    source: &dyn WeightSource,
    context: PolicyContext<'_>,
) -> Result<Snapshot> {
    let snapshot =
        quantize_events(network, map, quantizer, source, context, &mut |event| context.ledger.record(event))?;
    context.ledger.flush()?;
    Ok(snapshot)
}

/// As [`quantize_policy`], handing each event to `record` instead of writing it.
pub(super) fn quantize_events(
    network: &Arc<Network>,
    map: &Arc<PrecisionMap>,
    quantizer: &dyn Quantizer,
    source: &dyn WeightSource,
    context: PolicyContext<'_>,
    record: &mut dyn FnMut(&LedgerEvent) -> Result<(), PolicyError>,
) -> Result<Snapshot> {
    let maker = Maker { network, map, quantizer, source };
    let mut made: Vec<Option<Made>> = network.ids().map(|_| None).collect();
    for id in network.ids() {
        if made[id.index()].is_some() {
            continue;
        }
        let members = maker.quantized_together(id);
        for (&member, tensor) in members.iter().zip(maker.make(&members)?) {
            record(&maker.event(member, &tensor, context))?;
            made[member.index()] = Some(tensor);
        }
    }
    let (tensors, digests) = made.into_iter().flatten().map(|made| (Arc::new(made.tensor), made.digest)).unzip();
    Ok(Snapshot::sealed(context.version, Arc::clone(network), Arc::clone(map), tensors, digests)?)
}

struct Maker<'a> {
    network: &'a Network,
    map: &'a PrecisionMap,
    quantizer: &'a dyn Quantizer,
    source: &'a dyn WeightSource,
}

/// One tensor of the new version, and what it was made from.
struct Made {
    tensor: PolicyTensor,
    digest: Digest,
    source_digest: Digest,
    source_dtype: Dtype,
}

impl Maker<'_> {
    /// The parameters that share one outer scale with `id`: itself and its gate/up partner when quantized, or itself.
    fn quantized_together(&self, id: ParamId) -> Vec<ParamId> {
        match (&self.map.entry(id).format, self.network.parameter(id).pair) {
            (TensorFormat::Quantized(_), Some(partner)) => vec![id, partner],
            _ => vec![id],
        }
    }

    fn make(&self, members: &[ParamId]) -> Result<Vec<Made>> {
        let originals: Vec<DenseTensor> = members.iter().map(|&id| self.original(id)).collect::<Result<_>>()?;
        match &self.map.entry(members[0]).format {
            TensorFormat::Dense(_) => Ok(originals.into_iter().map(dense).collect()),
            TensorFormat::Quantized(format) => {
                let partition = self.map.partition(self.network, members[0]);
                let spec = QuantizeSpec::weight(format.clone()).with_partition(partition);
                let quantized = self.quantize(members, &originals, &spec)?;
                Ok(originals.iter().zip(quantized).map(|(original, tensor)| from_original(original, tensor)).collect())
            }
        }
    }

    /// The high-precision values in the number type that the version starts from; never anything but finite.
    fn original(&self, id: ParamId) -> Result<DenseTensor> {
        let mut values = Vec::new();
        self.source.read(id, &mut values)?;
        let parameter = self.network.parameter(id);
        let (rows, cols) = parameter.rows_cols();
        let check_finite = |values: &[f32]| {
            let source = Source::new(values, rows, cols, SourceDtype::F32, Some(&parameter.name))?;
            source.check_finite(NonFinite::Error, |_row, _column| 0)
        };
        check_finite(&values)?;
        let dtype = match self.map.entry(id).format {
            TensorFormat::Dense(dtype) => dtype,
            TensorFormat::Quantized(_) => Dtype::Bf16,
        };
        let original = DenseTensor::from_f32(dtype, parameter.shape.clone(), &values)?;
        // Rounding makes a finite value beyond the number type's range infinite.
        original.read_f32(&mut values);
        check_finite(&values)?;
        Ok(original)
    }

    fn quantize(
        &self,
        members: &[ParamId],
        originals: &[DenseTensor],
        spec: &QuantizeSpec,
    ) -> Result<Vec<QuantizedTensor>> {
        let mut sources = Vec::with_capacity(originals.len());
        for (&id, original) in members.iter().zip(originals) {
            let parameter = self.network.parameter(id);
            let (rows, cols) = parameter.rows_cols();
            sources.push(Source::bf16(original.bytes().as_chunks().0, rows, cols, Some(&parameter.name))?);
        }
        self.quantizer.quantize(&sources, spec)
    }

    fn event(&self, id: ParamId, made: &Made, context: PolicyContext<'_>) -> LedgerEvent {
        LedgerEvent {
            run: context.run.to_owned(),
            step: context.step,
            version: context.version,
            tensor: self.network.parameter(id).name.clone(),
            source_digest: made.source_digest,
            source_dtype: made.source_dtype.name().to_owned(),
            format: self.map.entry(id).format.to_string(),
            quantizer: self.quantizer.id().to_owned(),
            output_digest: made.digest,
        }
    }
}

/// A tensor kept in high precision: what it was made from is what it is.
fn dense(original: DenseTensor) -> Made {
    let digest = original.digest();
    let source_dtype = original.dtype();
    Made { tensor: PolicyTensor::Dense(original), digest, source_digest: digest, source_dtype }
}

fn from_original(original: &DenseTensor, tensor: QuantizedTensor) -> Made {
    Made {
        digest: tensor.digest(),
        source_digest: original.digest(),
        source_dtype: original.dtype(),
        tensor: PolicyTensor::Quantized(tensor),
    }
}
