//! Stochastic rounding: 8 random bits per element, by coordinate.

use super::BLOCK;
use super::block::Place;
use crate::number::e2m1;
use crate::random::{Coordinates, Stream, words};

/// The codes of one block. Element `i` takes byte `i % 4` (counted from the lowest) of word `i / 4` of the four words that
/// [`words`] draws for the block's line and number.
pub(super) fn encode(seed: u64, place: Place, products: [f32; BLOCK]) -> [u8; BLOCK] {
    let block = place.block as u64;
    let (sample, token) = (block as u32, (block >> 32) as u32);
    let at = Coordinates { prompt: place.line as u64, sample, token, step: 0 };
    let random = words(seed, Stream::Rounding, at).map(u32::to_le_bytes);
    std::array::from_fn(|i| e2m1::encode_stochastic(products[i], random[i / 4][i % 4]))
}
