//! Every vector of `tests/data/golden`, byte for byte.
//!
//! Each test walks all keys of one file and counts: a key that nothing compares is a failure, and so is a count that
//! differs from the number of vectors the file is known to hold.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod file;
mod fp8_block;
mod mxfp8;
mod numbers;
mod nvfp4;
mod nvfp4_variants;
