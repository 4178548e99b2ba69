//! Words and contracts of miles: low-precision reinforcement-learning post-training of language models.
//!
//! An RL system holds two copies of one policy: the trainer's and the rollout engine's. This crate is what they agree
//! on: number formats and quantized formats to the bit ([`number`], [`mod@format`]), which tensor has which format
//! ([`precision`]), how a checkpoint becomes a policy ([`model`], [`checkpoint`], [`convert`], [`policy`]), the network described
//! once ([`network`]), and the traits that users implement ([`plugin`], [`registry`]). It holds no device code, no
//! unsafe and no async runtime.
#![forbid(unsafe_code)]

pub mod checkpoint;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod convert;
pub mod digest;
mod error;
pub mod format;
pub mod json;
pub mod model;
pub mod names;
pub mod network;
pub mod number;
pub mod plugin;
pub mod policy;
pub mod precision;
pub mod random;
pub mod registry;
pub mod tensor;

pub use error::{Error, Result};
