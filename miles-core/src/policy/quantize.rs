//! The only place where weights are quantized: once per policy version.

use std::sync::Arc;

use super::in_order::in_order;
use super::make::{Maker, quantized_together};
use super::{Ledger, LedgerEvent, PolicyError, PolicyTensor, PolicyVersion, Snapshot};
use crate::Result;
use crate::digest::Digest;
use crate::network::{Network, ParamId};
use crate::plugin::Quantizer;
use crate::precision::PrecisionMap;
use crate::tensor::{DenseTensor, Dtype};

/// High-precision values of a policy's tensors. Several threads may read at once.
pub trait WeightSource: Sync {
    /// Replaces `into` by the values of one parameter, row-major.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()>;

    /// One parameter as it is held, where it is held in `dtype` and every value is finite: the values of
    /// [`read`](Self::read) without a detour. `None` (unless overridden, always): they have to be read and rounded.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn tensor(&self, _id: ParamId, _dtype: Dtype) -> Result<Option<DenseTensor>> {
        Ok(None)
    }

    /// The values of [`read`](Self::read) where they are held in memory as F32, row-major. `None` (unless overridden,
    /// always): they have to be read.
    fn held(&self, _id: ParamId) -> Option<&[f32]> {
        None
    }
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
/// scale; routed experts are quantized shard by shard where the map's plan cuts them. As many tensors (or pairs) are made at
/// once as the quantizer has a use for ([`Quantizer::concurrency`]), and high precision is held for no others.
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
    let maker = Maker { inventory: network, map, quantizer, source };
    let together = network.ids().map(|id| (id, quantized_together(network, map, id)));
    let units: Vec<Vec<ParamId>> = together.filter(|(id, all)| all[0] == *id).map(|(_, all)| all).collect();
    let made = in_order(units.len(), quantizer.concurrency(), |unit| make_and_hash(&maker, &units[unit]))?;
    let mut all: Vec<Option<(Arc<PolicyTensor>, Digest)>> = network.ids().map(|_| None).collect();
    for (&id, new) in units.iter().flatten().zip(made.into_iter().flatten()) {
        record(&event(&maker, id, &new, context))?;
        all[id.index()] = Some((new.tensor, new.digest));
    }
    let (tensors, digests) = all.into_iter().flatten().unzip();
    Ok(Snapshot::sealed(context.version, Arc::clone(network), Arc::clone(map), tensors, digests)?)
}

/// One tensor of the new version, without what it was made from.
struct Hashed {
    tensor: Arc<PolicyTensor>,
    digest: Digest,
    source_digest: Digest,
    source_dtype: Dtype,
}

fn make_and_hash(maker: &Maker<'_, dyn WeightSource + '_>, members: &[ParamId]) -> Result<Vec<Hashed>> {
    let hashed = maker.make(members)?.into_iter().map(|made| {
        let digest = made.tensor.digest();
        let (source_digest, source_dtype) = made.source(digest);
        Hashed { tensor: Arc::new(made.tensor), digest, source_digest, source_dtype }
    });
    Ok(hashed.collect())
}

fn event(
    maker: &Maker<'_, dyn WeightSource + '_>,
    id: ParamId,
    made: &Hashed,
    context: PolicyContext<'_>,
) -> LedgerEvent {
    LedgerEvent {
        run: context.run.to_owned(),
        step: context.step,
        version: context.version,
        tensor: maker.inventory.parameter(id).name.clone(),
        source_digest: made.source_digest,
        source_dtype: made.source_dtype.name().to_owned(),
        format: maker.map.entry(id).format.to_string(),
        quantizer: maker.quantizer.id().to_owned(),
        output_digest: made.digest,
    }
}
