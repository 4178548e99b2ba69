//! Slice kernels: the arithmetic of the CPU reference, on plain slices and small structs.
//!
//! Every result is *batch-invariant*: an output row is a function of its own input row and the weights alone, never of
//! the batch size, the position in the batch, the tiling, the thread count or the instruction set. Three rules give that:
//!
//! * a contraction is **one** fused-multiply-add chain in index order ([`linear`], [`backward`], the p·V product),
//!   tiled over rows and columns only; cutting the chain spills and reloads its `f32` value, which keeps the bits;
//! * a reduction over a vector uses eight lane partials (lane = index mod 8) and one fixed combination ([`reduce`]);
//! * `exp`, `ln` and friends are our own fixed polynomials ([`math`]), the same text for every instruction set.
//!
//! Each kernel is one plain-Rust body compiled twice, with and without AVX2/FMA ([`Isa`]); only the NVFP4 block dot and
//! the quantizers have a hand-written AVX2 twin: table look-up by byte shuffle and packing to bytes are out of the
//! auto-vectorizer's reach.
//!
//! | module | what it computes |
//! |---|---|
//! | [`math`], [`reduce`] | element functions and eight-lane reductions |
//! | [`decode`] | BF16, E4M3, E8M0 and E2M1 codes to values |
//! | [`pack`], [`linear`] | packed weights of five formats and `y = x Wᵀ` |
//! | [`backward`] | `dX = dY W` and `dW += dYᵀ X` |
//! | [`attention`], [`attention_backward`] | causal grouped-query attention of one sequence |
//! | [`rowwise`] | norm, gate, rotary position, log-softmax, add, rounding |
//! | `quantize` | whole tensors to the built-in formats, with the bytes of the format rules |
//!
//! The functions check shapes by `assert!` and panic on a mismatch: shapes are the caller's to prove, not data.

pub mod attention;
pub mod attention_backward;
pub mod backward;
mod compute;
pub mod decode;
mod direct;
mod gemm;
pub mod linear;
pub mod math;
mod nvfp4;
#[cfg(target_arch = "x86_64")]
mod nvfp4_avx2;
pub mod pack;
mod panel;
pub(crate) mod quantize;
pub mod reduce;
pub mod rowwise;
mod source;
mod split;
#[cfg(test)]
pub(crate) mod testing;
pub mod unpack;

pub use compute::{Compute, Isa};
