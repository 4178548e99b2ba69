//! A policy version as one immutable value, and where versions live.
//!
//! ```text
//! master weights (F32) --BF16--> quantize_policy(map) --> Snapshot { version, digest, tensors } --> PolicyStore
//! ```
//!
//! [`quantize_policy`] is the only place in the library where weights are quantized. What it made is in the [`Ledger`]:
//! [`verify()`] compares stored bytes with it, [`diff_ledgers`] finds where two runs part.

mod delta;
mod diff;
mod difference;
mod error;
mod export_event;
mod finding;
mod hand_off;
mod in_order;
mod ledger;
mod ledger_error;
mod ledger_file;
pub(crate) mod make;
mod quantize;
mod rebuild;
mod snapshot;
pub mod store;
mod verify;

pub use delta::{Delta, DeltaError, DeltaPart};
pub use diff::{Cause, DirectoryDiff, LedgerDiff, Parting, Side, diff_directories, diff_ledgers};
pub use difference::{ByteDifference, Code, Part, PartCount, TensorDifference, tensor_difference};
pub use error::PolicyError;
pub use export_event::{ExportEvent, FileDigest};
pub use finding::Finding;
pub use hand_off::{Comparison, HandedOff, compare_hand_off};
pub use ledger::{Ledger, LedgerEvent};
pub use ledger_error::LedgerError;
pub use ledger_file::{LedgerFile, RecordedVersion};
pub use quantize::{PolicyContext, WeightSource, quantize_policy};
pub use rebuild::{RuleQuantizer, StoredMasters, rebuild};
pub(crate) use snapshot::policy_digest;
pub use snapshot::{PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
pub use store::{DirectoryStore, MemoryStore, PolicyStore, StoreError, ThrottledStore, VerifiedStore};
pub use verify::{Verification, verify, verify_snapshot};
