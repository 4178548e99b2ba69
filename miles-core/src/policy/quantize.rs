//! The only place where weights are quantized: once per policy version.

use std::sync::Arc;

use super::make::{Made, Maker, quantized_together};
use super::{Ledger, LedgerEvent, PolicyTensor, PolicyVersion, Snapshot};
use crate::Result;
use crate::digest::Digest;
use crate::network::{Network, ParamId};
use crate::plugin::Quantizer;
use crate::precision::PrecisionMap;
use crate::tensor::{DenseTensor, Dtype};

/// High-precision values of a policy's tensors.
pub trait WeightSource {
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
    let maker = Maker { inventory: network, map, quantizer, source };
    let mut made: Vec<Option<(Arc<PolicyTensor>, Digest)>> = network.ids().map(|_| None).collect();
    for id in network.ids() {
        if made[id.index()].is_some() {
            continue;
        }
        let members = quantized_together(network, map, id);
        for (&member, new) in members.iter().zip(maker.make(&members)?) {
            let digest = new.tensor.digest();
            context.ledger.record(&event(&maker, member, &new, digest, context))?;
            made[member.index()] = Some((Arc::new(new.tensor), digest));
        }
    }
    context.ledger.flush()?;
    let (tensors, digests) = made.into_iter().flatten().unzip();
    Ok(Snapshot::sealed(context.version, Arc::clone(network), Arc::clone(map), tensors, digests)?)
}

fn event(
    maker: &Maker<'_, dyn WeightSource + '_>,
    id: ParamId,
    made: &Made,
    digest: Digest,
    context: PolicyContext<'_>,
) -> LedgerEvent {
    let (source_digest, source_dtype) = made.source(digest);
    LedgerEvent {
        run: context.run.to_owned(),
        step: context.step,
        version: context.version,
        tensor: maker.inventory.parameter(id).name.clone(),
        source_digest,
        source_dtype: source_dtype.name().to_owned(),
        format: maker.map.entry(id).format.to_string(),
        quantizer: maker.quantizer.id().to_owned(),
        output_digest: digest,
    }
}
