//! One block of 16: its scale, and its elements times the encode scale.

use super::{BLOCK, Nvfp4, OuterScale, Rounding, ScaleRule, stochastic};
use crate::format::abs_max;
use crate::number::{e2m1, e4m3};

/// Quantizes one row of the default format with an outer scale of its own, which is returned.
///
/// `codes` takes half a byte and `scales` one byte per started block of `values`.
///
/// # Panics
/// When `codes` or `scales` has not exactly the length that `values` needs.
pub fn quantize_row(values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> OuterScale {
    let outer = OuterScale::from_amax(abs_max(values));
    quantize_row_with(values, &outer, codes, scales);
    outer
}

/// Quantizes one row of the default format with the given outer scale.
///
/// # Panics
/// As [`quantize_row`].
pub fn quantize_row_with(values: &[f32], outer: &OuterScale, codes: &mut [u8], scales: &mut [u8]) {
    let scale_of = |_, block: &[f32; BLOCK], _| reciprocal_scale(abs_max(block), outer);
    quantize_blocks(values, outer, codes, scales, scale_of, |_, products| products.map(e2m1::encode));
}

/// Where a run of blocks lies in the whole matrix, in lines and blocks: what random bits are drawn by.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) block: usize,
}

impl Nvfp4 {
    /// Quantizes the part of a line that has one outer scale. With `given_scales`, `scales` holds the block scales
    /// already.
    pub(super) fn quantize_segment(
        &self,
        values: &[f32],
        outer: &OuterScale,
        place: Place,
        codes: &mut [u8],
        scales: &mut [u8],
        given_scales: bool,
    ) {
        if !given_scales && (self.scale_rule, self.rounding) == (ScaleRule::ReciprocalOfSix, Rounding::Nearest) {
            return quantize_row_with(values, outer, codes, scales);
        }
        let scale_of =
            |_, block: &[f32; BLOCK], given: u8| if given_scales { given } else { self.block_scale(block, outer) };
        quantize_blocks(values, outer, codes, scales, scale_of, |block, products| {
            self.rounding.encode(Place { block: place.block + block, ..place }, products)
        });
    }

    /// The scale of one 1x16 block.
    fn block_scale(&self, values: &[f32; BLOCK], outer: &OuterScale) -> u8 {
        match self.scale_rule {
            ScaleRule::ReciprocalOfSix => reciprocal_scale(abs_max(values), outer),
            ScaleRule::DivisionBySix => division_scale(abs_max(values), outer),
            ScaleRule::FourOverSix(choice) => {
                choice.scale(abs_max(values), outer, |scale| choice.error(values, scale, outer, self.rounding))
            }
        }
    }
}

impl Rounding {
    /// The codes of 16 values times their encode scale.
    #[inline]
    pub(super) fn encode(self, place: Place, products: [f32; BLOCK]) -> [u8; BLOCK] {
        match self {
            Self::Nearest => products.map(e2m1::encode),
            Self::PositiveZero => products.map(|x| if x == 0.0 || x.is_nan() { 0 } else { e2m1::encode(x) }),
            Self::Stochastic { seed } => stochastic::encode(seed, place, products),
        }
    }
}

/// The scale of a block by [`ScaleRule::ReciprocalOfSix`].
#[inline]
pub(super) fn reciprocal_scale(amax: f32, outer: &OuterScale) -> u8 {
    e4m3::encode((amax * outer.multiplier()).min(f32::MAX))
}

/// The scale of a block by [`ScaleRule::DivisionBySix`].
#[inline]
pub(super) fn division_scale(amax: f32, outer: &OuterScale) -> u8 {
    e4m3::encode(sixth_of(amax, outer).min(f32::MAX))
}

/// A sixth of a block's amax in units of the outer scale, by division.
#[inline]
pub(super) fn sixth_of(amax: f32, outer: &OuterScale) -> f32 {
    amax / e2m1::MAX * outer.encode()
}

/// The values of a block times its encode scale.
#[inline]
pub(super) fn products(values: &[f32; BLOCK], scale: u8, outer: &OuterScale) -> [f32; BLOCK] {
    let encode = (1.0 / (e4m3::decode(scale) * outer.decode())).min(f32::MAX);
    values.map(|x| x * encode)
}

/// Fills `codes` and `scales` block by block: the scale is `scale_of(block number, values, byte that was there)`, the
/// codes are `encode(block number, products)`. A last block that is cut short counts as padded with zeros.
#[inline]
fn quantize_blocks(
    values: &[f32],
    outer: &OuterScale,
    codes: &mut [u8],
    scales: &mut [u8],
    scale_of: impl Fn(usize, &[f32; BLOCK], u8) -> u8,
    encode: impl Fn(usize, [f32; BLOCK]) -> [u8; BLOCK],
) {
    assert_eq!(codes.len(), values.len().div_ceil(2), "two NVFP4 codes per byte");
    assert_eq!(scales.len(), values.len().div_ceil(BLOCK), "one NVFP4 scale per block of 16");
    let quantize = |number: usize, block: &[f32; BLOCK], packed: &mut [u8; BLOCK / 2], scale: &mut u8| {
        *scale = scale_of(number, block, *scale);
        let codes = encode(number, products(block, *scale, outer));
        for (byte, pair) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
            *byte = pair[0] | pair[1] << 4;
        }
    };
    let (blocks, tail) = values.as_chunks::<BLOCK>();
    // A tail of 15 values has as many code bytes as a whole block: the values decide where the blocks end.
    let (block_codes, code_tail) = codes.split_at_mut(blocks.len() * (BLOCK / 2));
    let code_blocks = block_codes.as_chunks_mut::<{ BLOCK / 2 }>().0;
    for (number, ((block, packed), scale)) in blocks.iter().zip(code_blocks).zip(scales.iter_mut()).enumerate() {
        quantize(number, block, packed, scale);
    }
    if let Some(scale) = scales.last_mut().filter(|_| !tail.is_empty()) {
        let mut padded = [0.0; BLOCK];
        padded[..tail.len()].copy_from_slice(tail);
        let mut packed = [0; BLOCK / 2];
        quantize(blocks.len(), &padded, &mut packed, scale);
        code_tail.copy_from_slice(&packed[..code_tail.len()]);
    }
}
