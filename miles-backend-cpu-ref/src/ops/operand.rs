//! Operands read back: what the operations multiply, as the tensor that it claims to be.
//!
//! Shapes and names come from the snapshot; every code, scale and value comes from the prepared weight itself. A format
//! without a kernel is multiplied as F32 values, so that is what its operand is.

use miles_core::Result;
use miles_core::format::{BlockScales, QuantizedParts, QuantizedTensor, builtin_rule};
use miles_core::network::ParamId;
use miles_core::policy::PolicyTensor;
use miles_core::tensor::{DenseTensor, Dtype};

use super::error::OperationError;
use super::weights::{FP8_TILE_ROWS, PolicyWeights, Prepared, Table};
use crate::kernel::pack::PackedWeight;
use crate::kernel::unpack::Unpacked;

impl PolicyWeights {
    /// One tensor as the operations multiply it. A table that is also the head is shown as the head's matrix, which is
    /// packed from the same bytes.
    ///
    /// # Errors
    /// If the operand is not what any quantizer emits (rows of one tile with two scales, a NaN scale).
    pub fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        let shape = &self.snapshot().network().parameter(id).shape;
        match self.prepared(id) {
            Prepared::Vector(values) => dense(self.stored_dtype(id), shape, values),
            Prepared::Table(Table::Bf16(tensor)) => Ok(PolicyTensor::Dense(tensor.clone())),
            Prepared::Table(Table::Decoded(values)) => dense(self.stored_dtype(id), shape, values),
            Prepared::Matrix(matrix) | Prepared::TableAndMatrix(_, matrix) => self.unpacked(id, &matrix.packed),
        }
    }

    fn unpacked(&self, id: ParamId, packed: &PackedWeight) -> Result<PolicyTensor> {
        let parameter = self.snapshot().network().parameter(id);
        let (codes, scales, outer) = match packed.unpack() {
            Unpacked::F32(values) => return dense(self.stored_dtype(id), &parameter.shape, &values),
            Unpacked::Bf16(bits) => {
                let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                return Ok(PolicyTensor::Dense(DenseTensor::new(Dtype::Bf16, parameter.shape.clone(), bytes)?));
            }
            Unpacked::Mxfp8 { codes, scales } => (codes, BlockScales::U8(scales), Vec::new()),
            Unpacked::Nvfp4 { codes, scales, outer_scale } => (codes, BlockScales::U8(scales), vec![outer_scale]),
            Unpacked::Fp8Block { codes, scales } => {
                let scales = one_per_tile(&scales, packed.n())
                    .ok_or_else(|| OperationError::TornTile { tensor: parameter.name.clone() })?;
                (codes, BlockScales::F32(scales), Vec::new())
            }
        };
        let PolicyTensor::Quantized(claimed) = self.snapshot().tensor(id).as_ref() else {
            let used_as = "quantized weight";
            return Err(OperationError::Role { tensor: parameter.name.clone(), used_as }.into());
        };
        let parts = QuantizedParts {
            format: claimed.format().clone(),
            operand: claimed.operand(),
            axis: claimed.axis(),
            scope: claimed.scope(),
            partition: claimed.partition(),
            rows: packed.n(),
            cols: packed.k(),
            codes,
            scales,
            outer,
            amax: Vec::new(),
        };
        let rule = builtin_rule(claimed.format()).ok_or_else(|| OperationError::Role {
            tensor: parameter.name.clone(),
            used_as: "weight of a built-in format",
        })?;
        Ok(PolicyTensor::Quantized(QuantizedTensor::from_parts(rule, Some(&parameter.name), parts)?))
    }

    /// Number type that the snapshot holds a dense tensor in; F32 for codes.
    fn stored_dtype(&self, id: ParamId) -> Dtype {
        match self.snapshot().tensor(id).as_ref() {
            PolicyTensor::Dense(tensor) => tensor.dtype(),
            PolicyTensor::Quantized(_) => Dtype::F32,
        }
    }
}

/// Values in `dtype` where each is exactly one of its numbers; else in F32, which differs from what was published.
fn dense(dtype: Dtype, shape: &[usize], values: &[f32]) -> Result<PolicyTensor> {
    let narrow = DenseTensor::from_f32(dtype, shape.to_vec(), values)?;
    let same = narrow.to_f32().iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits());
    Ok(PolicyTensor::Dense(if same { narrow } else { DenseTensor::from_f32(Dtype::F32, shape.to_vec(), values)? }))
}

/// `[rows, blocks]` scales as one row per tile of 128; `None` when rows of one tile differ.
fn one_per_tile(scales: &[f32], rows: usize) -> Option<Vec<f32>> {
    let blocks = scales.len().checked_div(rows).unwrap_or(0);
    let mut per_tile = Vec::with_capacity(rows.div_ceil(FP8_TILE_ROWS) * blocks);
    for tile in scales.chunks((FP8_TILE_ROWS * blocks).max(1)) {
        let first = &tile[..blocks];
        let equal = |row: &[f32]| row.iter().zip(first).all(|(a, b)| a.to_bits() == b.to_bits());
        if !tile.chunks(blocks.max(1)).all(equal) {
            return None;
        }
        per_tile.extend_from_slice(first);
    }
    Some(per_tile)
}
