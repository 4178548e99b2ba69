//! What stands in the output at a unit's places: the digests that its members have there.

use super::files::OutputFiles;
use super::plan::{Output, Unit, Work};
use super::stream::CHUNK_BYTES;
use crate::checkpoint::layout::{Content, flip_offset};
use crate::checkpoint::{CheckpointError, StoredModel};
use crate::digest::Digest;
use crate::format::{builtin_rule, canonical_hasher};
use crate::network::ParamId;
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::{DenseTensor, Dtype};

/// The digests of a unit's members; `None` for a unit that writes nothing.
pub(super) fn digests(
    model: &StoredModel,
    map: &PrecisionMap,
    unit: &Unit,
    files: &OutputFiles,
) -> Result<Option<Vec<Digest>>, CheckpointError> {
    let dense = |id: ParamId, dtype: Dtype, outputs: &[Output]| {
        let hasher = DenseTensor::hasher(dtype, &model.all().parameter(id).shape);
        outputs.first().map(|output| hashed(hasher, files, output)).transpose()
    };
    let digest = match &unit.work {
        Work::Stream(id, dtype) | Work::Carry(id, dtype) => dense(*id, *dtype, &unit.outputs)?,
        Work::Copy(_) => unit.outputs.first().map(|output| hashed(blake3::Hasher::new(), files, output)).transpose()?,
        Work::Make(members) => {
            let mut digests = Vec::with_capacity(members.len());
            for (member, id) in members.iter().enumerate() {
                let outputs: Vec<Output> =
                    unit.outputs.iter().filter(|output| output.member == member).cloned().collect();
                let digest = match map.entry(*id).format {
                    TensorFormat::Dense(dtype) => dense(*id, dtype, &outputs)?,
                    TensorFormat::Quantized(_) => quantized(model, map, *id, &outputs, files)?,
                };
                let Some(digest) = digest else { return Ok(None) };
                digests.push(digest);
            }
            return Ok(Some(digests));
        }
    };
    Ok(digest.map(|digest| vec![digest]))
}

/// The digest of a quantized parameter: its parts are stored as they are hashed, but for the form of packed codes.
fn quantized(
    model: &StoredModel,
    map: &PrecisionMap,
    id: ParamId,
    outputs: &[Output],
    files: &OutputFiles,
) -> Result<Option<Digest>, CheckpointError> {
    let shape @ [rows, cols] = <[usize; 2]>::from(model.all().parameter(id).rows_cols());
    let Some(spec) = map.weight_spec(id) else { return Ok(None) };
    // What no layout holds was refused in the plan, and layouts hold built-in formats alone.
    let rule = builtin_rule(&spec.format);
    let Some(layout) = rule.and_then(|rule| rule.layout(rows, cols, &spec).ok()) else { return Ok(None) };
    let mut hasher = canonical_hasher(&spec, shape, &layout);
    for content in [Content::Codes, Content::OffsetWords, Content::Scales, Content::OuterScale] {
        let is_it = |output: &&Output| output.part.as_ref().is_some_and(|part| part.content == content);
        for output in outputs.iter().filter(is_it) {
            let is_packed = content == Content::OffsetWords;
            feed(&mut hasher, files, output, |bytes| {
                if is_packed {
                    flip_offset(bytes);
                }
            })?;
        }
    }
    Ok(Some(hasher.finalize().into()))
}

fn hashed(mut hasher: blake3::Hasher, files: &OutputFiles, output: &Output) -> Result<Digest, CheckpointError> {
    feed(&mut hasher, files, output, |_| {})?;
    Ok(hasher.finalize().into())
}

/// Feeds the bytes of one output to a hash, in chunks, `form` having changed them.
fn feed(
    hasher: &mut blake3::Hasher,
    files: &OutputFiles,
    output: &Output,
    form: impl Fn(&mut [u8]),
) -> Result<(), CheckpointError> {
    let mut chunk = vec![0; CHUNK_BYTES.min(output.bytes as usize)];
    let mut done = 0;
    while done < output.bytes {
        let length = (output.bytes - done).min(CHUNK_BYTES as u64) as usize;
        files.read(output.shard, output.offset + done, &mut chunk[..length])?;
        form(&mut chunk[..length]);
        hasher.update(&chunk[..length]);
        done += length as u64;
    }
    Ok(())
}
