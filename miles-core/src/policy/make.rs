//! How one tensor of a version is made from high precision. Every maker of versions goes through [`Maker`], so that a
//! conversion that never holds a whole model and a trainer that does cannot differ in a bit.

use crate::Result;
use crate::digest::Digest;
use crate::format::{NonFinite, QuantizeSpec, QuantizedTensor, Source, SourceDtype};
use crate::network::{Inventory, ParamId};
use crate::plugin::Quantizer;
use crate::policy::{PolicyError, PolicyTensor, WeightSource};
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::{DenseTensor, Dtype};

/// Makes the tensors of one version.
pub(crate) struct Maker<'a, S: ?Sized> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) map: &'a PrecisionMap,
    pub(crate) quantizer: &'a dyn Quantizer,
    pub(crate) source: &'a S,
}

/// One tensor of the new version, and the high-precision tensor that it was made from: itself, unless it is quantized.
pub(crate) struct Made {
    pub(crate) tensor: PolicyTensor,
    original: DenseTensor,
}

/// The parameters that share one outer scale with `id`: itself and its gate/up partner when quantized, or itself. In the
/// order of their numbers.
pub(crate) fn quantized_together(inventory: &Inventory, map: &PrecisionMap, id: ParamId) -> Vec<ParamId> {
    let partner = inventory.parameter(id).pair.filter(|_| map.weight_spec(id).is_some());
    let mut members = vec![id];
    members.extend(partner);
    members.sort_unstable();
    members
}

impl<S: WeightSource + ?Sized> Maker<'_, S> {
    /// The tensors of parameters that are [`quantized_together`], in order.
    pub(crate) fn make(&self, members: &[ParamId]) -> Result<Vec<Made>> {
        let originals: Vec<DenseTensor> = members.iter().map(|&id| self.original(id)).collect::<Result<_>>()?;
        match self.map.weight_spec(members[0]) {
            None => {
                let same = |original: DenseTensor| Made { tensor: PolicyTensor::Dense(original.clone()), original };
                Ok(originals.into_iter().map(same).collect())
            }
            Some(spec) => {
                let quantized = self.quantize(members, &originals, &spec)?;
                if quantized.len() != members.len() {
                    let why = format!("the quantizer made {} tensors of {}", quantized.len(), members.len());
                    let tensor = self.inventory.parameter(members[0]).name.clone();
                    return Err(PolicyError::TensorMismatch { tensor, why }.into());
                }
                let made = |(original, tensor)| Made { tensor: PolicyTensor::Quantized(tensor), original };
                Ok(originals.into_iter().zip(quantized).map(made).collect())
            }
        }
    }

    /// The high-precision values in the number type that the version starts from; never anything but finite.
    fn original(&self, id: ParamId) -> Result<DenseTensor> {
        let dtype = match self.map.entry(id).format {
            TensorFormat::Dense(dtype) => dtype,
            TensorFormat::Quantized(_) => Dtype::Bf16,
        };
        let parameter = self.inventory.parameter(id);
        let (rows, cols) = parameter.rows_cols();
        let check_finite = |values: &[f32]| {
            let source = Source::new(values, rows, cols, SourceDtype::F32, Some(&parameter.name))?;
            source.check_finite(NonFinite::Error, |_row, _column| 0)
        };
        if let Some(tensor) = self.source.tensor(id, dtype)? {
            return Ok(tensor);
        }
        let mut read = Vec::new();
        let values = match self.source.held(id) {
            Some(held) => held,
            None => {
                self.source.read(id, &mut read)?;
                &read
            }
        };
        let original = DenseTensor::from_f32(dtype, parameter.shape.clone(), values)?;
        if !original.is_finite() {
            // What is not finite before rounding is not after it; rounding makes more of it of values beyond the range.
            check_finite(values)?;
            check_finite(&original.to_f32())?;
        }
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
            let parameter = self.inventory.parameter(id);
            let (rows, cols) = parameter.rows_cols();
            sources.push(Source::bf16(original.bytes().as_chunks().0, rows, cols, Some(&parameter.name))?);
        }
        self.quantizer.quantize(&sources, spec)
    }
}

impl Made {
    /// Digest of what the tensor was made from, and its number type; `digest` is the tensor's own.
    pub(crate) fn source(&self, digest: Digest) -> (Digest, Dtype) {
        let is_itself = matches!(self.tensor, PolicyTensor::Dense(_));
        (if is_itself { digest } else { self.original.digest() }, self.original.dtype())
    }
}
