//! A tensor that is not quantized.

use std::sync::Arc;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

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
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        };
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
            Dtype::Bf16 => into.extend(self.bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())),
        }
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
