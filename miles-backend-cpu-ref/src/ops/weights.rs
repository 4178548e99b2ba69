//! One policy version's tensors in the forms that the operations read.
//!
//! | tensor | prepared as |
//! |---|---|
//! | norms, biases, the router's selection bias | dense f32 values |
//! | matrices of linear layers | packed codes, in the precision that the snapshot holds them in |
//! | embedding table | the snapshot's own BF16 bytes, or decoded; packed as well when it is also the head |
//!
//! A format without a kernel of its own is dequantized to F32 and multiplied as such (declared `Emulated`).

use std::sync::Arc;

use miles_core::digest::Digest;
use miles_core::format::{
    BlockScales, FormatId, Nvfp4, Partition, QuantizeSpec, QuantizedTensor, TensorLayout, builtin_rule,
};
use miles_core::network::{ParamId, Role};
use miles_core::policy::{PolicyStamp, PolicyTensor, Snapshot};
use miles_core::tensor::{DenseTensor, Dtype};
use miles_core::{Error, Result};

use super::error::OperationError;
use super::rope::RopeTable;
use super::{BACKEND, Context};
use crate::kernel::decode::bf16;
use crate::kernel::pack::PackedWeight;

/// The prepared tensors of one policy version.
#[derive(Debug)]
pub struct PolicyWeights {
    snapshot: Arc<Snapshot>,
    prepared: Vec<Prepared>,
    rope: RopeTable,
}

/// One tensor in the form that its operations read.
#[derive(Debug)]
pub(super) enum Prepared {
    Vector(Vec<f32>),
    Matrix(Matrix),
    Table(Table),
    TableAndMatrix(Table, Matrix),
}

/// A packed matrix `[out, in]` and what its activations must be.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The weight, packed for the kernels.
    pub packed: Arc<PackedWeight>,
    /// What the matrix multiplies.
    pub operand: Operand,
}

/// What a matrix multiplies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The activation's values.
    Values,
    /// Its quantized copy, by the kernel of that format.
    Codes(FormatId),
    /// Its quantized copy dequantized again: a format without a kernel.
    Dequantized(FormatId),
}

/// Rows of an embedding table `[vocab, hidden]`.
#[derive(Clone, Debug)]
pub enum Table {
    /// The snapshot's own BF16 bytes.
    Bf16(DenseTensor),
    /// The decoded values of any other table.
    Decoded(Arc<[f32]>),
}

impl PolicyWeights {
    /// Prepares every tensor of a snapshot. Matrices that are packed already (for another part of this process) are
    /// shared with it.
    ///
    /// # Errors
    /// If a tensor's format cannot be decoded, its shards have scales of their own, or it has more outer scales than its
    /// product takes.
    pub fn new(snapshot: &Arc<Snapshot>, context: &Context) -> Result<Self> {
        let network = snapshot.network();
        let tied = network.head.weight == network.embedding;
        let mut prepared = Vec::with_capacity(network.parameters.len());
        for id in network.ids() {
            let parameter = network.parameter(id);
            let (tensor, digest) = (snapshot.tensor(id), snapshot.tensor_digest(id));
            if let PolicyTensor::Quantized(quantized) = tensor.as_ref() {
                refuse_scales(&parameter.name, parameter.rows_cols(), quantized.spec(), quantized.layout())?;
            }
            prepared.push(match parameter.role {
                Role::Norm | Role::Bias | Role::RouterBias => Prepared::Vector(values(tensor, context)?),
                Role::Embedding if tied => {
                    Prepared::TableAndMatrix(table(tensor, context)?, matrix(tensor, digest, context)?)
                }
                Role::Embedding => Prepared::Table(table(tensor, context)?),
                _ => Prepared::Matrix(matrix(tensor, digest, context)?),
            });
        }
        let rope = RopeTable::new(&network.config.rope);
        Ok(PolicyWeights { snapshot: Arc::clone(snapshot), prepared, rope })
    }

    /// Version and digest.
    #[must_use]
    pub fn stamp(&self) -> PolicyStamp {
        self.snapshot.stamp()
    }

    /// What was prepared.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// A tensor in the form that its operations read.
    pub(super) fn prepared(&self, id: ParamId) -> &Prepared {
        &self.prepared[id.index()]
    }

    /// A norm weight or bias.
    ///
    /// # Errors
    /// If the tensor is a matrix.
    pub fn vector(&self, id: ParamId) -> Result<&[f32], OperationError> {
        match &self.prepared[id.index()] {
            Prepared::Vector(values) => Ok(values),
            _ => Err(self.role_error(id, "vector")),
        }
    }

    /// The weight of a linear layer.
    ///
    /// # Errors
    /// If the tensor is a vector or an embedding table that is not the head.
    pub fn matrix(&self, id: ParamId) -> Result<&Matrix, OperationError> {
        match &self.prepared[id.index()] {
            Prepared::Matrix(matrix) | Prepared::TableAndMatrix(_, matrix) => Ok(matrix),
            _ => Err(self.role_error(id, "weight of a linear layer")),
        }
    }

