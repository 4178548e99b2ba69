//! NVFP4: E2M1 codes in blocks of 16, an E4M3 scale per block, an FP32 outer scale per row or tensor.
//!
//! The arithmetic is that of TransformerEngine from 2.14 on. With `A` the amax of the row or tensor, every operation
//! an IEEE `f32` one:
//!
//! ```text
//! S_enc = 2688 / A          2688 = 448 * 6; f32::MAX if that overflows, 1 if A is 0 or infinite
//! S_dec = 1 / S_enc         the outer decode scale
//! m     = S_enc * (1/6)     1/6 rounded to f32
//! per block:
//!   s   = e4m3(min(amax_b * m, f32::MAX))
//!   e   = min(1 / (s * S_dec), f32::MAX)
//!   q_i = e2m1(x_i * e)
//! ```
//!
//! A block too small for the row (`amax_b / A` below about 2.2e-6) gets scale 0, keeps its codes, and decodes to 0.
//!
//! Decoding is `code * ((s * A) * (1/2688))`, in that order, so it overflows to infinity (and 0 to NaN) where `s * A`
//! does: in blocks near the amax of a row whose amax is above `f32::MAX / 448`. A tensor whose `A` is not known decodes
//! as `(code * s) * S_dec`, which can differ in the last place.
//!
//! Each line above that another producer does differently is a choice of [`Nvfp4`], and the choices make the name:
//!
//! | choice | name | what differs |
//! |---|---|---|
//! | [`ScaleRule`] | `te-2.13` | `s = e4m3((amax_b / 6) * S_enc)` |
//! | | `four-over-six-{mae,mse}-{448,256}` | the better of two scales, see [`FourOverSix`] |
//! | [`Tile`] | `16x16` | weights: one `s` per 16x16 values, repeated for each of the 16 lines |
//! | [`Rounding`] | `python-reference` | code 0 for a product that is -0 or NaN |
//! | | `stochastic`, `stochastic-SEED` | `q_i` rounds up with the probability of its remainder |
//! | [`Hadamard`] | `hadamard`, `hadamard-plain` | `x` is rotated along the line first |
//! | [`DecodeOrder`] | `decode-scale-order` | decoding is `(code * s) * S_dec` |
//! | [`ZeroScale`] | `zero-scale-zero`, `zero-scale-smallest` | the stored `S_dec` where `A = 0` |
//!
//! So `nvfp4/te-2.13/16x16` is the value `Nvfp4::DEFAULT.with_scale_rule(DivisionBySix)?.with_tile(Square)?`.

mod block;
mod decode;
mod four_over_six;
mod hadamard;
mod name;
mod outer;
mod rule;
mod shards;
mod stochastic;
mod tile;
mod variant;

pub use block::{quantize_row, quantize_row_with};
pub use decode::dequantize_without_outer;
pub use four_over_six::{ErrorSum, FourOverSix, LargestScale};
pub use hadamard::Hadamard;
pub use name::{activation_format, combinations};
pub use outer::OuterScale;
pub use variant::{DecodeOrder, Nvfp4, Rounding, ScaleRule, Tile, ZeroScale};

pub(super) use name::{RULES, combination};

/// Elements per block.
pub const BLOCK: usize = 16;
