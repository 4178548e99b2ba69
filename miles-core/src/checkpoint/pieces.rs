//! Stored tensors piece by piece, for readers that hold no tensor whole.

use std::path::PathBuf;

use super::bind::Binding;
use super::bound::Bound;
use super::error::CheckpointError;
use super::finite::first_non_finite;
use super::reader::TensorRef;
use crate::digest::Digest;
use crate::network::{ParamId, Parameter};
use crate::tensor::Dtype;

impl Bound {
    /// Bytes that are read for a parameter.
    pub(crate) fn source_bytes(&self, id: ParamId, parameter: &Parameter) -> u64 {
        let bytes = |tensor: TensorRef| self.stored.info(tensor).bytes;
        match &self.bindings[id.index()] {
            Binding::Dense { dtype, slab, .. } => {
                let elements = slab.map_or(parameter.elements(), |slab| slab.span().len());
                (elements * dtype.element_bytes()) as u64
            }
            Binding::Quantized { codes, scales, outer, .. } => bytes(*codes) + bytes(*scales) + outer.map_or(0, bytes),
        }
    }

    /// The number type of a parameter that is stored in high precision in one piece, row by row; `None` for any other.
    pub(crate) fn in_one_piece(&self, id: ParamId) -> Option<Dtype> {
        match &self.bindings[id.index()] {
            Binding::Dense { dtype, slab, .. } if slab.is_none_or(|slab| slab.is_contiguous()) => Some(*dtype),
            _ => None,
        }
    }

    /// Fills `into` with elements of a parameter that is [`in_one_piece`](Self::in_one_piece), from element `first` on, and
    /// refuses any that is not finite.
    pub(crate) fn read_elements(
        &self,
        id: ParamId,
        parameter: &Parameter,
        first: usize,
        into: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let Binding::Dense { tensor, dtype, slab } = self.bindings[id.index()] else {
            let (path, tensor) = (PathBuf::new(), parameter.name.clone());
            return Err(CheckpointError::NoSuchTensor { path, tensor, expected: None });
        };
        let start = slab.map_or(0, |slab| slab.span().start) + first;
        self.stored.read(tensor, (start * dtype.element_bytes()) as u64, into)?;
        match first_non_finite(dtype, into) {
            None => Ok(()),
            Some((index, value)) => Err(self.non_finite(parameter, tensor, first + index, value)),
        }
    }

    /// Name of a stored tensor, as stored.
    pub(crate) fn name(&self, tensor: TensorRef) -> &str {
        &self.stored.info(tensor).name
    }

    /// Fills `into` with bytes of a stored tensor from `offset_bytes` on.
    pub(crate) fn read_bytes(
        &self,
        tensor: TensorRef,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.stored.read(tensor, offset_bytes, into)
    }

    /// BLAKE3 of a stored tensor's bytes, read in chunks.
    pub(crate) fn hash_bytes(&self, tensor: TensorRef, chunk_bytes: usize) -> Result<Digest, CheckpointError> {
        let bytes = self.stored.info(tensor).bytes;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; chunk_bytes.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(chunk_bytes as u64) as usize;
            self.stored.read(tensor, done, &mut chunk[..length])?;
            hasher.update(&chunk[..length]);
            done += length as u64;
        }
        Ok(hasher.finalize().into())
    }

    /// The digest that the sidecar of the directory gives a parameter.
    pub(crate) fn recorded_digest(&self, parameter: &Parameter) -> Option<Digest> {
        self.recorded(parameter).map(|(_, tensor)| tensor.digest)
    }
}