    /// The embedding table.
    ///
    /// # Errors
    /// If the tensor is another one.
    pub fn table(&self, id: ParamId) -> Result<&Table, OperationError> {
        match &self.prepared[id.index()] {
            Prepared::Table(table) | Prepared::TableAndMatrix(table, _) => Ok(table),
            _ => Err(self.role_error(id, "embedding table")),
        }
    }

    /// Rotary angles of the model.
    #[must_use]
    pub fn rope(&self) -> &RopeTable {
        &self.rope
    }

    fn role_error(&self, id: ParamId, used_as: &'static str) -> OperationError {
        OperationError::Role { tensor: self.snapshot.network().parameter(id).name.clone(), used_as }
    }
}

impl Table {
    /// Writes row `row` of the table into `into`, whose length is the table's width.
    pub(crate) fn read_row(&self, row: usize, into: &mut [f32]) {
        let cols = into.len();
        match self {
            Table::Decoded(values) => into.copy_from_slice(&values[row * cols..][..cols]),
            Table::Bf16(tensor) => {
                let bytes = &tensor.bytes()[row * cols * 2..][..cols * 2];
                for (value, bytes) in into.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = bf16(u16::from_le_bytes(*bytes));
                }
            }
        }
    }
}

/// The values of any tensor as f32.
fn values(tensor: &PolicyTensor, context: &Context) -> Result<Vec<f32>> {
    match tensor {
        PolicyTensor::Dense(dense) => Ok(dense.to_f32()),
        PolicyTensor::Quantized(quantized) => context.quantizer().dequantize(quantized),
    }
}

fn table(tensor: &PolicyTensor, context: &Context) -> Result<Table> {
    match tensor {
        PolicyTensor::Dense(dense) if dense.dtype() == Dtype::Bf16 => Ok(Table::Bf16(dense.clone())),
        other => Ok(Table::Decoded(values(other, context)?.into())),
    }
}

fn matrix(tensor: &PolicyTensor, digest: Digest, context: &Context) -> Result<Matrix> {
    let operand = match tensor {
        PolicyTensor::Dense(_) => Operand::Values,
        PolicyTensor::Quantized(quantized) => operand_of(quantized.format()),
    };
    let packed = context.packed(digest, || match tensor {
        PolicyTensor::Dense(dense) => Ok(pack_dense(dense, context)),
        PolicyTensor::Quantized(quantized) => pack_quantized(quantized, context),
    })?;
    Ok(Matrix { packed, operand })
}

/// How a linear layer with a weight of this format reads its activation.
fn operand_of(format: &FormatId) -> Operand {
    if has_kernel(format) { Operand::Codes(format.clone()) } else { Operand::Dequantized(format.clone()) }
}

/// Whether the kernels multiply codes of this format as they are: those of `nvfp4`, and of `mxfp8` and `fp8-block` with
/// all their built-in variants, which differ in how a scale is chosen and not in what codes and scales mean.
#[must_use]
pub fn has_kernel(format: &FormatId) -> bool {
    has_nvfp4_product(format) || has_eight_bit_kernel(format)
}

/// Whether the format is `mxfp8`, `fp8-block` or a built-in variant of one.
pub(crate) fn has_eight_bit_kernel(format: &FormatId) -> bool {
    ["mxfp8", "fp8-block"].contains(&format.family()) && builtin_rule(format).is_some()
}

/// Refuses a weight whose scales its product does not take: shards with scales of their own, since products here know no
/// cut (where the cut changes neither codes nor scales, they are those of the whole), and any number of outer scales but
/// one where the kernel multiplies by one.
///
/// # Errors
/// [`Error::Unsupported`] that names the tensor.
pub(crate) fn refuse_scales(
    tensor: &str,
    (rows, cols): (usize, usize),
    spec: QuantizeSpec,
    layout: &TensorLayout,
) -> Result<()> {
    let (format, scope, partition) = (spec.format.clone(), spec.scope, spec.partition);
    let (operation, why) = if has_scales_of_shards((rows, cols), spec, layout)? {
        let why = "its products know no cut, and here each shard has scales of its own";
        (format!("tensor `{tensor}` in format `{format}`, cut as {partition}"), why.to_owned())
    } else if has_nvfp4_product(&format) && layout.outer_len != 1 {
        let why = format!("its kernel takes one outer scale per weight, and here are {}", layout.outer_len);
        (format!("tensor `{tensor}` in format `{format}`, scope {scope}"), why)
    } else {
        return Ok(());
    };
    Err(Error::Unsupported { operation, backend: BACKEND.to_owned(), why })
}

