//! Promises of checkpoints: strict reading, bytes unchanged, writing all or nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod compressed;
mod conversions;
mod damaged;
mod files;
mod foreign;
mod foreign_config;
mod kept_lists;
mod layouts;
mod open;
mod packed;
mod state;
mod tied;
mod writing;
