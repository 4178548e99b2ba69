//! The CPU reference backend.
//!
//! ```text
//! kernel    slice kernels: the arithmetic, batch-invariant to the bit
//! ops       one file per operation of the network, forward and backward, on packed weights
//! trainer   tape, backward pass, optimizer
//! ```

pub mod kernel;
pub mod ops;
pub mod trainer;
