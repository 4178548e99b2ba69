//! Tied embeddings: the head is the embedding table, and files differ in whether they hold it again.
//!
//! Reading accepts a file with or without `lm_head.weight`; if it is there it has to be the embedding table, to the
//! bit. Writing never stores the head of a tied model.

use super::error::CheckpointError;
use super::reader::{StoredTensors, TensorRef};
use crate::digest::Digest;

/// Name of the head's weight.
pub(super) const HEAD: &str = "lm_head.weight";

const CHUNK_BYTES: usize = 1 << 20;

/// Refuses a stored head that is not the embedding table.
pub(super) fn check(stored: &StoredTensors, head: TensorRef, embedding: TensorRef) -> Result<(), CheckpointError> {
    let (head_digest, embedding_digest) = (digest(stored, head)?, digest(stored, embedding)?);
    if head_digest == embedding_digest {
        return Ok(());
    }
    Err(CheckpointError::TiedHeadDiffers {
        path: stored.path(head).to_owned(),
        head: head_digest,
        embedding: embedding_digest,
    })
}

/// BLAKE3 over number type, shape and bytes, read in chunks.
fn digest(stored: &StoredTensors, tensor: TensorRef) -> Result<Digest, CheckpointError> {
    let info = stored.info(tensor);
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{} {:?} ", info.dtype, info.shape).as_bytes());
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < info.bytes {
        let length = (info.bytes - offset).min(CHUNK_BYTES as u64) as usize;
        stored.read(tensor, offset, &mut chunk[..length])?;
        hasher.update(&chunk[..length]);
        offset += length as u64;
    }
    Ok(Digest::from(hasher.finalize()))
}
