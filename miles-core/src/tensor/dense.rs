//! A tensor that is not quantized.

use std::sync::Arc;

use half::f16;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::number::bf16;

/// Number type of a dense tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn element_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// Lower-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// Bytes that do not fit the shape.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a {} tensor of shape {shape:?} needs {expected_bytes} bytes, not {actual_bytes}", dtype.name())]
pub struct TensorError {
    /// Number type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
    /// Bytes that the shape needs.
    pub expected_bytes: usize,
    /// Bytes given.
    pub actual_bytes: usize,
}

/// A tensor held in its own number type. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Arc<[u8]>,
}

impl DenseTensor {
    /// Wraps little-endian bytes.
    ///
    /// # Errors
    /// If the number of bytes is not that of the shape.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: impl Into<Arc<[u8]>>) -> Result<Self, TensorError> {
        let bytes = bytes.into();
        let expected_bytes = shape.iter().product::<usize>() * dtype.element_bytes();
        if bytes.len() == expected_bytes {
            Ok(DenseTensor { dtype, shape, bytes })
        } else {
            Err(TensorError { dtype, shape, expected_bytes, actual_bytes: bytes.len() })
        }
    }

    /// Rounds values (nearest even) to `dtype` and stores them.
    ///
    /// # Errors
    /// If the number of values is not that of the shape.
    pub fn from_f32(dtype: Dtype, shape: Vec<usize>, values: &[f32]) -> Result<Self, TensorError> {
        // In place, and element by element: a copy or an iterator over bytes would cost more than the rounding.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, values.len() * dtype.element_bytes()).collect();
        let into = Arc::make_mut(&mut bytes);
        match dtype {
            Dtype::F32 => write_each(into, values, f32::to_le_bytes),
            Dtype::F16 => write_each(into, values, |value| f16::from_f32(value).to_le_bytes()),
            Dtype::Bf16 => write_each(into, values, |value| bf16::encode(value).to_le_bytes()),
        }
        Self::new(dtype, shape, bytes)
    }

    /// Number type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Little-endian bytes, row-major.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The values, exactly, as f32.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = Vec::new();
        self.read_f32(&mut values);
        values
    }

    /// Replaces `into` by the values, exactly, as f32.
    pub fn read_f32(&self, into: &mut Vec<f32>) {
        into.clear();
        into.reserve(self.elements());
        match self.dtype {
            Dtype::F32 => into.extend(self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            Dtype::F16 => into.extend(self.bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())),
            Dtype::Bf16 => {
                into.extend(self.bytes.chunks_exact(2).map(|b| bf16::decode(u16::from_le_bytes([b[0], b[1]]))))
            }
        }
    }

    /// Whether no element is NaN or infinite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        let full_exponents = match self.dtype {
            Dtype::F32 => count(&self.bytes, |bytes| u32::from_le_bytes(bytes) & 0x7F80_0000 == 0x7F80_0000),
            Dtype::F16 => count(&self.bytes, |bytes| u16::from_le_bytes(bytes) & 0x7C00 == 0x7C00),
            Dtype::Bf16 => count(&self.bytes, |bytes| u16::from_le_bytes(bytes) & 0x7F80 == 0x7F80),
        };
        full_exponents == 0
    }

    /// BLAKE3 over the number type's name, the shape and the bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = Self::hasher(self.dtype, &self.shape);
        hasher.update(&self.bytes);
        Digest::from(hasher.finalize())
    }

    /// What gives [`digest`](Self::digest) once the bytes are fed to it.
    pub(crate) fn hasher(dtype: Dtype, shape: &[usize]) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(dtype.name().as_bytes());
        hasher.update(&(shape.len() as u64).to_le_bytes());
        for &extent in shape {
            hasher.update(&(extent as u64).to_le_bytes());
        }
        hasher
    }
}

fn write_each<const N: usize>(into: &mut [u8], values: &[f32], encode: impl Fn(f32) -> [u8; N]) {
    into.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = encode(*value));
}

/// How many elements meet a condition. Counting all of them is faster than stopping at the first.
fn count<const N: usize>(bytes: &[u8], holds: impl Fn([u8; N]) -> bool) -> usize {
    bytes.as_chunks().0.iter().map(|element| usize::from(holds(*element))).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_finite_when_every_element_is() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let finite = [0.0, -0.0, 1.5, -65504.0, f32::from_bits(1)];
            assert!(DenseTensor::from_f32(dtype, vec![5], &finite).unwrap().is_finite(), "{dtype:?}");
            for place in 0..finite.len() {
                for hostile in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = finite;
                    values[place] = hostile;
                    assert!(
                        !DenseTensor::from_f32(dtype, vec![5], &values).unwrap().is_finite(),
                        "{dtype:?} {hostile}"
                    );
                }
            }
        }
        // Beyond the range of the number type.
        assert!(DenseTensor::from_f32(Dtype::F32, vec![1], &[f32::MAX]).unwrap().is_finite());
        assert!(!DenseTensor::from_f32(Dtype::Bf16, vec![1], &[f32::MAX]).unwrap().is_finite());
        assert!(!DenseTensor::from_f32(Dtype::F16, vec![1], &[65520.0]).unwrap().is_finite());
    }

    #[test]
    fn values_are_rounded_to_nearest_even_and_read_back() {
        for bits in (0..=u32::MAX).step_by(65_537 * 3) {
            let value = f32::from_bits(bits);
            let read = |dtype| DenseTensor::from_f32(dtype, vec![1], &[value]).unwrap().to_f32()[0];
            assert!(read(Dtype::F32).to_bits() == bits);
            let (half, brain) = (f16::from_f32(value).to_f32(), half::bf16::from_f32(value).to_f32());
            assert_eq!(read(Dtype::F16).to_bits(), half.to_bits());
            assert_eq!(read(Dtype::Bf16).to_bits(), brain.to_bits());
        }
    }
}
