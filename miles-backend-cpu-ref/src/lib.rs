//! The CPU reference backend.

pub mod kernel;
