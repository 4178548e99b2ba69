//! Keys and values of the sequences in flight.
//!
//! ```text
//! prompt run      positions 0 .. P        written by the prompt's one prefill, then read by all its completions
//! completion run  positions P .. P + n    one per running completion
//! ```
//!
//! Attention reads a completion's keys in absolute order, the prompt's run and then its own, so the bits are those of
//! one unshared run. A cache belongs to one request: nothing is kept between requests, and there is no prefix cache
//! across them. A run belongs to the policy that computed it: whoever writes or reads says which policy computes, and a
//! run of another one is not there for it, so old keys cannot be used even by mistake.

use miles_core::plugin::{ActivationDtype, RolloutError};
use miles_core::policy::PolicyStamp;

/// A run in a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunId(usize);

/// Runs of keys and values, in the precision of the activations.
#[derive(Debug)]
pub(super) enum KvCache {
    /// BF16 bits.
    Bf16(Runs<u16>),
    F32(Runs<f32>),
}

/// Runs of keys and values in every layer; a closed run leaves its place free.
#[derive(Debug)]
pub(super) struct Runs<T>(Vec<Option<Run<T>>>);

/// One run and the policy that computed it.
#[derive(Debug)]
struct Run<T> {
    policy: PolicyStamp,
    layers: Vec<LayerRun<T>>,
}

/// Keys `[tokens, kv_heads * qk_dim]` and values `[tokens, kv_heads * v_dim]` of one layer, row-major.
#[derive(Clone, Debug)]
struct LayerRun<T> {
    keys: Vec<T>,
    values: Vec<T>,
}

impl KvCache {
    /// An empty cache of a model whose activations are of this type.
    pub(super) fn new(dtype: ActivationDtype) -> Self {
        match dtype {
            ActivationDtype::Bf16 => KvCache::Bf16(Runs(Vec::new())),
            ActivationDtype::F32 => KvCache::F32(Runs(Vec::new())),
        }
    }

    /// Opens an empty run of `layers` layers for a policy.
    pub(super) fn open(&mut self, policy: PolicyStamp, layers: usize) -> RunId {
        match self {
            KvCache::Bf16(runs) => runs.open(policy, layers),
            KvCache::F32(runs) => runs.open(policy, layers),
        }
    }

    /// Frees the memory of every run.
    pub(super) fn clear(&mut self) {
        match self {
            KvCache::Bf16(runs) => runs.0.clear(),
            KvCache::F32(runs) => runs.0.clear(),
        }
    }

    /// Frees a run's memory.
    pub(super) fn close(&mut self, id: RunId) {
        match self {
            KvCache::Bf16(runs) => runs.close(id),
            KvCache::F32(runs) => runs.close(id),
        }
    }

    /// Appends rows of keys and values to one layer of an open run of the policy. BF16 activations are stored in 16
    /// bits, exactly.
    ///
    /// # Errors
    /// [`RolloutError::MissingKeys`] if the run is closed or of another policy.
    pub(super) fn append(
        &mut self,
        id: RunId,
        policy: PolicyStamp,
        layer: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), RolloutError> {
        let appended = match self {
            // The values are BF16 already: the low half is zero.
            KvCache::Bf16(runs) => runs.append(id, policy, layer, keys, values, |value| (value.to_bits() >> 16) as u16),
            KvCache::F32(runs) => runs.append(id, policy, layer, keys, values, |value| value),
        };
        appended.ok_or(RolloutError::MissingKeys { policy })
    }
}

impl<T: Clone> Runs<T> {
    /// Keys and values of one layer of a run; nothing if it is closed or another policy computed it.
    pub(super) fn read(&self, id: RunId, policy: PolicyStamp, layer: usize) -> Option<(&[T], &[T])> {
        let run = self.0.get(id.0)?.as_ref().filter(|run| run.policy == policy)?;
        Some((&run.layers[layer].keys, &run.layers[layer].values))
    }

    fn open(&mut self, policy: PolicyStamp, layers: usize) -> RunId {
        let layers = vec![LayerRun { keys: Vec::new(), values: Vec::new() }; layers];
        let run = Some(Run { policy, layers });
        match self.0.iter().position(Option::is_none) {
            Some(free) => {
                self.0[free] = run;
                RunId(free)
            }
            None => {
                self.0.push(run);
                RunId(self.0.len() - 1)
            }
        }
    }

