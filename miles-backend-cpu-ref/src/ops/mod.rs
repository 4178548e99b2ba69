//! The bridge from [`miles_core::network::Operations`] to the slice kernels.
//!
//! One file per operation, forward and backward side by side. [`Forward`] holds the forward functions: the engine and
//! the trainer call the same ones on the same [`PolicyWeights`], so that a rollout logprob and a trainer logprob are the
//! same bits. Each decides, once:
//!
//! * in which form the operands reach a kernel ([`PolicyWeights`], [`Activation`]);
//! * where results are rounded: in a BF16 run every operation's result is rounded to BF16 (nearest even) and held as
//!   f32, except router logits and weights, vocabulary logits, log-softmax and what stays inside attention.
//!
//! The backward functions are plain functions on slices, in f32. Where operands are rounded or quantized for a
//! backward product is the trainer's decision ([`crate::trainer`]).

pub mod activation;
pub mod attention;
mod context;
pub mod embedding;
mod error;
pub mod experts;
mod forward;
pub mod heads;
pub mod linear;
pub mod linear_backward;
pub mod logprob;
pub mod norm;
mod operand;
pub mod residual;
pub mod rope;
pub mod rounding;
pub mod router;
pub mod swiglu;
pub(crate) mod threads;
pub(crate) mod weights;

pub use activation::Activation;
pub use context::Context;
pub use error::OperationError;
pub use forward::Forward;
pub use weights::{Matrix, Operand, PolicyWeights, Table, has_kernel};

pub(crate) use error::same_size;

/// Name of this backend in errors.
pub(crate) const BACKEND: &str = "cpu-ref";
