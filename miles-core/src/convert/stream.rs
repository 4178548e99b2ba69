//! Tensors that pass in chunks: read, checked, rounded, hashed and written, never held whole.

use super::files::OutputFiles;
use super::plan::Output;
use crate::Result;
use crate::checkpoint::finite::first_non_finite;
use crate::checkpoint::reader::TensorRef;
use crate::checkpoint::{CheckpointError, StoredModel};
use crate::digest::Digest;
use crate::format::FormatError;
use crate::network::{ParamId, Parameter};
use crate::tensor::{DenseTensor, Dtype};

/// Largest piece that is held; every number type has a whole number of elements in it.
pub(super) const CHUNK_BYTES: usize = 4 << 20;

/// Passes one parameter on in `dtype`. The digest is that of the [`DenseTensor`] that would hold it.
pub(super) fn parameter(
    model: &StoredModel,
    id: ParamId,
    dtype: Dtype,
    files: &OutputFiles,
    output: &Output,
) -> Result<Digest> {
    let parameter = model.all().parameter(id);
    let stored = model.bound().in_one_piece(id).unwrap_or(dtype);
    let mut hasher = DenseTensor::hasher(dtype, &parameter.shape);
    let mut source = SourceDigest::new(model, id, dtype);
    let elements = parameter.elements();
    let step = CHUNK_BYTES / stored.element_bytes().max(dtype.element_bytes());
    for first in (0..elements).step_by(step) {
        let chunk = self::elements(model, id, dtype, (first, step.min(elements - first)), &mut source)?;
        hasher.update(&chunk);
        files.write(output.shard, output.offset + (first * dtype.element_bytes()) as u64, &chunk)?;
    }
    source.check()?;
    Ok(hasher.finalize().into())
}

/// The bytes of some elements of a parameter that is stored in one piece, in `dtype` and finite there.
pub(super) fn elements(
    model: &StoredModel,
    id: ParamId,
    dtype: Dtype,
    (first, count): (usize, usize),
    source: &mut SourceDigest<'_>,
) -> Result<Vec<u8>> {
    let parameter = model.all().parameter(id);
    let stored = model.bound().in_one_piece(id).unwrap_or(dtype);
    let mut bytes = vec![0; count * stored.element_bytes()];
    model.bound().read_elements(id, parameter, first, &mut bytes)?;
    source.add(&bytes);
    if stored == dtype {
        return Ok(bytes);
    }
    let values = DenseTensor::new(stored, vec![count], bytes)?.to_f32();
    let rounded = DenseTensor::from_f32(dtype, vec![count], &values)?;
    match first_non_finite(dtype, rounded.bytes()) {
        None => Ok(rounded.bytes().to_vec()),
        Some((index, value)) => {
            let (_, cols) = parameter.rows_cols();
            let (row, column) = ((first + index) / cols, (first + index) % cols);
            // The words of a tensor that is rounded whole.
            let tensor = parameter.name.clone();
            Err(FormatError::NonFinite { tensor, row, column, block: 0, value }.into())
        }
    }
}

/// The digest of what is read, where the source directory has a contract that promises one.
pub(super) struct SourceDigest<'a> {
    model: &'a StoredModel,
    parameter: &'a Parameter,
    /// `None`: there is no promise.
    hasher: Option<blake3::Hasher>,
}

impl<'a> SourceDigest<'a> {
    /// Of a parameter that is stored in one piece and becomes `dtype`, or is quantized from that.
    pub(super) fn new(model: &'a StoredModel, id: ParamId, dtype: Dtype) -> Self {
        let parameter = model.all().parameter(id);
        let stored = model.bound().in_one_piece(id).unwrap_or(dtype);
        let is_promised = model.bound().recorded_digest(parameter).is_some();
        SourceDigest { model, parameter, hasher: is_promised.then(|| DenseTensor::hasher(stored, &parameter.shape)) }
    }

    fn add(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
    }

    /// Refuses bytes that are not those of the promise, once all were added.
    pub(super) fn check(self) -> Result<(), CheckpointError> {
        let Some(hasher) = self.hasher else { return Ok(()) };
        self.model.bound().check_digest(self.parameter, || hasher.finalize().into())
    }
}

/// Copies a stored tensor that is no parameter. The digest is the BLAKE3 of its bytes.
pub(super) fn other(
    model: &StoredModel,
    tensor: TensorRef,
    files: &OutputFiles,
    output: &Output,
) -> Result<Digest, CheckpointError> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES.min(output.bytes as usize)];
    let mut done = 0;
    while done < output.bytes {
        let length = (output.bytes - done).min(CHUNK_BYTES as u64) as usize;
        model.bound().read_bytes(tensor, done, &mut chunk[..length])?;
        hasher.update(&chunk[..length]);
        files.write(output.shard, output.offset + done, &chunk[..length])?;
        done += length as u64;
    }
    Ok(hasher.finalize().into())
}
