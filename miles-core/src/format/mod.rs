//! Quantized formats: the one place that decides which bytes a tensor becomes.
//!
//! An RL system holds two copies of one policy. They stay one policy only if every tensor is quantized the same way
//! everywhere, to the bit, so the arithmetic of each format is written once, here, and every stage calls it:
//!
//! ```text
//! Source (f32 values, dtype, name)  --FormatRule-->  QuantizedTensor  --> canonical bytes --> Digest
//!   + QuantizeSpec                                    codes, block scales,
//!     (operand, axis, scope, partition, ...)          outer scales, amax
//! ```
//!
//! | format | rule | element | block | block scale | outer scale |
//! |---|---|---|---|---|---|
//! | `nvfp4` | [`Nvfp4`] | E2M1 | 16 | E4M3 | one `f32` per row or tensor |
//! | `mxfp8` | [`Mxfp8`] | E4M3 | 32 | E8M0 | none |
//! | `fp8-block` | [`Fp8Block`] | E4M3 | 1x128 activations, 128x128 weights | `f32` | none |
//! | `fp8-channel`, `int8-channel` | [`Symmetric`] | E4M3, INT8 | a line | `f32` | none |
//! | `fp8-tensor` | [`Symmetric`] | E4M3 | | none | one `f32` per row or tensor |
//! | `int4-group/32`, `/64`, `/128` | [`Symmetric`] | INT4 | 32, 64, 128 | `f32` | none |
//!
//! A format's variants are formats named after it (`mxfp8/ocp-floor`), each a value of the same rule type.
//!
//! Everything here is a function of its arguments: no environment, no thread count, no device. Any row count works,
//! including 0; a last block that is cut short behaves as if padded with zeros. A user's own format is a value that
//! implements [`FormatRule`]. BF16 is not a format: a tensor kept in BF16 is simply not quantized.

mod amax;
mod bands;
mod canonical;
pub mod counts;
mod dependence;
mod error;
mod id;
mod lines;
mod partition;
mod parts;
mod quantized;
mod rule;
mod source;
mod spec;
mod stack;

pub mod fp8_block;
pub mod layout;
pub mod mxfp8;
pub mod nvfp4;
pub mod shards;
pub mod symmetric;

/// Most rows, and most columns, of a tensor. Far above every model; sizes up to it can be multiplied without overflow,
/// and a tensor that claims more while it holds no element is refused before anyone loops over its rows.
pub const MAX_EXTENT: usize = 1 << 28;

pub use amax::abs_max;
pub(crate) use bands::BandedDigest;
pub use bands::band_rows;
pub(crate) use canonical::hasher as canonical_hasher;
pub use counts::QuantizeCounts;
pub use dependence::CodeDependence;
pub use error::FormatError;
pub use fp8_block::Fp8Block;
pub use id::FormatId;
pub use mxfp8::Mxfp8;
pub use nvfp4::Nvfp4;
pub use partition::{Cut, Partition};
pub use parts::{BlockScales, QuantizedParts};
pub use quantized::QuantizedTensor;
pub use rule::{FormatRule, ScaleKind, TensorLayout, builtin_rule, builtin_rules, check_joint_widths};
pub use shards::ShardError;
pub use source::{Source, SourceDtype, SourceValues};
pub use spec::{Axis, NonFinite, Operand, QuantizeSpec, ScaleScope};
pub use stack::{ExpertMatrix, ExpertStack, Orientation, Packing, StackedTensor};
pub use symmetric::Symmetric;
