//! A hand-off proved: the tensors that one part holds against those of the version they claim to be.
//!
//! A version passes from conversion to the trainer's operands, to the engine's operands and into an exported directory.
//! At each of them [`compare_hand_off`] asks for every tensor as it is really held there and compares canonical bytes.

use std::fmt;

use super::{PolicyTensor, Snapshot};
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
    /// Something else.
    Differs(Difference),
}

/// The first place where two tensors differ.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// Not even the same kind of tensor: number type or format, and shape of each.
    Kind {
        /// The version's tensor.
        expected: String,
        /// What is held.
        found: String,
    },
    /// A byte of the canonical bytes.
    Byte {
        /// Offset.
        offset: usize,
        /// The version's byte; `None` where its bytes end.
        expected: Option<u8>,
        /// The byte held; `None` where its bytes end.
        found: Option<u8>,
    },
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
        let digest = found.digest();
        let comparison = match (expected, &found) {
            _ if digest == version.tensor_digest(id) => Comparison::Equal,
            (PolicyTensor::Quantized(codes), PolicyTensor::Dense(values)) if values.dtype() == Dtype::F32 => {
                let decoded = DenseTensor::from_f32(Dtype::F32, values.shape().to_vec(), &dequantize(codes)?)?;
                match first_difference(&PolicyTensor::Dense(decoded), &found) {
                    None => Comparison::EqualValues,
                    Some(difference) => Comparison::Differs(difference),
                }
            }
            _ => Comparison::Differs(first_difference(expected, &found).unwrap_or_else(|| kinds(expected, &found))),
        };
        Ok(HandedOff { id, digest, comparison })
    };
    version.network().ids().map(compare).collect()
}

/// Where two tensors first differ; `None` when their canonical bytes are the same.
#[must_use]
pub fn first_difference(expected: &PolicyTensor, found: &PolicyTensor) -> Option<Difference> {
    if kind(expected) != kind(found) {
        return Some(kinds(expected, found));
    }
    let (a, b) = (canonical(expected), canonical(found));
    let offset = (0..a.len().max(b.len())).find(|&offset| a.get(offset) != b.get(offset))?;
    Some(Difference::Byte { offset, expected: a.get(offset).copied(), found: b.get(offset).copied() })
}

fn canonical(tensor: &PolicyTensor) -> Vec<u8> {
    match tensor {
        PolicyTensor::Dense(dense) => dense.bytes().to_vec(),
        PolicyTensor::Quantized(quantized) => quantized.canonical_bytes(),
    }
}

fn kinds(expected: &PolicyTensor, found: &PolicyTensor) -> Difference {
    Difference::Kind { expected: kind(expected), found: kind(found) }
}

fn kind(tensor: &PolicyTensor) -> String {
    match tensor {
        PolicyTensor::Dense(dense) => format!("{} {:?}", dense.dtype().name(), dense.shape()),
        PolicyTensor::Quantized(quantized) => {
            format!("{} [{}, {}], {}", quantized.format(), quantized.rows(), quantized.cols(), quantized.partition())
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let byte = |byte: Option<u8>| byte.map_or_else(|| "nothing".to_owned(), |byte| format!("{byte:#04x}"));
        match self {
            Difference::Kind { expected, found } => write!(f, "{found} instead of {expected}"),
            Difference::Byte { offset, expected, found } => {
                write!(f, "canonical byte {offset} is {}, expected {}", byte(*found), byte(*expected))
            }
        }
    }
}
