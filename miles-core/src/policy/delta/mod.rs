//! [`Delta`]: what of a version's bytes differs from another version's.
//!
//! ```text
//! Delta::between(base, new, block_bytes) -> encode -> bytes -> decode -> apply(base) = new, to the bit
//! ```
//!
//! The bytes of every part of every tensor are compared block by block; runs of changed blocks are carried. The network
//! has one parameter for tied embeddings and head, so their bytes are carried once. A delta names the stamps of both
//! versions: it applies to its base alone, and the result has the digest announced or is refused.

mod decode;
mod encode;
mod error;
mod part;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{PolicyStamp, PolicyTensor, Snapshot};
use crate::digest::Digest;
pub use error::DeltaError;
pub use part::DeltaPart;
use part::{changed_runs, part_bytes, same_form, with_bytes};

/// The blocks of a version that differ from its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    base: PolicyStamp,
    stamp: PolicyStamp,
    block_bytes: u32,
    tensors: Vec<TensorDelta>,
}

/// One changed tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TensorDelta {
    name: String,
    /// Digest of the new tensor.
    digest: Digest,
    parts: Vec<PartDelta>,
}

/// One changed part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PartDelta {
    part: DeltaPart,
    /// Bytes of the whole new part.
    length: u64,
    runs: Vec<Run>,
}

/// Changed bytes that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    offset: u64,
    bytes: Vec<u8>,
}

impl Delta {
    /// What differs from `base` in `new`, in blocks of `block_bytes` bytes (the last one of a part may be shorter).
    ///
    /// # Errors
    /// [`DeltaError::OtherMap`] and [`DeltaError::OtherForm`] when the two are no versions of one policy;
    /// [`DeltaError::NoBlocks`] for blocks of 0 bytes.
    pub fn between(base: &Snapshot, new: &Snapshot, block_bytes: u32) -> Result<Self, DeltaError> {
        if block_bytes == 0 {
            return Err(DeltaError::NoBlocks);
        }
        if base.map().digest() != new.map().digest() {
            return Err(DeltaError::OtherMap {
                base: base.stamp().version,
                base_map: base.map().digest(),
                new: new.stamp().version,
                new_map: new.map().digest(),
            });
        }
        let mut tensors = Vec::new();
        for id in new.network().ids() {
            let name = &new.network().parameter(id).name;
            // Maps of one digest are of the same names, but not in one order by necessity.
            let other_form = || DeltaError::OtherForm { tensor: name.clone() };
            let base_id = base.network().find(name).ok_or_else(other_form)?;
            let (old, tensor) = (base.tensor(base_id), new.tensor(id));
            if !same_form(old, tensor) {
                return Err(other_form());
            }
            let parts = changed_parts(old, tensor, block_bytes as usize);
            if !parts.is_empty() {
                tensors.push(TensorDelta { name: name.clone(), digest: new.tensor_digest(id), parts });
            }
        }
        Ok(Delta { base: base.stamp(), stamp: new.stamp(), block_bytes, tensors })
    }

    /// The new version, made from its base. Tensors without a changed byte are shared with the base.
    ///
    /// # Errors
    /// [`DeltaError`] when `base` is not the version that the delta starts from, the delta does not fit its tensors, or
    /// a digest is not the one announced.
    pub fn apply(&self, base: &Snapshot) -> Result<Snapshot, DeltaError> {
        if base.stamp() != self.base {
            return Err(DeltaError::WrongBase { expected: self.base, found: base.stamp() });
        }
        let network = base.network();
        let mut tensors: Vec<_> = network.ids().map(|id| Arc::clone(base.tensor(id))).collect();
        let mut digests: Vec<_> = network.ids().map(|id| base.tensor_digest(id)).collect();
        let mut seen = vec![false; tensors.len()];
        for changed in &self.tensors {
            let tensor = || changed.name.clone();
            let index = network.find(&changed.name).ok_or_else(|| DeltaError::NoSuchTensor { tensor: tensor() })?;
            if std::mem::replace(&mut seen[index.index()], true) {
                return Err(DeltaError::Doubled { tensor: tensor(), part: None });
            }
            let made = with_bytes(&tensors[index.index()], changed)?;
            let (expected, found) = (changed.digest, made.digest());
            if found != expected {
                return Err(DeltaError::Tensor { tensor: tensor(), expected, found });
            }
            tensors[index.index()] = Arc::new(made);
            digests[index.index()] = found;
        }
        let made = Snapshot::sealed(self.stamp.version, Arc::clone(network), Arc::clone(base.map()), tensors, digests);
        let made = made.map_err(|error| DeltaError::Unsealed(Box::new(error)))?;
        if made.stamp() != self.stamp {
            return Err(DeltaError::Policy { expected: self.stamp, found: made.stamp() });
        }
        Ok(made)
    }

    /// The version that it starts from.
    #[must_use]
    pub fn base(&self) -> PolicyStamp {
        self.base
    }

    /// The version that it makes.
    #[must_use]
    pub fn stamp(&self) -> PolicyStamp {
        self.stamp
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Every changed tensor, with the bytes carried for it, in the network's order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, u64)> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.parts.iter().map(PartDelta::bytes).sum()))
    }

    /// Bytes of all changed blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors().map(|(_, bytes)| bytes).sum()
    }
}

impl PartDelta {
    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes.len() as u64).sum()
    }
}

/// Bytes of the blocks of `new` that differ from `base`; all of them without a base, and of a tensor of another form.
pub(super) fn changed_bytes(base: Option<&Snapshot>, new: &Snapshot, block_bytes: usize) -> u64 {
    let of_tensor = |id| {
        let name = &new.network().parameter(id).name;
        let tensor = new.tensor(id);
        let old = base.and_then(|base| Some(base.tensor(base.network().find(name)?)));
        match old.filter(|old| same_form(old, tensor)) {
            None => tensor.bytes() as u64,
            Some(old) => changed_parts(old, tensor, block_bytes).iter().map(PartDelta::bytes).sum(),
        }
    };
    new.network().ids().map(of_tensor).sum()
}

fn changed_parts(old: &Arc<PolicyTensor>, new: &Arc<PolicyTensor>, block_bytes: usize) -> Vec<PartDelta> {
    if Arc::ptr_eq(old, new) {
        return Vec::new();
    }
    let (old, new) = (part_bytes(old), part_bytes(new));
    let mut parts = Vec::new();
    for ((part, before), (_, after)) in old.iter().zip(&new) {
        if before != after {
            parts.push(PartDelta {
                part: *part,
                length: after.len() as u64,
                runs: changed_runs(before, after, block_bytes),
            });
        }
    }
    parts
}
