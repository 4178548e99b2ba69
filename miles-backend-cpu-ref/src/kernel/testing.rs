//! Inputs and comparisons shared by the kernel tests.

use std::sync::Arc;

use rayon::ThreadPoolBuilder;

use super::{Compute, Isa};

/// Both instruction sets of this machine (one twice where only the baseline exists).
pub fn isas() -> [Isa; 2] {
    [Isa::SCALAR, Isa::detect()]
}

/// Scalar on one thread first, then the detected set on one, two and three threads.
pub fn computes() -> Vec<Compute> {
    [(Isa::SCALAR, 1), (Isa::detect(), 1), (Isa::detect(), 2), (Isa::SCALAR, 2), (Isa::detect(), 3)]
        .into_iter()
        .map(|(isa, threads)| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap_or_else(|error| panic!("{error}"));
            Compute::from_parts(isa, Arc::new(pool))
        })
        .collect()
}

/// Fixed pseudo-random words (splitmix64).
pub fn words(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    (0..count as u64).map(move |i| {
        let mut z = (seed << 32).wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// Numbers in (-1, 1).
pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
    words(seed, count).map(|word| (word >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// Random bytes.
pub fn bytes(seed: u64, count: usize) -> Vec<u8> {
    words(seed, count).map(|word| (word >> 56) as u8).collect()
}

/// Fails at the first element whose bits differ; any two NaN are equal.
#[track_caller]
pub fn assert_same_bits(want: &[f32], got: &[f32], what: &str) {
    assert_eq!(want.len(), got.len(), "{what}: lengths differ");
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        assert!(w.to_bits() == g.to_bits() || w.is_nan() && g.is_nan(), "{what}: element {i}: want {w:e}, got {g:e}");
    }
}

/// Fails at the first element farther than `tolerance * (1 + |want|)` from the oracle.
#[track_caller]
pub fn assert_close(want: &[f64], got: &[f32], tolerance: f64, what: &str) {
    assert_eq!(want.len(), got.len(), "{what}: lengths differ");
    for (i, (&w, &g)) in want.iter().zip(got).enumerate() {
        assert!((w - f64::from(g)).abs() <= tolerance * (1.0 + w.abs()), "{what}: element {i}: want {w:e}, got {g:e}");
    }
}