    fn close(&mut self, id: RunId) {
        if let Some(run) = self.0.get_mut(id.0) {
            *run = None;
        }
    }

    fn append(
        &mut self,
        id: RunId,
        policy: PolicyStamp,
        layer: usize,
        keys: &[f32],
        values: &[f32],
        store: impl Fn(f32) -> T + Copy,
    ) -> Option<()> {
        let run = self.0.get_mut(id.0)?.as_mut().filter(|run| run.policy == policy)?;
        run.layers[layer].keys.extend(keys.iter().copied().map(store));
        run.layers[layer].values.extend(values.iter().copied().map(store));
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use miles_core::digest::Digest;
    use miles_core::policy::PolicyVersion;

    use super::*;

    const LIVE: PolicyStamp = PolicyStamp { version: PolicyVersion(3), digest: Digest::from_bytes([7; 32]) };

    fn read_f32(cache: &KvCache, id: RunId, policy: PolicyStamp, layer: usize) -> Option<(&[f32], &[f32])> {
        match cache {
            KvCache::F32(runs) => runs.read(id, policy, layer),
            KvCache::Bf16(_) => panic!("not an F32 cache"),
        }
    }

    #[test]
    fn rows_are_appended_per_layer_and_kept_exactly() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let run = cache.open(LIVE, 2);
        cache.append(run, LIVE, 0, &[0.1, 0.2], &[0.3]).unwrap();
        cache.append(run, LIVE, 1, &[9.0, 9.0], &[9.0]).unwrap();
        cache.append(run, LIVE, 0, &[0.4, 0.5], &[0.6]).unwrap();
        let read = read_f32(&cache, run, LIVE, 0);
        assert_eq!(read, Some(([0.1, 0.2, 0.4, 0.5].as_slice(), [0.3, 0.6].as_slice())));
    }

    #[test]
    fn bf16_activations_take_two_bytes() {
        let mut cache = KvCache::new(ActivationDtype::Bf16);
        let run = cache.open(LIVE, 1);
        cache.append(run, LIVE, 0, &[1.0, -2.5], &[f32::from_bits(0x0001_0000)]).unwrap();
        let KvCache::Bf16(runs) = &cache else { panic!("not a BF16 cache") };
        assert_eq!(runs.read(run, LIVE, 0), Some(([0x3F80, 0xC020].as_slice(), [0x0001].as_slice())));
    }

    #[test]
    fn a_closed_run_is_not_there_and_its_place_is_used_again_without_its_rows() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let (first, second) = (cache.open(LIVE, 1), cache.open(LIVE, 1));
        cache.append(first, LIVE, 0, &[1.0], &[1.0]).unwrap();
        cache.append(second, LIVE, 0, &[2.0], &[2.0]).unwrap();
        cache.close(first);
        assert_eq!(read_f32(&cache, first, LIVE, 0), None);
        assert!(cache.append(first, LIVE, 0, &[1.0], &[1.0]).is_err());
        let third = cache.open(LIVE, 1);
        assert_eq!(third, first);
        assert_eq!(read_f32(&cache, third, LIVE, 0), Some((&[][..], &[][..])));
        assert_eq!(read_f32(&cache, second, LIVE, 0), Some((&[2.0][..], &[2.0][..])));
        cache.clear();
        assert_eq!(read_f32(&cache, second, LIVE, 0), None);
    }

    /// O11: another version, and the same version number with other bytes.
    #[test]
    fn a_run_is_not_there_for_a_policy_that_did_not_compute_it() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let run = cache.open(LIVE, 1);
        cache.append(run, LIVE, 0, &[1.0], &[1.0]).unwrap();
        let others = [
            PolicyStamp { version: PolicyVersion(4), ..LIVE },
            PolicyStamp { version: PolicyVersion(2), ..LIVE },
            PolicyStamp { digest: Digest::from_bytes([8; 32]), ..LIVE },
        ];
        for other in others {
            assert_eq!(read_f32(&cache, run, other, 0), None);
            let error = cache.append(run, other, 0, &[2.0], &[2.0]).unwrap_err();
            assert!(matches!(error, RolloutError::MissingKeys { policy } if policy == other), "{error}");
        }
        assert_eq!(read_f32(&cache, run, LIVE, 0), Some((&[1.0][..], &[1.0][..])), "nothing was appended");
    }
}
