//! The precision decision, taken once: which tensor has which format, and how its gradients are computed.
//!
//! A [`PrecisionMap`] is total over the network's parameters, hashed and printable. Conversion, training, rollout and
//! publication all read it; nothing else decides by tensor name or layer number.

mod error;
mod map;

pub use error::PrecisionError;
pub use map::{BackwardMode, PrecisionEntry, PrecisionMap, TensorFormat};
