//! What can go wrong with the difference between two versions.

use super::DeltaPart;
use crate::digest::Digest;
use crate::format::FormatError;
use crate::policy::{PolicyError, PolicyStamp, PolicyVersion};

/// Why a delta cannot be made, read or applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// Two versions of different precision maps.
    #[error("version {new} is of the precision map {new_map}, its base, version {base}, of {base_map}")]
    OtherMap {
        /// Base.
        base: PolicyVersion,
        /// Its map.
        base_map: Digest,
        /// New version.
        new: PolicyVersion,
        /// Its map.
        new_map: Digest,
    },
    /// A tensor that has another format, number type, axis, scope, cut or size than in the base.
    #[error("`{tensor}` has another form than in the base")]
    OtherForm {
        /// Tensor.
        tensor: String,
    },
    /// Blocks of no bytes.
    #[error("blocks have to be of at least one byte")]
    NoBlocks,
    /// The version at hand is not the one that the delta starts from.
    #[error("the delta starts from {expected}, found {found}")]
    WrongBase {
        /// Stamp of the delta's base.
        expected: PolicyStamp,
        /// Stamp of the version at hand.
        found: PolicyStamp,
    },
    /// A tensor that the base does not have.
    #[error("the base has no tensor `{tensor}`")]
    NoSuchTensor {
        /// Tensor.
        tensor: String,
    },
    /// A part that the tensor does not have.
    #[error("`{tensor}` has no {part}")]
    NoSuchPart {
        /// Tensor.
        tensor: String,
        /// Part.
        part: DeltaPart,
    },
    /// A tensor, or a part of one, that is there twice.
    #[error("`{tensor}`{} is in the delta twice", part.map(|part| format!(", {part},")).unwrap_or_default())]
    Doubled {
        /// Tensor.
        tensor: String,
        /// Part, where that is what is doubled.
        part: Option<DeltaPart>,
    },
    /// Bytes that reach into others of the delta, or beyond the part.
    #[error("`{tensor}`, {part}: {bytes} bytes at {offset} {why}, of {part_bytes}")]
    BadRun {
        /// Tensor.
        tensor: String,
        /// Part.
        part: DeltaPart,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Bytes of the part.
        part_bytes: u64,
        /// What is wrong with them.
        why: &'static str,
    },
    /// A part of another size than in the base, which only amax values may have.
    #[error("`{tensor}`, {part}: {found} bytes, the base has {expected}")]
    PartLength {
        /// Tensor.
        tensor: String,
        /// Part.
        part: DeltaPart,
        /// Bytes in the base.
        expected: u64,
        /// Bytes announced.
        found: u64,
    },
    /// Parts that make no tensor of their format.
    #[error(transparent)]
    Format(Box<FormatError>),
    /// A tensor that does not come out as announced.
    #[error("`{tensor}` comes out with the digest {found}, announced was {expected}")]
    Tensor {
        /// Tensor.
        tensor: String,
        /// Digest announced.
        expected: Digest,
        /// Digest of the result.
        found: Digest,
    },
    /// A policy that does not come out as announced.
    #[error("the policy comes out as {found}, announced was {expected}")]
    Policy {
        /// Stamp announced.
        expected: PolicyStamp,
        /// Stamp of the result.
        found: PolicyStamp,
    },
    /// Tensors that make no policy of the network.
    #[error(transparent)]
    Unsealed(Box<PolicyError>),
    /// Encoded bytes that end too early.
    #[error("the delta ends within {what}: {needed} bytes needed, {left} left")]
    Truncated {
        /// What is cut.
        what: &'static str,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes left.
        left: u64,
    },
    /// A count or size beyond what any policy has.
    #[error("the delta's {what} is {actual}, more than the limit of {limit}")]
    OverLimit {
        /// What was counted.
        what: &'static str,
        /// Claimed.
        actual: u64,
        /// Most that is accepted.
        limit: u64,
    },
    /// Encoded bytes that mean nothing.
    #[error("not a delta: {what} is {found}")]
    BadValue {
        /// What is wrong.
        what: &'static str,
        /// What stands there.
        found: String,
    },
    /// Encoded bytes that changed on the way.
    #[error("the delta's bytes have the digest {found}, written was {expected}")]
    Damaged {
        /// Digest at the end of the bytes.
        expected: Digest,
        /// Digest of the bytes before it.
        found: Digest,
    },
}
