//! The promises that hold across crates, on the real CPU backend: one file per promise.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod bad_input;
mod bad_values;
mod batch_invariance;
mod cache;
mod checkpoint_layouts;
mod conformance;
mod contract;
mod denominator;
mod eos;
mod ledger;
mod ledger_tool;
mod live_publication;
mod mismatch;
mod partition;
mod plugins;
mod resume;
mod stale_weights;
mod stored_layouts;
mod support;
mod tokens;
