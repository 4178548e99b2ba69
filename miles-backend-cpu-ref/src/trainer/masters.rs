//! The master weights: the only high-precision copy of the policy.

use std::borrow::Cow;

use miles_core::Result;
use miles_core::network::{Network, ParamId, Role};
use miles_core::number::bf16;
use miles_core::plugin::MasterDtype;
use miles_core::policy::WeightSource;

use crate::ops::linear_backward::MasterValues;
use crate::ops::same_size;

/// Master weights, one vector per parameter, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Masters {
    dtype: MasterDtype,
    tensors: Vec<MasterTensor>,
}

/// The values of one parameter, in the number type of its masters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MasterTensor {
    F32(Vec<f32>),
    /// BF16 bits.
    Bf16(Vec<u16>),
}

impl Masters {
    /// Reads every parameter, one at a time. BF16 masters are the rounding that a version is quantized from, so the first
    /// version has the same bytes in both number types. A router's selection bias, which no update changes, is F32 in both.
    ///
    /// # Errors
    /// If the source fails or gives another number of values than the parameter has.
    pub fn load(network: &Network, source: &dyn WeightSource, dtype: MasterDtype) -> Result<Self> {
        let mut tensors = Vec::with_capacity(network.parameters.len());
        let mut values = Vec::new();
        for id in network.ids() {
            let parameter = network.parameter(id);
            source.read(id, &mut values)?;
            same_size("load of master weights", "number of values", parameter.elements(), values.len())?;
            tensors.push(match dtype {
                MasterDtype::Bf16 if parameter.role != Role::RouterBias => MasterTensor::Bf16(rounded(&values)),
                MasterDtype::Bf16 | MasterDtype::F32 => {
                    let mut held = std::mem::take(&mut values);
                    held.shrink_to_fit();
                    MasterTensor::F32(held)
                }
            });
        }
        Ok(Masters { dtype, tensors })
    }

    /// Number type.
    #[must_use]
    pub fn dtype(&self) -> MasterDtype {
        self.dtype
    }

    /// The values of one parameter.
    #[must_use]
    pub fn values(&self, id: ParamId) -> Cow<'_, [f32]> {
        match &self.tensors[id.index()] {
            MasterTensor::F32(values) => Cow::Borrowed(values),
            MasterTensor::Bf16(bits) => Cow::Owned(bits.iter().copied().map(bf16::decode).collect()),
        }
    }

    /// The values of one parameter as they are kept.
    pub(super) fn view(&self, id: ParamId) -> MasterValues<'_> {
        match &self.tensors[id.index()] {
            MasterTensor::F32(values) => MasterValues::F32(values),
            MasterTensor::Bf16(bits) => MasterValues::Bf16(bits),
        }
    }

    /// Bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &MasterTensor| match tensor {
            MasterTensor::F32(values) => size_of_val(values.as_slice()),
            MasterTensor::Bf16(bits) => size_of_val(bits.as_slice()),
        };
        self.tensors.iter().map(bytes).sum()
    }

    /// Replaces the values of one parameter by as many others, which saved masters of the same number type held.
    pub(crate) fn replace(&mut self, id: ParamId, values: &[f32]) {
        match &mut self.tensors[id.index()] {
            MasterTensor::F32(held) => held.copy_from_slice(values),
            MasterTensor::Bf16(held) => {
                held.iter_mut().zip(values).for_each(|(bits, value)| *bits = bf16::encode(*value));
            }
        }
    }

    /// One parameter, to change it.
    pub(crate) fn tensor_mut(&mut self, id: ParamId) -> &mut MasterTensor {
        &mut self.tensors[id.index()]
    }
}

impl WeightSource for Masters {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        into.clear();
        match &self.tensors[id.index()] {
            MasterTensor::F32(values) => into.extend_from_slice(values),
            MasterTensor::Bf16(bits) => into.extend(bits.iter().copied().map(bf16::decode)),
        }
        Ok(())
    }

    fn held(&self, id: ParamId) -> Option<&[f32]> {
        match &self.tensors[id.index()] {
            MasterTensor::F32(values) => Some(values),
            MasterTensor::Bf16(_) => None,
        }
    }
}

fn rounded(values: &[f32]) -> Vec<u16> {
    values.iter().copied().map(bf16::encode).collect()
}
