//! The network, described once.
//!
//! A [`Network`] is the list of every parameter of a model ([`Parameter`]) and the structure that uses them
//! ([`Layer`]). [`forward`] is the only forward pass in the library: control flow over the small set of
//! [`Operations`] that a backend supplies. Rollout and training differ in what their operations *remember*, never in
//! what they compute.
//!
//! ```text
//! ModelConfig -> Network { parameters, layers } -> forward(network, operations) -> hidden [rows, hidden]
//!                                                  logits(network, operations, hidden) -> [rows, vocab]
//! ```

mod build;
mod forward;
mod inventory;
mod layers;
mod operations;
mod parameter;

pub use build::Network;
pub use forward::{forward, logits};
pub use inventory::Inventory;
pub use layers::{Attention, Expert, GroupedAttention, Layer, Linear, LinearOutput, MlaAttention, Mlp, Moe, QueryPath};
pub use operations::{AttentionShape, HeadColumns, Operations, RopeShape};
pub use parameter::{ParamId, Parameter, Role};
