//! The CPU reference backend: readable arithmetic that decides what is right, and what runs by default.
//!
//! ```text
//! kernel     slice kernels: the arithmetic, batch-invariant to the bit
//! ops        one file per operation of the network, forward and backward, on packed weights
//! quantizer  the format rules, on every core
//! engine     rollout: schedule, key/value cache, sampler
//! trainer    tape, backward pass, optimizer
//! backend    all of it as one value, registered as `cpu-ref`
//! ```
//!
//! [`CpuRef`] makes the parts. Engine and trainer call the same forward functions on the same packed bytes, so a rollout
//! logprob and a trainer logprob are equal to the bit.

pub mod backend;
pub mod engine;
pub mod kernel;
pub mod ops;
pub mod quantizer;
pub mod trainer;

pub use backend::CpuRef;
pub use engine::CpuEngine;
pub use quantizer::CpuQuantizer;
pub use trainer::CpuTrainer;
