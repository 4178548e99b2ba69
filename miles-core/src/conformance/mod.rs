//! What every implementation of a plug-in trait has to hold, as a suite that anyone can run (feature `conformance`).
//!
//! One function per trait takes the value under test and returns a [`Report`]:
//!
//! ```
//! use miles_core::{conformance, format::Mxfp8};
//!
//! conformance::formats(&Mxfp8::DEFAULT).require()?;
//! # Ok::<(), conformance::ConformanceError>(())
//! ```
//!
//! and [`conformance_tests!`](crate::conformance_tests) makes one `#[test]` per group of cases out of it, so that what
//! fails is seen apart:
//!
//! ```
//! # use miles_core::format::Mxfp8;
//! miles_core::conformance_tests! { format: Mxfp8::DEFAULT }
//! ```
//!
//! Four rules hold for every suite:
//!
//! - A panic of the value under test is a failed case, and the rest still runs.
//! - What is declared unsupported has to answer [`Error::Unsupported`](crate::Error::Unsupported) when it is asked for;
//!   what is declared supported must not.
//! - A report without one passed case fails: nothing ran.
//! - Cases are functions of the value under test alone: no environment, no clock, no random seed.

pub mod broken;
mod compare;
mod formats;
mod golden;
mod grid;
mod macros;
mod quantizers;
mod report;
mod suite;

pub use formats::{FORMAT_GROUPS, format_group, formats};
pub use quantizers::{Publisher, QUANTIZER_GROUPS, publication, quantizer, quantizer_group, quantizer_with};
pub use report::{Case, ConformanceError, Outcome, Report};
pub use suite::{Failure, Suite, Verdict};
