//! What a checkpoint directory will hold: tensors, their order and their files, decided before a byte is written.

use safetensors::Dtype as StoredDtype;

use super::error::CheckpointError;
use super::header::tensor_bytes;
pub(crate) use super::layout::StoredPart;
use super::names;
use super::reader::TensorRef;
use crate::network::{Mlp, Network, ParamId, Parameter};
use crate::tensor::Dtype;

/// One tensor of the directory.
#[derive(Clone, Debug)]
pub(crate) struct PlannedTensor {
    pub(crate) name: String,
    pub(crate) dtype: StoredDtype,
    pub(crate) shape: Vec<usize>,
    /// Its bytes: those of these pieces, one after another.
    pub(crate) pieces: Vec<Piece>,
}

/// Bytes of one parameter.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// All values, in a number type.
    Dense(ParamId, Dtype),
    /// Codes or scales.
    Part(ParamId, StoredPart),
    /// All bytes of a stored tensor that is no parameter.
    Other(TensorRef),
}

impl PlannedTensor {
    pub(crate) fn bytes(&self) -> u64 {
        tensor_bytes(self.dtype, &self.shape).unwrap_or(0)
    }
}

/// A parameter in high precision under its own name.
pub(super) fn dense(parameter: &Parameter, id: ParamId, dtype: Dtype) -> PlannedTensor {
    PlannedTensor {
        name: parameter.name.clone(),
        dtype: stored_dtype(dtype),
        shape: parameter.shape.clone(),
        pieces: vec![Piece::Dense(id, dtype)],
    }
}

/// One part of a quantized parameter.
pub(super) fn part(parameter: &Parameter, id: ParamId, part: StoredPart) -> PlannedTensor {
    let name = &parameter.name;
    let base = name.strip_suffix(".weight").unwrap_or(name);
    PlannedTensor {
        name: format!("{base}{}", part.suffix),
        dtype: part.dtypes[0],
        shape: part.shape.clone(),
        pieces: vec![Piece::Part(id, part)],
    }
}

/// The two packed tensors of every layer with routed experts. `dtype_of` gives the one number type of a layer's experts.
pub(super) fn packed_experts(
    network: &Network,
    dtype_of: impl Fn(ParamId) -> Result<Dtype, CheckpointError>,
) -> Result<Vec<PlannedTensor>, CheckpointError> {
    let mut tensors = Vec::new();
    for (index, layer) in network.layers.iter().enumerate() {
        let Mlp::Moe(moe) = &layer.mlp else { continue };
        let Some(first) = moe.gates.first() else { continue };
        let (inner, hidden) = network.parameter(first.weight).rows_cols();
        let (gate_up_name, down_name) = names::packed_experts(index);
        let dtype = dtype_of(first.weight)?;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for ((gate, up), down_linear) in moe.gates.iter().zip(&moe.ups).zip(&moe.downs) {
            for linear in [gate, up, down_linear] {
                let other = dtype_of(linear.weight)?;
                if other != dtype {
                    return Err(CheckpointError::MixedFormats {
                        first: network.parameter(first.weight).name.clone(),
                        first_format: dtype.name().to_owned(),
                        second: network.parameter(linear.weight).name.clone(),
                        second_format: other.name().to_owned(),
                    });
                }
            }
            gate_up.extend([Piece::Dense(gate.weight, dtype), Piece::Dense(up.weight, dtype)]);
            down.push(Piece::Dense(down_linear.weight, dtype));
        }
        let experts = moe.gates.len();
        for (name, shape, pieces) in
            [(gate_up_name, vec![experts, 2 * inner, hidden], gate_up), (down_name, vec![experts, hidden, inner], down)]
        {
            tensors.push(PlannedTensor { name, dtype: stored_dtype(dtype), shape, pieces });
        }
    }
    Ok(tensors)
}

/// Cuts the tensors, in order, into files of at most `max_shard_bytes` (a larger tensor has a file of its own), and
/// sorts each file by width of the number type, so that every tensor is aligned.
pub(super) fn shards(tensors: Vec<PlannedTensor>, max_shard_bytes: u64) -> Vec<Vec<PlannedTensor>> {
    let mut shards: Vec<Vec<PlannedTensor>> = Vec::new();
    let mut used = 0;
    for tensor in tensors {
        let bytes = tensor.bytes();
        match shards.last_mut() {
            Some(shard) if used + bytes <= max_shard_bytes => {
                used += bytes;
                shard.push(tensor);
            }
            _ => {
                used = bytes;
                shards.push(vec![tensor]);
            }
        }
    }
    for shard in &mut shards {
        shard.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(&b.name)));
    }
    shards
}

pub(super) fn stored_dtype(dtype: Dtype) -> StoredDtype {
    match dtype {
        Dtype::F32 => StoredDtype::F32,
        Dtype::F16 => StoredDtype::F16,
        Dtype::Bf16 => StoredDtype::BF16,
    }
}
