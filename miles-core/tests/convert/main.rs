//! A conversion that never holds a model makes the directory that the writer of policy versions makes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../checkpoint/files.rs"]
#[allow(dead_code)]
mod files;
mod support;

mod families;
mod killed;
mod refused;
mod same_bytes;
mod verified;
