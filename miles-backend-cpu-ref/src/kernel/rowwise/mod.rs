//! Kernels that treat each row, or each element, on its own.
//!
//! | module | what it computes |
//! |---|---|
//! | [`elementwise`] | add, add a bias, round to BF16 |
//! | [`norm`] | root-mean-square norm, forward and backward |
//! | [`gate`] | SwiGLU, forward and backward |
//! | [`rope`] | rotary position embedding, forward and backward |
//! | [`log_softmax`] | log-probability and entropy of one vocabulary row, and their gradient |

pub mod elementwise;
pub mod gate;
pub mod log_softmax;
pub mod norm;
pub mod rope;
