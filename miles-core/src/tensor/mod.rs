//! Tensors as they are stored: a number type, a shape and little-endian bytes.

mod dense;

pub use dense::{DenseTensor, Dtype, TensorError};
