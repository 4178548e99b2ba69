//! Quantized formats: the one place that decides which bytes a tensor becomes.
//!
//! An RL system holds two copies of one policy. They stay one policy only if every tensor is quantized the same way
//! everywhere, to the bit, so the arithmetic of each format is written once, here, and every stage calls it:
//!
//! ```text
//! Source (f32 values, dtype, name)  --FormatRule-->  QuantizedTensor  --> canonical bytes --> Digest
//!   + QuantizeSpec                                    codes, block scales,
//!     (operand, axis, scope, non-finite)              outer scales, amax
//! ```
//!
//! | format | rule | element | block | block scale | outer scale |
//! |---|---|---|---|---|---|
//! | `nvfp4` | [`Nvfp4`] | E2M1 | 16 | E4M3 | one `f32` per row or tensor |
//! | `mxfp8` | [`Mxfp8`] | E4M3 | 32 | E8M0 | none |
//! | `fp8-block` | [`Fp8Block`] | E4M3 | 1x128 activations, 128x128 weights | `f32` | none |
//!
//! Everything here is a function of its arguments: no environment, no thread count, no device. Any row count works,
//! including 0; a last block that is cut short behaves as if padded with zeros. A user's own format is a value that
//! implements [`FormatRule`]. BF16 is not a format: a tensor kept in BF16 is simply not quantized.

mod amax;
mod canonical;
mod error;
mod id;
mod lines;
mod parts;
mod quantized;
mod rule;
mod source;
mod spec;

pub mod fp8_block;
pub mod layout;
pub mod mxfp8;
pub mod nvfp4;

pub use amax::abs_max;
pub use error::FormatError;
pub use fp8_block::Fp8Block;
pub use id::FormatId;
pub use mxfp8::Mxfp8;
pub use nvfp4::Nvfp4;
pub use parts::{BlockScales, QuantizedParts};
pub use quantized::QuantizedTensor;
pub use rule::{FormatRule, ScaleKind, TensorLayout, builtin_rule, builtin_rules};
pub use source::{Source, SourceDtype};
pub use spec::{Axis, NonFinite, Operand, QuantizeSpec, ScaleScope};
