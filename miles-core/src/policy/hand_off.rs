//! A hand-off proved: the tensors that one part holds against those of the version they claim to be.
//!
//! A version passes from conversion to the trainer's operands, to the engine's operands and into an exported directory.
//! At each of them [`compare_hand_off`] asks for every tensor as it is really held there and compares canonical bytes.

use super::{PolicyTensor, Snapshot, TensorDifference, tensor_difference};
use crate::Result;
use crate::digest::Digest;
use crate::format::QuantizedTensor;
use crate::network::ParamId;
use crate::tensor::{DenseTensor, Dtype};

/// One tensor at a hand-off.
#[derive(Clone, Debug, PartialEq)]
pub struct HandedOff {
    /// Which tensor.
    pub id: ParamId,
    /// Digest of what is held.
    pub digest: Digest,
    /// How it compares with the version.
    pub comparison: Comparison,
}

/// How a held tensor compares with the version's.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// The same canonical bytes.
    Equal,
    /// The decoded F32 values of the version's codes, bit for bit: the format is emulated there.
    EqualValues,
    /// Something else; the version's tensor is the first of the two.
    Differs(TensorDifference),
}

/// Compares every tensor that `held` returns with `version`'s. `dequantize` decodes a tensor of the version, for parts
/// that hold decoded values of an emulated format.
///
/// # Errors
/// Those of `held` and `dequantize`; a difference is a result, not an error.
pub fn compare_hand_off(
    version: &Snapshot,
    mut held: impl FnMut(ParamId) -> Result<PolicyTensor>,
    dequantize: impl Fn(&QuantizedTensor) -> Result<Vec<f32>>,
) -> Result<Vec<HandedOff>> {
    let compare = |id: ParamId| {
        let (expected, found) = (version.tensor(id).as_ref(), held(id)?);
        let comparison = match (expected, &found) {
            (PolicyTensor::Quantized(codes), PolicyTensor::Dense(values)) if values.dtype() == Dtype::F32 => {
                let decoded = DenseTensor::from_f32(Dtype::F32, values.shape().to_vec(), &dequantize(codes)?)?;
                let difference = tensor_difference(&PolicyTensor::Dense(decoded), &found);
                difference.map_or(Comparison::EqualValues, Comparison::Differs)
            }
            _ => tensor_difference(expected, &found).map_or(Comparison::Equal, Comparison::Differs),
        };
        Ok(HandedOff { id, digest: found.digest(), comparison })
    };
    version.network().ids().map(compare).collect()
}