/// Whether a `[rows, cols]` weight is cut, and the cut changes its scales.
fn has_scales_of_shards((rows, cols): (usize, usize), spec: QuantizeSpec, layout: &TensorLayout) -> Result<bool> {
    if spec.partition.is_whole() {
        return Ok(false);
    }
    let uncut = spec.with_partition(Partition::WHOLE);
    let of_whole = builtin_rule(&uncut.format).map(|rule| rule.layout(rows, cols, &uncut)).transpose()?;
    Ok(layout.outer_len != 0 || of_whole.is_some_and(|of_whole| of_whole != *layout))
}

/// Whether codes, block scales and outer scales of this format mean what those of `nvfp4` do: so for every variant that
/// chooses them otherwise, but not for one that rotates the values that they stand for.
fn has_nvfp4_product(format: &FormatId) -> bool {
    Nvfp4::of(format).is_some_and(|rule| rule.hadamard().is_none())
}

fn pack_dense(dense: &DenseTensor, context: &Context) -> PackedWeight {
    let (rows, cols) = match dense.shape() {
        [rows, cols] => (*rows, *cols),
        other => (1, other.iter().product()),
    };
    match dense.dtype() {
        Dtype::Bf16 => {
            let bits: Vec<u16> = dense.bytes().as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
            PackedWeight::from_bf16(context.compute(), &bits, rows, cols)
        }
        Dtype::F16 | Dtype::F32 => PackedWeight::from_f32(context.compute(), &dense.to_f32(), rows, cols),
    }
}

/// Call it after [`refuse_scales`].
fn pack_quantized(tensor: &QuantizedTensor, context: &Context) -> Result<PackedWeight> {
    let (rows, cols, compute) = (tensor.rows(), tensor.cols(), context.compute());
    let (format, codes) = (tensor.format(), tensor.codes());
    Ok(match (tensor.scales(), tensor.outer()) {
        (BlockScales::U8(scales), [outer]) if has_nvfp4_product(format) => {
            PackedWeight::from_nvfp4(compute, codes, scales, *outer, rows, cols)
        }
        (BlockScales::U8(scales), []) if has_eight_bit_kernel(format) => {
            PackedWeight::from_mxfp8(compute, codes, scales, rows, cols)
        }
        (BlockScales::F32(scales), []) if has_eight_bit_kernel(format) => {
            PackedWeight::from_fp8_block(compute, codes, scales, FP8_TILE_ROWS, rows, cols)
        }
        _ => PackedWeight::from_f32(compute, &context.quantizer().dequantize(tensor)?, rows, cols),
    })
}

/// Rows of a weight that share one block-FP8 scale.
pub(crate) const FP8_TILE_ROWS: usize = 128;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use miles_core::format::{Cut, ScaleScope};

    use super::*;

    const SHAPE: (usize, usize) = (256, 256);

    /// The refusal's text; empty where the weight is taken.
    fn refusal(format: &str, scope: ScaleScope, partition: Partition, shape: (usize, usize)) -> String {
        let format = FormatId::new(format).unwrap();
        let spec = QuantizeSpec::weight(format.clone()).with_scope(scope).with_partition(partition);
        let layout = builtin_rule(&format).unwrap().layout(shape.0, shape.1, &spec).unwrap();
        match refuse_scales("experts.down", shape, spec, &layout) {
            Ok(()) => String::new(),
            Err(error @ Error::Unsupported { .. }) => error.to_string(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_kernel_that_multiplies_by_one_outer_scale_is_given_one() {
        for format in ["nvfp4", "nvfp4/te-2.13", "nvfp4/zero-scale-zero"] {
            assert_eq!(refusal(format, ScaleScope::Tensor, Partition::WHOLE, SHAPE), "");
            // A row scope without rows has no outer scale at all.
            for shape in [SHAPE, (0, 256)] {
                let text = refusal(format, ScaleScope::Row, Partition::WHOLE, shape);
                let count = format!("here are {}", shape.0);
                assert!(
                    ["`experts.down`", format, "scope row", &count].iter().all(|part| text.contains(part)),
                    "{text}"
                );
            }
        }
        // Without a kernel, the values are multiplied.
        assert_eq!(refusal("nvfp4/hadamard", ScaleScope::Row, Partition::WHOLE, SHAPE), "");
    }

    #[test]
    fn shards_are_refused_where_the_cut_changes_scales_and_only_there() {
        for cut in [Cut::Rows, Cut::Cols] {
            let two = Partition::new(cut, 2).unwrap();
            for partition in [two, two.shard(1).unwrap()] {
                for format in ["nvfp4", "nvfp4/te-2.13", "nvfp4/hadamard"] {
                    let text = refusal(format, ScaleScope::Tensor, partition, SHAPE);
                    assert!(text.contains("`experts.down`") && text.contains("scales of its own"), "{text}");
                }
                for format in ["mxfp8", "fp8-block", "fp8-block/power-of-two"] {
                    assert_eq!(refusal(format, ScaleScope::Block, partition, SHAPE), "", "{format}, {partition}");
                }
            }
        }
    }
}
