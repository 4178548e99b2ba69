//! What the engine and the trainer of one process share: threads, the quantizer, and packed weights.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use miles_core::Result;
use miles_core::digest::Digest;
use miles_core::plugin::Quantizer;

use super::{OperationError, threads};
use crate::kernel::Compute;
use crate::kernel::pack::PackedWeight;

/// Where operations run, what quantizes their activations, and which packed weights exist.
///
/// Cloning shares all three. The engine and the trainer of one process hold clones of one context, so that a policy
/// version that both use is packed once.
#[derive(Clone)]
pub struct Context {
    compute: Compute,
    quantizer: Arc<dyn Quantizer>,
    packed: Arc<PackedCache>,
}

impl Context {
    /// A context with no packed weights yet.
    #[must_use]
    pub fn new(compute: Compute, quantizer: Arc<dyn Quantizer>) -> Self {
        Context { compute, quantizer, packed: Arc::default() }
    }

    /// The same packed weights and quantizer on other threads.
    #[must_use]
    pub fn with_compute(&self, compute: Compute) -> Self {
        Context { compute, ..self.clone() }
    }

    /// The same packed weights, quantizer and instruction set on `threads` threads of its own (at least one).
    ///
    /// # Errors
    /// If they are more than [`MAX_THREADS`](miles_core::plugin::limits::MAX_THREADS), or the operating system refuses
    /// them.
    pub fn with_threads(&self, threads: usize) -> Result<Self, OperationError> {
        Ok(self.with_compute(Compute::from_parts(self.compute.isa(), threads::pool(threads)?)))
    }

    /// The same packed weights and threads with another quantizer.
    #[must_use]
    pub fn with_quantizer(&self, quantizer: Arc<dyn Quantizer>) -> Self {
        Context { quantizer, ..self.clone() }
    }

    /// Instruction set and thread pool.
    #[must_use]
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// What quantizes activations (weights are quantized only when a version is published).
    #[must_use]
    pub fn quantizer(&self) -> &dyn Quantizer {
        self.quantizer.as_ref()
    }

    /// The packed form of the tensor with this digest: the one in use, or the one that `pack` makes.
    pub(crate) fn packed(
        &self,
        digest: Digest,
        pack: impl FnOnce() -> Result<PackedWeight>,
    ) -> Result<Arc<PackedWeight>> {
        self.packed.find_or_pack(digest, pack)
    }
}

/// Packed weights in use, by the digest of the tensor that they are packed from.
#[derive(Default)]
struct PackedCache {
    by_digest: Mutex<HashMap<Digest, Weak<PackedWeight>>>,
}

impl PackedCache {
    fn find_or_pack(&self, digest: Digest, pack: impl FnOnce() -> Result<PackedWeight>) -> Result<Arc<PackedWeight>> {
        let mut by_digest = self.by_digest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = by_digest.get(&digest).and_then(Weak::upgrade) {
            return Ok(found);
        }
        by_digest.retain(|_, weak| weak.strong_count() > 0);
        let packed = Arc::new(pack()?);
        by_digest.insert(digest, Arc::downgrade(&packed));
        Ok(packed)
    }
}
