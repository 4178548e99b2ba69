//! The precision decision, taken once: which tensor has which format, and how its gradients are computed.
//!
//! ```text
//! Recipe (a name)  -->  RuleList, first match wins  --resolve-->  PrecisionMap (total, hashed, printable)
//!                       + overrides in front
//! ```
//!
//! A [`PrecisionMap`] is total over an inventory's tensors, hashed and printable; the [`PartitionPlan`] of routed
//! experts is part of it. Conversion, training, rollout and publication all read it; nothing else decides by tensor name
//! or layer number. [`RuleList::why`] tells which rule decided a tensor, [`RuleList::uses`] what each rule did.

mod backend;
mod document;
mod error;
mod list;
mod map;
mod partition;
mod recipe;
mod resolve;
mod rule;
mod shape;
mod table;

pub use backend::check_backend;
pub use document::{MapDocument, MapTensor};
pub use error::{NoEffect, PrecisionError};
pub use list::{RuleAt, RuleList, RuleUse, Why};
pub use map::{BackwardMode, PrecisionEntry, PrecisionMap, TensorFormat};
pub use partition::{PartitionAxis, PartitionPlan};
pub use recipe::Recipe;
pub use resolve::{resolve, resolve_list, resolve_with};
pub(crate) use rule::glob;
pub use rule::{Layers, Rule, RulePartition};
pub use shape::ShapeCondition;
pub use table::{PrecisionTable, TableRow};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
