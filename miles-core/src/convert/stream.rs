//! Tensors that pass in chunks: read, checked, rounded, hashed and written, never held whole.

use super::files::OutputFiles;
use super::plan::Output;
use crate::Result;
use crate::checkpoint::reader::TensorRef;
use crate::checkpoint::{CheckpointError, StoredModel};
use crate::digest::Digest;
use crate::format::FormatError;
use crate::network::ParamId;
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
    let (bound, parameter) = (model.bound(), model.all().parameter(id));
    let stored = bound.in_one_piece(id).unwrap_or(dtype);
    let (read_bytes, element_bytes) = (stored.element_bytes(), dtype.element_bytes());
    let mut hasher = DenseTensor::hasher(dtype, &parameter.shape);
    // A directory with a contract promises the digest of what is stored.
    let mut source = (stored != dtype && bound.recorded_digest(parameter).is_some())
        .then(|| DenseTensor::hasher(stored, &parameter.shape));
    let elements = parameter.elements();
    let step = CHUNK_BYTES / read_bytes.max(element_bytes);
    let mut chunk = vec![0; step.min(elements) * read_bytes];
    for first in (0..elements).step_by(step) {
        let count = step.min(elements - first);
        let chunk = &mut chunk[..count * read_bytes];
        bound.read_elements(id, parameter, first, chunk)?;
        if let Some(source) = &mut source {
            source.update(chunk);
        }
        let offset = output.offset + (first * element_bytes) as u64;
        if stored == dtype {
            hasher.update(chunk);
            files.write(output.shard, offset, chunk)?;
        } else {
            let rounded = rounded(model, id, (stored, dtype), first, chunk)?;
            hasher.update(rounded.bytes());
            files.write(output.shard, offset, rounded.bytes())?;
        }
    }
    let digest: Digest = hasher.finalize().into();
    bound.check_digest(parameter, || source.map_or(digest, |source| source.finalize().into()))?;
    Ok(digest)
}

/// Elements from `first` on, rounded to another number type and finite there too.
fn rounded(
    model: &StoredModel,
    id: ParamId,
    (from, to): (Dtype, Dtype),
    first: usize,
    chunk: &[u8],
) -> Result<DenseTensor> {
    let elements = chunk.len() / from.element_bytes();
    let values = DenseTensor::new(from, vec![elements], chunk)?.to_f32();
    let rounded = DenseTensor::from_f32(to, vec![elements], &values)?;
    match rounded.to_f32().iter().position(|value| !value.is_finite()) {
        None => Ok(rounded),
        Some(index) => {
            let parameter = model.all().parameter(id);
            let (_, cols) = parameter.rows_cols();
            let (row, column) = ((first + index) / cols, (first + index) % cols);
            // The words of a tensor that is rounded whole.
            let (tensor, value) = (parameter.name.clone(), f32::INFINITY.copysign(values[index]));
            Err(FormatError::NonFinite { tensor, row, column, block: 0, value }.into())
        }
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
