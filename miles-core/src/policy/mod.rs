//! A policy version as one immutable value, and where versions live.
//!
//! ```text
//! master weights (F32) --BF16--> quantize_policy(map) --> Snapshot { version, digest, tensors } --> PolicyStore
//! ```
//!
//! [`quantize_policy`] is the only place in the library where weights are quantized.

mod error;
mod hand_off;
mod ledger;
mod quantize;
mod snapshot;
mod store;

pub use error::PolicyError;
pub use hand_off::{Comparison, Difference, HandedOff, compare_hand_off, first_difference};
pub use ledger::{Ledger, LedgerEvent};
pub use quantize::{PolicyContext, WeightSource, quantize_policy};
pub use snapshot::{PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
pub use store::{MemoryStore, PolicyStore};
