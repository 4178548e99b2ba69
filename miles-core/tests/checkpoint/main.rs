//! Promises of checkpoints: strict reading, bytes unchanged, writing all or nothing.

mod damaged;
mod files;
mod layouts;
mod open;
mod packed;
mod state;
mod tied;
mod writing;
