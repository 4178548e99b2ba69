//! Number formats: how one `f32` becomes the bits of a narrower number, and back.
//!
//! Each module holds free functions over plain bits, because quantizers call them in their innermost loops and a
//! loop over a slice has to stay vectorizable: no table lookup on the way in, no early return, two selects at most.
//! Conversions to floats follow NVIDIA's `cvt.rn.satfinite` (round to nearest even, saturate, no infinities):
//!
//! | format | tie | overflow, +-Inf | NaN | negative zero |
//! |---|---|---|---|---|
//! | [`bf16`] | even | Inf (it has one) | quiet NaN | kept |
//! | [`e4m3`] | even | +-448 | `0x7F`, sign dropped | kept (`0x80`) |
//! | [`e2m1`] | even | +-6 | `0x7` (= +6), sign dropped | kept (`0x8`) |
//! | [`e8m0`] | rounds up | 2^127 | `0xFF` | not a value it has |
//! | [`integer`] | even | the end of the range | 0 | 0 |
//!
//! Subnormal inputs and results are kept everywhere: these functions are wrong on a thread that flushes them to zero.

pub mod bf16;
pub mod e2m1;
pub mod e4m3;
pub mod e8m0;
pub mod integer;
