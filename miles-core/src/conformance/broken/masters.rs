//! The defect of the hand-off: quantizing the F32 master.

use std::sync::Arc;

use crate::Result;
use crate::format::{QuantizeSpec, Source, SourceDtype};
use crate::network::{Network, ParamId};
use crate::plugin::Quantizer;
use crate::policy::{PolicyContext, PolicyTensor, Snapshot, WeightSource};
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::DenseTensor;

/// The case of [`publication`](crate::conformance::publication) that catches [`publish_masters`].
pub const PUBLISH_MASTERS_CAUGHT_BY: &str = "publication/nvfp4";

/// Publishes as [`quantize_policy`](crate::policy::quantize_policy) does, except that quantized tensors are made from
/// the F32 master weights and not from their BF16 rounding. Caught by `publication/nvfp4`.
///
/// # Errors
/// As [`quantize_policy`](crate::policy::quantize_policy).
pub fn publish_masters(
    network: &Arc<Network>,
    map: &Arc<PrecisionMap>,
    quantizer: &dyn Quantizer,
    source: &dyn WeightSource,
    context: PolicyContext<'_>,
) -> Result<Snapshot> {
    let read = |id: ParamId| {
        let mut values = Vec::new();
        source.read(id, &mut values).map(|()| values)
    };
    let mut tensors = Vec::with_capacity(network.parameters.len());
    for id in network.ids() {
        let parameter = network.parameter(id);
        tensors.push(Arc::new(match &map.entry(id).format {
            TensorFormat::Dense(dtype) => {
                PolicyTensor::Dense(DenseTensor::from_f32(*dtype, parameter.shape.clone(), &read(id)?)?)
            }
            TensorFormat::Quantized(format) => {
                let members: Vec<ParamId> = std::iter::once(id).chain(parameter.pair).collect();
                let masters = members.iter().map(|&id| read(id)).collect::<Result<Vec<_>>>()?;
                let mut sources = Vec::with_capacity(members.len());
                for (&id, values) in members.iter().zip(&masters) {
                    let parameter = network.parameter(id);
                    let (rows, cols) = parameter.rows_cols();
                    sources.push(Source::new(values, rows, cols, SourceDtype::F32, Some(&parameter.name))?);
                }
                let mut made = quantizer.quantize(&sources, &QuantizeSpec::weight(format.clone()))?;
                PolicyTensor::Quantized(made.swap_remove(0))
            }
        }));
    }
    Ok(Snapshot::new(context.version, Arc::clone(network), Arc::clone(map), tensors)?)
}
