//! What the fuzz targets share.
//!
//! ```text
//! bytes -> Archive -> files in a Scratch directory -> a file reader     targets that read a directory
//! bytes -> Request, values -> a format rule                             targets that quantize
//! ```
//!
//! A target fails by a panic (an overflow counts, the build has overflow checks), by memory beyond the limit that
//! `ci/fuzz` sets, by time, or by one of its own assertions. An error of the library is never a failure.

mod archive;
mod request;
mod scratch;

pub use archive::Archive;
pub use request::{Request, refuses_request, same_bits, tiled};
pub use scratch::Scratch;
