//! The only place where weights are quantized: once per policy version.

use std::sync::Arc;

use super::{Ledger, LedgerEvent, PolicyTensor, PolicyVersion, Snapshot};
use crate::Result;
use crate::format::{NonFinite, QuantizeSpec, QuantizedTensor, Source, SourceDtype};
use crate::network::{Network, ParamId, Parameter};
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
/// scale. High precision is held for one tensor (or pair) at a time.
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
    let mut tensors: Vec<Option<Arc<PolicyTensor>>> = vec![None; network.parameters.len()];
    for id in network.ids() {
        if tensors[id.index()].is_some() {
            continue;
        }
        let members = quantized_together(network, map, id);
        for (&member, tensor) in members.iter().zip(make(network, map, quantizer, source, context, &members)?) {
            tensors[member.index()] = Some(Arc::new(tensor));
        }
    }
    context.ledger.flush()?;
    let tensors = tensors.into_iter().flatten().collect();
    Ok(Snapshot::new(context.version, Arc::clone(network), Arc::clone(map), tensors)?)
}

/// The parameters that share one outer scale with `id`: its gate/up partner when both are quantized, or itself alone.
fn quantized_together(network: &Network, map: &PrecisionMap, id: ParamId) -> Vec<ParamId> {
    let partner = network.parameter(id).pair;
    match (&map.entry(id).format, partner) {
        (TensorFormat::Quantized(_), Some(partner)) => vec![id, partner],
        _ => vec![id],
    }
}

fn make(
    network: &Network,
    map: &PrecisionMap,
    quantizer: &dyn Quantizer,
    source: &dyn WeightSource,
    context: PolicyContext<'_>,
    members: &[ParamId],
) -> Result<Vec<PolicyTensor>> {
    let mut originals = Vec::with_capacity(members.len());
    for &member in members {
        let mut values = Vec::new();
        source.read(member, &mut values)?;
        let parameter = network.parameter(member);
        let (rows, cols) = parameter.rows_cols();
        let check_finite = |values: &[f32]| {
            let source = Source::new(values, rows, cols, SourceDtype::F32, Some(&parameter.name))?;
            source.check_finite(NonFinite::Error, |_row, _column| 0)
        };
        check_finite(&values)?;
        let dtype = match map.entry(member).format {
            TensorFormat::Dense(dtype) => dtype,
            TensorFormat::Quantized(_) => Dtype::Bf16,
        };
        let original = DenseTensor::from_f32(dtype, parameter.shape.clone(), &values)?;
        // Rounding makes a finite value beyond the number type's range infinite.
        original.read_f32(&mut values);
        check_finite(&values)?;
        originals.push(original);
    }
    let made: Vec<PolicyTensor> = match &map.entry(members[0]).format {
        TensorFormat::Dense(_) => originals.iter().cloned().map(PolicyTensor::Dense).collect(),
        TensorFormat::Quantized(format) => {
            let parameters: Vec<&Parameter> = members.iter().map(|&id| network.parameter(id)).collect();
            let spec = QuantizeSpec::weight(format.clone());
            quantize_joint(quantizer, &parameters, &originals, &spec)?
                .into_iter()
                .map(PolicyTensor::Quantized)
                .collect()
        }
    };
    record(network, map, quantizer, context, members, &originals, &made)?;
    Ok(made)
}

fn quantize_joint(
    quantizer: &dyn Quantizer,
    parameters: &[&Parameter],
    originals: &[DenseTensor],
    spec: &QuantizeSpec,
) -> Result<Vec<QuantizedTensor>> {
    let values: Vec<Vec<f32>> = originals.iter().map(DenseTensor::to_f32).collect();
    let mut sources = Vec::with_capacity(values.len());
    for (parameter, values) in parameters.iter().zip(&values) {
        let (rows, cols) = parameter.rows_cols();
        sources.push(Source::new(values, rows, cols, SourceDtype::Bf16, Some(&parameter.name))?);
    }
    quantizer.quantize(&sources, spec)
}

fn record(
    network: &Network,
    map: &PrecisionMap,
    quantizer: &dyn Quantizer,
    context: PolicyContext<'_>,
    members: &[ParamId],
    originals: &[DenseTensor],
    made: &[PolicyTensor],
) -> Result<()> {
    for ((&member, original), tensor) in members.iter().zip(originals).zip(made) {
        context.ledger.record(&LedgerEvent {
            run: context.run.to_owned(),
            step: context.step,
            version: context.version,
            tensor: network.parameter(member).name.clone(),
            source_digest: original.digest(),
            source_dtype: original.dtype().name().to_owned(),
            format: map.entry(member).format.to_string(),
            quantizer: quantizer.id().to_owned(),
            output_digest: tensor.digest(),
        })?;
    }
    Ok(())
}
