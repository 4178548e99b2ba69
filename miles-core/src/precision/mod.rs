//! The precision decision, taken once: which tensor has which format, and how its gradients are computed.
//!
//! ```text
//! Recipe (a name)  -->  rules, first match wins  --resolve-->  PrecisionMap (total, hashed, printable)
//!                       + overrides in front
//! ```
//!
//! A [`PrecisionMap`] is total over the network's parameters, hashed and printable; the [`PartitionPlan`] of routed
//! experts is part of it. Conversion, training, rollout and
//! publication all read it; nothing else decides by tensor name or layer number.

mod error;
mod map;
mod partition;
mod recipe;
mod resolve;
mod rule;
mod table;

pub use error::PrecisionError;
pub use map::{BackwardMode, PrecisionEntry, PrecisionMap, TensorFormat};
pub use partition::{PartitionAxis, PartitionPlan};
pub use recipe::Recipe;
pub use resolve::{resolve, resolve_with};
pub(crate) use rule::glob;
pub use rule::{Layers, Rule};
pub use table::{PrecisionTable, TableRow};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
