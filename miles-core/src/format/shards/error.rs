//! [`ShardError`]: why shards cannot be made, put together or taken apart.

use crate::format::{Axis, FormatError, FormatId, Partition};

/// Why a tensor cannot be split into shards, or shards cannot be joined to one tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// There is nothing to join.
    #[error("tensor {tensor}: there are no shards to join")]
    NoShards {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor that is not one shard of a cut matrix stands among shards.
    #[error("tensor {tensor}: number {position} of the tensors to join is no shard (partition {partition})")]
    NotAShard {
        /// The tensor's name.
        tensor: String,
        /// Its place among the given tensors.
        position: usize,
        /// Its partition.
        partition: Partition,
    },
    /// Something that all shards of a tensor have in common differs.
    #[error("tensor {tensor}: {what} of shard {shard} is {found}, that of the first one given is {expected}")]
    Differs {
        /// The tensor's name.
        tensor: String,
        /// Number of the shard.
        shard: u16,
        /// What differs.
        what: &'static str,
        /// That of the first shard.
        expected: String,
        /// That of this shard.
        found: String,
    },
    /// A shard is missing.
    #[error("tensor {tensor}: shard {shard} of {shards} is missing")]
    Missing {
        /// The tensor's name.
        tensor: String,
        /// Number of the shard.
        shard: u16,
        /// Number of shards.
        shards: u16,
    },
    /// A shard is given twice.
    #[error("tensor {tensor}: shard {shard} of {shards} is there twice")]
    Twice {
        /// The tensor's name.
        tensor: String,
        /// Number of the shard.
        shard: u16,
        /// Number of shards.
        shards: u16,
    },
    /// A tensor that holds no shards to take apart: not cut, or one shard itself.
    #[error("tensor {tensor}: partition {partition} is not made of shards")]
    NotJoined {
        /// The tensor's name.
        tensor: String,
        /// Its partition.
        partition: Partition,
    },
    /// A column-wise copy: shards of one are quantized from the source, not cut from codes.
    #[error("tensor {tensor}: codes along the {axis} axis are neither split nor joined; quantize the source's shards")]
    BlockAxis {
        /// The tensor's name.
        tensor: String,
        /// The block axis.
        axis: Axis,
    },
    /// The format's layout of the whole is not made of the layouts of its shards.
    #[error("tensor {tensor}: the {part} of a {format} tensor in partition {partition} are not made of its shards'")]
    NotDivisible {
        /// The tensor's name.
        tensor: String,
        /// The format.
        format: FormatId,
        /// The partition.
        partition: Partition,
        /// `codes`, `scales` or `outer`.
        part: &'static str,
    },
    /// The format refuses the shard or the whole.
    #[error(transparent)]
    Format(#[from] FormatError),
}
