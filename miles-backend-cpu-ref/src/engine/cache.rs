//! Keys and values of the sequences in flight.
//!
//! ```text
//! prompt run      positions 0 .. P        written by the prompt's one prefill, then read by all its completions
//! completion run  positions P .. P + n    one per running completion
//! ```
//!
//! Attention reads a completion's keys in absolute order, the prompt's run and then its own, so the bits are those of
//! one unshared run. A cache belongs to one request, which computes with one policy version: nothing is kept between
//! requests, so no key or value can survive the loading of another version. There is no prefix cache across requests.

use miles_core::plugin::ActivationDtype;

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
pub(super) struct Runs<T>(Vec<Option<Vec<LayerRun<T>>>>);

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

    /// Opens an empty run of `layers` layers.
    pub(super) fn open(&mut self, layers: usize) -> RunId {
        match self {
            KvCache::Bf16(runs) => runs.open(layers),
            KvCache::F32(runs) => runs.open(layers),
        }
    }

    /// Frees a run's memory.
    pub(super) fn close(&mut self, id: RunId) {
        match self {
            KvCache::Bf16(runs) => runs.0[id.0] = None,
            KvCache::F32(runs) => runs.0[id.0] = None,
        }
    }

    /// Appends rows of keys and values to one layer of an open run. BF16 activations are stored in 16 bits, exactly.
    pub(super) fn append(&mut self, id: RunId, layer: usize, keys: &[f32], values: &[f32]) {
        match self {
            // The values are BF16 already: the low half is zero.
            KvCache::Bf16(runs) => runs.append(id, layer, keys, values, |value| (value.to_bits() >> 16) as u16),
            KvCache::F32(runs) => runs.append(id, layer, keys, values, |value| value),
        }
    }
}

impl<T: Clone> Runs<T> {
    /// Keys and values of one layer of a run; empty for a closed one.
    pub(super) fn read(&self, id: RunId, layer: usize) -> (&[T], &[T]) {
        match &self.0[id.0] {
            Some(layers) => (&layers[layer].keys, &layers[layer].values),
            None => (&[], &[]),
        }
    }

    fn open(&mut self, layers: usize) -> RunId {
        let run = Some(vec![LayerRun { keys: Vec::new(), values: Vec::new() }; layers]);
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

    fn append(&mut self, id: RunId, layer: usize, keys: &[f32], values: &[f32], store: impl Fn(f32) -> T + Copy) {
        if let Some(layers) = &mut self.0[id.0] {
            layers[layer].keys.extend(keys.iter().copied().map(store));
            layers[layer].values.extend(values.iter().copied().map(store));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_f32(cache: &KvCache, id: RunId, layer: usize) -> (&[f32], &[f32]) {
        match cache {
            KvCache::F32(runs) => runs.read(id, layer),
            KvCache::Bf16(_) => panic!("not an F32 cache"),
        }
    }

    #[test]
    fn rows_are_appended_per_layer_and_kept_exactly() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let run = cache.open(2);
        cache.append(run, 0, &[0.1, 0.2], &[0.3]);
        cache.append(run, 1, &[9.0, 9.0], &[9.0]);
        cache.append(run, 0, &[0.4, 0.5], &[0.6]);
        assert_eq!(read_f32(&cache, run, 0), ([0.1, 0.2, 0.4, 0.5].as_slice(), [0.3, 0.6].as_slice()));
    }

    #[test]
    fn bf16_activations_take_two_bytes() {
        let mut cache = KvCache::new(ActivationDtype::Bf16);
        let run = cache.open(1);
        cache.append(run, 0, &[1.0, -2.5], &[f32::from_bits(0x0001_0000)]);
        let KvCache::Bf16(runs) = &cache else { panic!("not a BF16 cache") };
        assert_eq!(runs.read(run, 0), ([0x3F80, 0xC020].as_slice(), [0x0001].as_slice()));
    }

    #[test]
    fn a_closed_run_is_empty_and_its_place_is_used_again_without_its_rows() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let (first, second) = (cache.open(1), cache.open(1));
        cache.append(first, 0, &[1.0], &[1.0]);
        cache.append(second, 0, &[2.0], &[2.0]);
        cache.close(first);
        assert_eq!(read_f32(&cache, first, 0), (&[][..], &[][..]));
        let third = cache.open(1);
        assert_eq!(third, first);
        assert_eq!(read_f32(&cache, third, 0), (&[][..], &[][..]));
        assert_eq!(read_f32(&cache, second, 0), (&[2.0][..], &[2.0][..]));
    }
}
