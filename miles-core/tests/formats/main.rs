//! What every built-in format promises besides its golden bytes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod assemble;
mod custom;
mod digest;
mod empty;
mod field_cases;
mod layouts;
mod nvfp4_partition;
mod nvfp4_variants;
mod properties;
mod refusals;
mod sample;
mod shapes;
