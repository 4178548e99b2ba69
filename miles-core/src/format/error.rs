//! [`FormatError`]: what can be wrong with a source, with quantized parts, or with a request.

use super::{Axis, FormatId, Partition, ScaleKind, ScaleScope, id};

/// Why a tensor cannot be quantized, assembled, decoded or laid out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A source value is NaN or infinite and the spec does not allow it.
    #[error("tensor {tensor}: value {value:?} at row {row}, column {column} (block {block}) is not finite")]
    NonFinite {
        /// The tensor's name.
        tensor: String,
        /// Row of the value.
        row: usize,
        /// Column of the value.
        column: usize,
        /// Index of its block along the block axis.
        block: usize,
        /// The value.
        value: f32,
    },
    /// A source declared as BF16 holds a value that BF16 cannot.
    #[error("tensor {tensor}: value {value:e} at row {row}, column {column} is not a BF16 value, as its dtype says")]
    NotBf16 {
        /// The tensor's name.
        tensor: String,
        /// Row of the value.
        row: usize,
        /// Column of the value.
        column: usize,
        /// The value.
        value: f32,
    },
    /// The number of source values is not rows times columns.
    #[error("tensor {tensor}: {found} values cannot be [{rows}, {cols}]")]
    SourceLength {
        /// The tensor's name.
        tensor: String,
        /// Declared rows.
        rows: usize,
        /// Declared columns.
        cols: usize,
        /// Values found.
        found: usize,
    },
    /// Two elements share a byte, so the length along the block axis has to be even.
    #[error("format {format} packs two elements per byte along the {axis} axis: [{rows}, {cols}] is odd there")]
    OddLength {
        /// The format.
        format: FormatId,
        /// The block axis.
        axis: Axis,
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
    },
    /// A tensor claims more rows or columns than any tensor has, which it can only do by having no elements.
    #[error("tensor {tensor}: [{rows}, {cols}] has more than {limit} rows or columns")]
    Extent {
        /// The tensor's name.
        tensor: String,
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
        /// The most of either.
        limit: usize,
    },
    /// Rows that end in a part of a group, for a layout of checkpoints that has no place for it.
    #[error("checkpoints hold {format} in whole groups: [{rows}, {cols}] ends in a part of one")]
    PartialGroup {
        /// Format.
        format: FormatId,
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
    /// The format transforms whole blocks, so the length along the block axis has to be a multiple of the block.
    #[error("format {format} rotates blocks of {block} along the {axis} axis: [{rows}, {cols}] ends in a part of one")]
    PartialBlock {
        /// The format.
        format: FormatId,
        /// The block axis.
        axis: Axis,
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
        /// Elements of a block.
        block: usize,
    },
    /// Two choices of a format contradict each other.
    #[error("{format} cannot be a format: {why}")]
    Conflict {
        /// The name that the combination would have.
        format: FormatId,
        /// The contradiction.
        why: &'static str,
    },
    /// The size of a buffer does not fit in `usize`.
    #[error("format {format}: a [{rows}, {cols}] tensor is too large to address")]
    TooLarge {
        /// The format.
        format: FormatId,
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
    },
    /// A rule was handed the spec or the tensor of another format.
    #[error("the rule of format {rule} was asked to handle format {requested}")]
    FormatMismatch {
        /// The rule's format.
        rule: FormatId,
        /// The other format.
        requested: FormatId,
    },
    /// No built-in rule has this name; the caller has to pass the rule.
    #[error("format {format} is not built in (built in: {})", id::join(known))]
    UnknownFormat {
        /// The name.
        format: FormatId,
        /// The built-in names.
        known: Vec<FormatId>,
    },
    /// A text cannot name a format.
    #[error("{name:?} cannot name a format: {why}")]
    InvalidFormatId {
        /// The text.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// Tensors that are to share an outer scale have different widths.
    #[error("tensor {tensor} has {found} columns and cannot be quantized jointly with {first}, which has {expected}")]
    JointWidth {
        /// The tensor that differs.
        tensor: String,
        /// The first tensor of the group.
        first: String,
        /// Columns of the first tensor.
        expected: usize,
        /// Columns found.
        found: usize,
    },
    /// A matrix cut into 0 shards.
    #[error("a matrix cannot be cut into 0 shards")]
    NoShards,
    /// A shard number beyond the cut.
    #[error("there is no shard {shard} of {shards}")]
    NoSuchShard {
        /// The number asked for.
        shard: u16,
        /// Number of shards.
        shards: u16,
    },
    /// The cut does not give equal shards of whole blocks.
    #[error(
        "format {format}: {length} along the cut of partition {partition} are not equal shards of blocks of {block}"
    )]
    UnevenShards {
        /// The format.
        format: FormatId,
        /// The cut.
        partition: Partition,
        /// Length of the tensor along the cut.
        length: usize,
        /// Length of one block along the cut.
        block: usize,
    },
    /// The format's scales cannot have this extent.
    #[error("format {format} has no scale per {scope}: {why}")]
    Scope {
        /// The format.
        format: FormatId,
        /// The extent asked for.
        scope: ScaleScope,
        /// The rule it breaks.
        why: &'static str,
    },
    /// A part of a quantized tensor has the wrong number of elements.
    #[error("tensor {tensor} ({format}): {part} has {found} elements, expected {expected}")]
    PartLength {
        /// The tensor's name.
        tensor: String,
        /// Its format.
        format: FormatId,
        /// `codes`, `scales`, `outer` or `amax`.
        part: &'static str,
        /// Elements by the format's layout.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// Block scales are of another number format than the tensor's format has.
    #[error("tensor {tensor} ({format}): block scales are {found}, expected {expected}")]
    ScaleStorage {
        /// The tensor's name.
        tensor: String,
        /// Its format.
        format: FormatId,
        /// What the format stores.
        expected: ScaleKind,
        /// `U8` or `F32`.
        found: &'static str,
    },
    /// A one-byte block scale is NaN.
    #[error("tensor {tensor}: block scale at scale row {row}, block {block} is NaN (byte {byte:#04x})")]
    NanScale {
        /// The tensor's name.
        tensor: String,
        /// Row of the scale matrix.
        row: usize,
        /// Column of the scale matrix.
        block: usize,
        /// The byte.
        byte: u8,
    },
    /// An `f32` block scale is not a finite number.
    #[error("tensor {tensor}: block scale at scale row {row}, block {block} is {value:?}")]
    NonFiniteScale {
        /// The tensor's name.
        tensor: String,
        /// Row of the scale matrix.
        row: usize,
        /// Column of the scale matrix.
        block: usize,
        /// The value.
        value: f32,
    },
    /// An outer decode scale is not finite and non-negative, or an amax is NaN or negative.
    #[error("tensor {tensor}: {part}[{index}] is {value:?}")]
    BadOuter {
        /// The tensor's name.
        tensor: String,
        /// `outer` or `amax`.
        part: &'static str,
        /// Its index.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A scale matrix claims more rows or blocks than any tensor has.
    #[error("{layout} scale buffer of [{rows}, {blocks}] has more than {limit} rows or blocks")]
    ScaleExtent {
        /// Name of the layout.
        layout: &'static str,
        /// Scale rows.
        rows: usize,
        /// Scales per row.
        blocks: usize,
        /// The most of either.
        limit: usize,
    },
    /// A scale buffer has the wrong number of elements for the layout conversion asked for.
    #[error("{layout} scale buffer of [{rows}, {blocks}] has {found} elements, expected {expected}")]
    ScaleBufferLength {
        /// Name of the layout.
        layout: &'static str,
        /// Scale rows.
        rows: usize,
        /// Scales per row.
        blocks: usize,
        /// Elements by the layout.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// A layout of one-byte scales was asked of a format whose block scales are F32, or that has none.
    #[error("format {format} has no one-byte block scales, which the {layout} layout is for")]
    LayoutOfF32 {
        /// The format.
        format: FormatId,
        /// Name of the layout.
        layout: &'static str,
    },
    /// A scale that is to be stored as an exponent is not a power of two.
    #[error("scale at scale row {row}, block {block} is {value:e}, which is not a power of two from 2^-127 to 2^127")]
    NotAPowerOfTwo {
        /// Row of the scale matrix.
        row: usize,
        /// Column of the scale matrix.
        block: usize,
        /// The value.
        value: f32,
    },
    /// A 3-D stack of matrices cannot have this shape.
    #[error("stacked tensor {tensor} cannot be {shape:?}: {why}")]
    StackShape {
        /// The tensor's name.
        tensor: String,
        /// The shape, as stored.
        shape: [usize; 3],
        /// What is wrong.
        why: &'static str,
    },
    /// The projections of a stack have different numbers of experts.
    #[error("projection {projection} has {found} experts, the first one has {expected}")]
    ExpertCount {
        /// Index of the projection that differs.
        projection: usize,
        /// Experts of the first projection.
        expected: usize,
        /// Experts found.
        found: usize,
    },
    /// Quantizing tensors together gave another number of tensors.
    #[error("quantizing {expected} tensors together gave {found}")]
    JointResults {
        /// Tensors passed in.
        expected: usize,
        /// Tensors returned.
        found: usize,
    },
}
