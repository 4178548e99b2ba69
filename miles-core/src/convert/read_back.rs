//! What stands in the output at a unit's places: the digests that its members have there.

use super::files::OutputFiles;
use super::plan::{ConvertPlan, Output, Unit, Work};
use super::stream::CHUNK_BYTES;
use crate::checkpoint::layout::{Content, assemble};
use crate::checkpoint::{CheckpointError, StoredModel, scales};
use crate::digest::Digest;
use crate::network::ParamId;
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::{DenseTensor, Dtype};

/// The digests of a unit's members, or `None` when the bytes are not those of any result: they were not written yet.
pub(super) fn digests(
    model: &StoredModel,
    map: &PrecisionMap,
    plan: &ConvertPlan,
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
                    TensorFormat::Quantized(_) => quantized(model, map, plan, *id, &outputs, files)?,
                };
                let Some(digest) = digest else { return Ok(None) };
                digests.push(digest);
            }
            return Ok(Some(digests));
        }
    };
    Ok(digest.map(|digest| vec![digest]))
}

fn quantized(
    model: &StoredModel,
    map: &PrecisionMap,
    plan: &ConvertPlan,
    id: ParamId,
    outputs: &[Output],
    files: &OutputFiles,
) -> Result<Option<Digest>, CheckpointError> {
    let (Some(layout), Some(spec)) = (plan.directory.layout, map.weight_spec(id)) else { return Ok(None) };
    let (mut codes, mut block_scales, mut outer) = (None, None, None);
    for output in outputs {
        let Some(part) = &output.part else { return Ok(None) };
        let mut bytes = vec![0; output.bytes as usize];
        files.read(output.shard, output.offset, &mut bytes)?;
        match part.content {
            Content::Codes | Content::OffsetWords => codes = Some(bytes),
            Content::Scales => {
                let cols = part.shape.last().copied().unwrap_or(1);
                block_scales = scales::decode(layout, part.dtypes[0], bytes, cols).ok();
            }
            Content::OuterScale => outer = Some(scales::floats(&bytes)),
            Content::InputScale | Content::Extents => {}
        }
    }
    let (Some(codes), Some(block_scales)) = (codes, block_scales) else { return Ok(None) };
    let parameter = model.all().parameter(id);
    let shape = parameter.rows_cols().into();
    Ok(assemble(layout.canonical(), &spec, &parameter.name, shape, codes, block_scales, outer)
        .ok()
        .map(|tensor| tensor.digest()))
}

/// Feeds the bytes of one output to a hash, in chunks.
fn hashed(mut hasher: blake3::Hasher, files: &OutputFiles, output: &Output) -> Result<Digest, CheckpointError> {
    let mut chunk = vec![0; CHUNK_BYTES.min(output.bytes as usize)];
    let mut done = 0;
    while done < output.bytes {
        let length = (output.bytes - done).min(CHUNK_BYTES as u64) as usize;
        files.read(output.shard, output.offset + done, &mut chunk[..length])?;
        hasher.update(&chunk[..length]);
        done += length as u64;
    }
    Ok(hasher.finalize().into())
}
