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

/// Runs of keys and values, in every layer.
#[derive(Debug)]
pub(super) struct KvCache {
    dtype: ActivationDtype,
    runs: Vec<Option<Run>>,
}

#[derive(Debug)]
struct Run {
    layers: Vec<LayerRun>,
}

/// Keys `[tokens, kv_heads * qk_dim]` and values `[tokens, kv_heads * v_dim]` of one layer.
#[derive(Debug)]
struct LayerRun {
    keys: KvRows,
    values: KvRows,
}

/// Rows in the precision of the activations, row-major.
#[derive(Debug)]
enum KvRows {
    /// BF16 bits.
    Bf16(Vec<u16>),
    F32(Vec<f32>),
}

/// Rows of one layer's keys or values, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum KvSlice<'a> {
    /// BF16 bits.
    Bf16(&'a [u16]),
    F32(&'a [f32]),
}

impl KvCache {
    /// An empty cache of a model whose activations are of this type.
    pub(super) fn new(dtype: ActivationDtype) -> Self {
        KvCache { dtype, runs: Vec::new() }
    }

    /// Opens an empty run of `layers` layers.
    pub(super) fn open(&mut self, layers: usize) -> RunId {
        let fresh = || LayerRun { keys: KvRows::new(self.dtype), values: KvRows::new(self.dtype) };
        let run = Some(Run { layers: std::iter::repeat_with(fresh).take(layers).collect() });
        match self.runs.iter().position(Option::is_none) {
            Some(free) => {
                self.runs[free] = run;
                RunId(free)
            }
            None => {
                self.runs.push(run);
                RunId(self.runs.len() - 1)
            }
        }
    }

    /// Frees a run's memory.
    pub(super) fn close(&mut self, id: RunId) {
        self.runs[id.0] = None;
    }

    /// Appends rows of keys and values to one layer of a run. BF16 activations are stored in 16 bits, exactly.
    pub(super) fn append(&mut self, id: RunId, layer: usize, keys: &[f32], values: &[f32]) {
        if let Some(run) = &mut self.runs[id.0] {
            let layer = &mut run.layers[layer];
            layer.keys.extend(keys);
            layer.values.extend(values);
        }
    }

    /// Keys and values of one layer of a run; empty for a closed one.
    pub(super) fn read(&self, id: RunId, layer: usize) -> (KvSlice<'_>, KvSlice<'_>) {
        match &self.runs[id.0] {
            Some(run) => (run.layers[layer].keys.as_slice(), run.layers[layer].values.as_slice()),
            None => (KvSlice::empty(self.dtype), KvSlice::empty(self.dtype)),
        }
    }

    /// Runs that hold memory.
    #[cfg(test)]
    pub(super) fn open_runs(&self) -> usize {
        self.runs.iter().flatten().count()
    }
}

impl KvSlice<'_> {
    fn empty(dtype: ActivationDtype) -> Self {
        match dtype {
            ActivationDtype::Bf16 => KvSlice::Bf16(&[]),
            ActivationDtype::F32 => KvSlice::F32(&[]),
        }
    }
}

impl KvRows {
    fn new(dtype: ActivationDtype) -> Self {
        match dtype {
            ActivationDtype::Bf16 => KvRows::Bf16(Vec::new()),
            ActivationDtype::F32 => KvRows::F32(Vec::new()),
        }
    }

    fn extend(&mut self, rows: &[f32]) {
        match self {
            // The values are BF16 already: the low half is zero.
            KvRows::Bf16(bits) => bits.extend(rows.iter().map(|value| (value.to_bits() >> 16) as u16)),
            KvRows::F32(values) => values.extend_from_slice(rows),
        }
    }

    fn as_slice(&self) -> KvSlice<'_> {
        match self {
            KvRows::Bf16(bits) => KvSlice::Bf16(bits),
            KvRows::F32(values) => KvSlice::F32(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_appended_per_layer_and_kept_exactly() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let run = cache.open(2);
        cache.append(run, 0, &[0.1, 0.2], &[0.3]);
        cache.append(run, 1, &[9.0, 9.0], &[9.0]);
        cache.append(run, 0, &[0.4, 0.5], &[0.6]);
        assert_eq!(cache.read(run, 0), (KvSlice::F32(&[0.1, 0.2, 0.4, 0.5]), KvSlice::F32(&[0.3, 0.6])));
    }

    #[test]
    fn bf16_activations_take_two_bytes() {
        let mut cache = KvCache::new(ActivationDtype::Bf16);
        let run = cache.open(1);
        cache.append(run, 0, &[1.0, -2.5], &[f32::from_bits(0x0001_0000)]);
        assert_eq!(cache.read(run, 0), (KvSlice::Bf16(&[0x3F80, 0xC020]), KvSlice::Bf16(&[0x0001])));
    }

    #[test]
    fn a_closed_run_is_empty_and_its_place_is_used_again_without_its_rows() {
        let mut cache = KvCache::new(ActivationDtype::F32);
        let (first, second) = (cache.open(1), cache.open(1));
        cache.append(first, 0, &[1.0], &[1.0]);
        cache.close(first);
        assert_eq!(cache.open_runs(), 1);
        assert_eq!(cache.read(first, 0), (KvSlice::F32(&[]), KvSlice::F32(&[])));
        let third = cache.open(1);
        assert_eq!((third, cache.open_runs()), (first, 2));
        assert_ne!(third, second);
        assert_eq!(cache.read(third, 0), (KvSlice::F32(&[]), KvSlice::F32(&[])));
    }
}
