//! The largest magnitude of a run of values, as every format here defines it.

const MAGNITUDE: u32 = 0x7FFF_FFFF;
const INFINITY_BITS: i32 = f32::INFINITY.to_bits() as i32;

/// The largest |x| of `values`: 0 for none, NaN elements ignored, infinity if there is one.
///
/// Magnitudes are compared as integers, which orders them the same way, lets the loop vectorize, and makes the
/// result independent of the order of the values.
#[inline]
#[must_use]
pub fn abs_max(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0, |largest: i32, &x| largest.max(magnitude(x)));
    f32::from_bits(largest as u32)
}

/// Raises each of `maxima` to the magnitude bits of the value at its position.
#[inline]
pub(super) fn raise_magnitudes(maxima: &mut [i32], values: &[f32]) {
    for (largest, &x) in maxima.iter_mut().zip(values) {
        *largest = (*largest).max(magnitude(x));
    }
}

#[inline]
fn magnitude(x: f32) -> i32 {
    let bits = (x.to_bits() & MAGNITUDE) as i32;
    if bits > INFINITY_BITS { 0 } else { bits }
}
