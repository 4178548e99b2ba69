//! The rules of `miles_core::format` applied to stored elements: the scalar path, and what decides for blocks that hold
//! NaN or infinity.

use std::mem::MaybeUninit;

use miles_core::format::{abs_max, mxfp8, nvfp4};

use super::element::Element;
use super::{Amax, INFINITY_BITS, Slot};

/// Memory that row after row is widened and quantized in.
#[derive(Default)]
pub(super) struct Scratch {
    values: Vec<f32>,
    codes: Vec<u8>,
    byte_scales: Vec<u8>,
    float_scales: Vec<f32>,
}

/// The largest magnitude, NaN ignored.
pub(super) fn amax<E: Element>(values: &[E]) -> Amax {
    let value = values.chunks(64).fold(0.0, |largest: f32, part| {
        let mut few = [0.0; 64];
        few.iter_mut().zip(part).for_each(|(wide, &x)| *wide = x.widen());
        largest.max(abs_max(&few))
    });
    Amax { value, finite: is_finite(values) }
}

/// Whether every value is finite; without an early end, so that the loop vectorizes.
pub(super) fn is_finite<E: Element>(values: &[E]) -> bool {
    values.iter().fold(true, |finite, &x| finite & (x.widen().to_bits() & 0x7FFF_FFFF < INFINITY_BITS))
}

impl Scratch {
    /// One row or part of a row that starts at a block.
    pub fn mxfp8<E: Element>(&mut self, values: &[E], codes: &mut [Slot<u8>], scales: &mut [Slot<u8>]) {
        self.codes.resize(codes.len(), 0);
        self.byte_scales.resize(scales.len(), 0);
        mxfp8::quantize_row(E::widened(values, &mut self.values), &mut self.codes, &mut self.byte_scales);
        write(codes, &self.codes);
        write(scales, &self.byte_scales);
    }

    /// One row or part of a row that starts at a block.
    pub fn nvfp4<E: Element>(
        &mut self,
        values: &[E],
        outer: &nvfp4::OuterScale,
        codes: &mut [Slot<u8>],
        scales: &mut [Slot<u8>],
    ) {
        self.codes.resize(codes.len(), 0);
        self.byte_scales.resize(scales.len(), 0);
        let wide = E::widened(values, &mut self.values);
        nvfp4::quantize_row_with(wide, outer, &mut self.codes, &mut self.byte_scales);
        write(codes, &self.codes);
        write(scales, &self.byte_scales);
    }

    /// Whatever `quantize(values, codes, scales)` makes of a row or a row of tiles.
    pub fn fp8_block<E: Element>(
        &mut self,
        values: &[E],
        codes: &mut [Slot<u8>],
        scales: &mut [Slot<f32>],
        quantize: impl FnOnce(&[f32], &mut [u8], &mut [f32]),
    ) {
        self.codes.resize(codes.len(), 0);
        self.float_scales.resize(scales.len(), 0.0);
        quantize(E::widened(values, &mut self.values), &mut self.codes, &mut self.float_scales);
        write(codes, &self.codes);
        write(scales, &self.float_scales);
    }
}

/// Copies `values` into slots of the same number.
pub(super) fn write<T: Copy>(slots: &mut [Slot<T>], values: &[T]) {
    assert_eq!(slots.len(), values.len(), "every slot is written");
    for (slot, &value) in slots.iter_mut().zip(values) {
        *slot = MaybeUninit::new(value);
    }
}
