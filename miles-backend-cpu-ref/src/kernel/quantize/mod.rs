//! Quantization of whole tensors: the built-in format rules on every core, with AVX2 where the machine has it.
//!
//! The arithmetic is that of `miles_core::format`. With [`Isa::SCALAR`](super::Isa::SCALAR) the rules' own row functions
//! do the work; the AVX2 forms here are their vector twins and give the same bytes for every input. What differs from
//! the rules is where the time goes: BF16 is read as two bytes per element, rows are spread over the thread pool,
//! results are written once into memory that nobody cleared before, and NaN and infinity are noticed by the pass that
//! looks for the largest magnitude anyway. A block that holds one is handed to the rule, so the vector forms see finite
//! values only.
//!
//! | module | what it holds |
//! |---|---|
//! | [`element`] | `f32` and little-endian BF16 pairs as sources |
//! | [`mxfp8`], [`nvfp4`], [`fp8_block`] | one format each, both axes |
//! | `encode` | E4M3 and E2M1 codes of vector registers |
//! | `bands` | rows in bands, one code per value |
//! | `columns` | columns gathered into lines |
//! | [`output`] | result vectors, written once |

mod bands;
mod columns;
pub(crate) mod element;
#[cfg(target_arch = "x86_64")]
mod encode;
pub(crate) mod fp8_block;
pub(crate) mod mxfp8;
pub(crate) mod nvfp4;
pub(crate) mod output;
mod reference;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use super::{Compute, Isa};
use element::Element;

/// Codes and block scales of one tensor.
pub(crate) struct Quantized<S> {
    /// Codes, laid out as the format says.
    pub codes: Vec<u8>,
    /// Block scales, row-major.
    pub scales: Vec<S>,
    /// Whether every source value is finite.
    pub finite: bool,
}

/// A place that a kernel writes exactly once.
type Slot<T> = MaybeUninit<T>;

/// The largest magnitude of a run of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Amax {
    /// As `miles_core::format::abs_max`: NaN ignored, infinity counted.
    pub value: f32,
    /// Whether every value is finite.
    pub finite: bool,
}

impl Amax {
    /// Of no values.
    pub const ZERO: Amax = Amax { value: 0.0, finite: true };

    /// Of two runs together.
    pub fn or(self, other: Amax) -> Amax {
        Amax { value: self.value.max(other.value), finite: self.finite && other.finite }
    }
}

/// The largest magnitude of `values`.
pub(crate) fn amax<E: Element>(isa: Isa, values: &[E]) -> Amax {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2_fma() {
        // SAFETY: an `Isa` with AVX2 only comes from run-time detection.
        let bits = unsafe { encode::magnitude_bits(values) };
        if bits < INFINITY_BITS {
            return Amax { value: f32::from_bits(bits), finite: true };
        }
    }
    let _ = isa;
    reference::amax(values)
}

/// The largest magnitude of a whole tensor, in parallel.
pub(crate) fn tensor_amax<E: Element>(compute: &Compute, values: &[E]) -> Amax {
    let mut found = vec![Amax::ZERO; values.len().div_ceil(BAND_ELEMENTS)];
    let bands = values.chunks(BAND_ELEMENTS).zip(&mut found).collect();
    compute.for_each(bands, |(band, amax_of_band)| *amax_of_band = amax(compute.isa(), band));
    found.into_iter().fold(Amax::ZERO, Amax::or)
}

/// Rows of a task, a multiple of `unit` rows that are quantized together.
fn rows_per_band(cols: usize, unit: usize) -> usize {
    (BAND_ELEMENTS / cols.max(1)).max(1).next_multiple_of(unit)
}

/// Elements worth a task of their own: 128 KiB of BF16, which stays in a core's second-level cache.
const BAND_ELEMENTS: usize = 64 * 1024;
/// Bits of a magnitude from here on are not finite.
const INFINITY_BITS: u32 = f32::INFINITY.to_bits();
