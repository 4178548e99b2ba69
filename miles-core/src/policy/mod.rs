//! A policy version as one immutable value, and where versions live.
//!
//! ```text
//! master weights (F32) --BF16--> quantize_policy(map) --> Snapshot { version, digest, tensors } --> PolicyStore
//! ```
//!
//! [`quantize_policy`] is the only place in the library where weights are quantized. What it made is in the [`Ledger`]:
//! [`audit_ledger`] compares it with itself, [`verify()`] stored bytes with it, and [`diff_ledgers`] finds where two runs
//! part.

mod audit;
mod delta;
mod diff;
mod diff_directories;
mod difference;
mod error;
mod export_event;
mod file_difference;
mod finding;
mod hand_off;
mod in_order;
mod ledger;
mod ledger_error;
mod ledger_file;
mod log_line;
pub(crate) mod make;
mod quantize;
mod rebuild;
mod recorded_version;
mod snapshot;
pub mod store;
mod verify;

pub use audit::{AuditedVersion, KnownPolicy, LedgerAudit, audit_ledger};
pub use delta::{Delta, DeltaError, DeltaPart};
pub use diff::{Cause, ExportDifference, LedgerDiff, Parting, Side, diff_ledgers};
pub use diff_directories::{DirectoryDiff, diff_directories};
pub use difference::{ByteDifference, Code, Part, PartCount, TensorDifference, tensor_difference};
pub use error::PolicyError;
pub use export_event::{ExportEvent, FileDigest};
pub use file_difference::{FileCause, FileDifference};
pub use finding::Finding;
pub use hand_off::{Comparison, HandedOff, compare_hand_off};
pub use ledger::{Ledger, LedgerEvent};
pub use ledger_error::LedgerError;
pub use ledger_file::LedgerFile;
pub use log_line::LogLine;
pub use quantize::{PolicyContext, WeightSource, quantize_policy};
pub use rebuild::{Rebuilt, RuleQuantizer, StoredMasters, rebuild, recorded_map};
pub use recorded_version::RecordedVersion;
pub(crate) use snapshot::policy_digest;
pub use snapshot::{PolicyStamp, PolicyTensor, PolicyVersion, Snapshot};
pub use store::{DirectoryStore, MemoryStore, PolicyStore, StoreError, ThrottledStore, VerifiedStore};
pub use verify::{Verification, stored_version, verify, verify_directory, verify_rebuilt, verify_snapshot};
