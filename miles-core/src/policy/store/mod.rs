//! Where policy versions live.
//!
//! ```text
//! publish(snapshot) --> PolicyStore --> latest, version, newer_than (awaited by engines)
//!                         |
//!                         +-- MemoryStore                   the newest versions, and those pinned, in memory
//!                         +-- DirectoryStore                one folder per version, over a layer of file operations
//!                         +-- VerifiedStore<S>              recomputes digests on the way in and out
//!                         +-- ThrottledStore<S>             paces publication by changed bytes
//! ```
//!
//! No store needs an async runtime: whatever waits does so in an [`Announcement`] or a [`Timer`], which wake any executor.

mod announcement;
mod directory;
mod error;
mod files;
mod memory;
mod retention;
mod throttled;
mod timer;
mod verified;

use std::sync::Arc;

use async_trait::async_trait;

use super::{PolicyVersion, Snapshot};
use crate::Result;

pub use announcement::{Announced, Announcement};
pub use directory::{DirectoryOptions, DirectoryStore};
pub use error::StoreError;
pub use files::{FileSink, Files, StdFiles};
pub use memory::MemoryStore;
pub use retention::Retention;
pub use throttled::ThrottledStore;
pub use timer::{ThreadTimer, Timer};
pub use verified::VerifiedStore;

/// Holds published policy versions.
///
/// Publication is all-or-nothing, versions only grow, and a reader keeps the snapshot it holds while newer ones land.
#[async_trait]
pub trait PolicyStore: Send + Sync {
    /// Makes a snapshot the newest version.
    ///
    /// # Errors
    /// If the version is not newer than the newest held, or storage fails; the store is then unchanged.
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()>;

    /// The newest version, if any.
    ///
    /// # Errors
    /// If storage fails.
    async fn latest(&self) -> Result<Option<Arc<Snapshot>>>;

    /// A given version.
    ///
    /// # Errors
    /// If it is not held or storage fails.
    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>>;

    /// The newest version as soon as it is newer than `version` (`None`: than nothing): at once where it is already.
    ///
    /// Every waiter is woken by a publication; versions published in between are passed over. Dropping the future ends
    /// the wait and takes nothing from other waiters.
    ///
    /// # Errors
    /// If storage fails.
    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>>;
}

/// A shared store is a store, so that wrappers go around one whose kind is decided while the program runs.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: PolicyStore + ?Sized> PolicyStore for Arc<S> {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        self.as_ref().publish(snapshot).await
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        self.as_ref().latest().await
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        self.as_ref().version(version).await
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        self.as_ref().newer_than(version).await
    }
}
