//! [`DirectoryStore`]: one folder per version.
//!
//! ```text
//! dir/version-0000000012/snapshot.json        what it is (see `description.rs`)
//!                        tensors.safetensors  codes, scales, outer scales, amax values, dense tensors
//! dir/.staged-...                             a version being written
//! dir/.removed-...                            a version being removed
//! ```
//!
//! A version is written beside its place, file by file durable, then renamed; it goes by being renamed first, and the
//! new name made durable, before its files are removed. So a folder called `version-...` is whole at every moment, also
//! after a power cut. Unlike an exported checkpoint it keeps every format, variant, cut and scope to the bit.

mod change;
mod description;
mod listing;
mod parts;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;

use super::error::io_error;
use super::{Announcement, Files, PolicyStore, Retention, StdFiles, StoreError};
use crate::format::FormatRule;
use crate::network::Network;
use crate::policy::{PolicyError, PolicyVersion, Snapshot};
use crate::precision::PrecisionMap;
use crate::{Error, Result};
use description::{check_kin, network_digest};
use read::Reader;

/// How a directory of versions is kept.
#[derive(Clone)]
pub struct DirectoryOptions {
    /// Newest versions that are kept (at least one).
    pub keep_last: usize,
    /// Rules of formats that are neither built in nor registered.
    pub rules: Vec<Arc<dyn FormatRule>>,
    /// Versions from this one on are removed at opening: a run that goes on from an earlier one makes them again.
    pub resumed_at: Option<PolicyVersion>,
    /// The file operations of a publication.
    pub files: Arc<dyn Files>,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions { keep_last: 2, rules: Vec::new(), resumed_at: None, files: Arc::new(StdFiles) }
    }
}

/// Keeps the newest versions, and those that are pinned, in a directory.
///
/// Several processes may have one directory open: each version is published once, whoever is first. A subscription
/// hears of this value's own publications; those of others are seen by the next call. Publication and reading block the
/// calling thread while files are written and read.
///
/// A version in use (published or read here, and still held by somebody) is handed out again without reading its files.
pub struct DirectoryStore {
    dir: PathBuf,
    network: Arc<Network>,
    map: Arc<PrecisionMap>,
    options: DirectoryOptions,
    /// Held by whoever publishes or removes.
    changing: Mutex<()>,
    state: Mutex<State>,
    announcement: Announcement,
}

struct State {
    retention: Retention,
    in_use: BTreeMap<PolicyVersion, Weak<Snapshot>>,
    /// The version whose folder may have its name but may lose it again, and the number of publications begun.
    publication: (Option<PolicyVersion>, u64),
    removal_failure: Option<Arc<StoreError>>,
}

impl DirectoryStore {
    /// Opens a directory of versions of `network` by `map`, making it where there is none. Every whole version is back;
    /// what an interrupted publication or removal has left is not a version.
    ///
    /// # Errors
    /// [`StoreError::OtherNetwork`] or [`StoreError::OtherMap`] if the newest version is of another model or map,
    /// [`StoreError::BadDescription`] if it cannot be understood, [`StoreError::Io`].
    pub fn open(
        dir: &Path,
        network: Arc<Network>,
        map: Arc<PrecisionMap>,
        options: DirectoryOptions,
    ) -> Result<Self, PolicyError> {
        std::fs::create_dir_all(dir).map_err(io_error(dir))?;
        let state = State {
            retention: Retention::new(options.keep_last),
            in_use: BTreeMap::new(),
            publication: (None, 0),
            removal_failure: None,
        };
        let store = DirectoryStore {
            dir: dir.to_owned(),
            network,
            map,
            options,
            changing: Mutex::default(),
            state: Mutex::new(state),
            announcement: Announcement::new(),
        };
        let held = store.held()?;
        if let Some(&newest) = held.last() {
            store.reader().describe(&store.folder(newest), newest)?;
        }
        let is_left_over = |version: &PolicyVersion| store.options.resumed_at.is_some_and(|first| *version >= first);
        let (left_over, held): (Vec<_>, Vec<_>) = held.into_iter().partition(is_left_over);
        // Newest first: whatever stops this leaves no gap.
        left_over.iter().rev().try_for_each(|version| store.remove(&[*version]))?;
        if let Some(&newest) = held.last() {
            store.announcement.announce(newest);
        }
        listing::remove_leftovers(&*store.options.files, &store.dir, held.last().copied())?;
        Ok(store)
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The versions held, in growing order.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn held(&self) -> Result<Vec<PolicyVersion>, StoreError> {
        loop {
            let (unsettled, begun) = self.lock().publication;
            let mut held = listing::versions(&self.dir)?;
            // Otherwise the list may have a version of a publication that began since, and was taken back.
            if self.lock().publication.1 == begun {
                held.retain(|version| Some(*version) != unsettled);
                return Ok(held);
            }
        }
    }

    /// Keeps a version that is held until [`unpin`](Self::unpin), whatever is published meanwhile. Pins are counted,
    /// and live as long as this value: a process that opens the directory again pins again.
    ///
    /// # Errors
    /// [`PolicyError::UnknownVersion`], [`StoreError::Io`].
    pub fn pin(&self, version: PolicyVersion) -> Result<(), PolicyError> {
        // Nothing is removed meanwhile.
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.held()?;
        if !held.contains(&version) {
            return Err(unknown(version, &held));
        }
        self.lock().retention.pin(version);
        Ok(())
    }

    /// Takes one pin off; a version beyond the newest ones goes with its last pin.
    ///
    /// # Errors
    /// [`StoreError::NotPinned`], [`StoreError::Io`].
    pub fn unpin(&self, version: PolicyVersion) -> Result<(), StoreError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock().retention.unpin(version)?;
        self.trim()
    }

    /// Why the last publication could not remove an old version; the next one tries again. The publication itself has
    /// succeeded, and the old version is whole or gone.
    #[must_use]
    pub fn removal_failure(&self) -> Option<Arc<StoreError>> {
        self.lock().removal_failure.clone()
    }

    fn read(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        if let Some(snapshot) = self.lock().in_use.get(&version).and_then(Weak::upgrade) {
            return Ok(snapshot);
        }
        let held = self.held().map_err(PolicyError::from)?;
        if !held.contains(&version) {
            return Err(unknown(version, &held).into());
        }
        match self.reader().read(&self.folder(version), version) {
            Ok(snapshot) => {
                let snapshot = Arc::new(snapshot);
                self.remember(&snapshot);
                Ok(snapshot)
            }
            Err(error) => {
                // It may have been removed while it was read.
                let held = self.held().map_err(PolicyError::from)?;
                Err(if held.contains(&version) { error } else { unknown(version, &held).into() })
            }
        }
    }

    fn remember(&self, snapshot: &Arc<Snapshot>) {
        let mut state = self.lock();
        state.in_use.retain(|_, snapshot| snapshot.strong_count() > 0);
        state.in_use.insert(snapshot.stamp().version, Arc::downgrade(snapshot));
    }

    fn reader(&self) -> Reader<'_> {
        Reader { network: &self.network, map: &self.map, rules: &self.options.rules }
    }

    fn folder(&self, version: PolicyVersion) -> PathBuf {
        self.dir.join(listing::folder_name(version))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl PolicyStore for DirectoryStore {
    async fn publish(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let stamp = snapshot.stamp();
        let found = (network_digest(snapshot.network()), snapshot.map().digest());
        check_kin(&stamp.to_string(), (&self.network, &self.map), found).map_err(PolicyError::from)?;
        {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            self.check_newer(stamp.version)?;
            self.begin(stamp.version);
            let placed = self.place(&snapshot);
            self.lock().publication.0 = None;
            placed?;
            self.remember(&snapshot);
            let newest = Some(stamp.version);
            let tidied = self.trim().and_then(|()| listing::remove_leftovers(&*self.options.files, &self.dir, newest));
            self.lock().removal_failure = tidied.err().map(Arc::new);
        }
        self.announcement.announce(stamp.version);
        Ok(())
    }

    async fn latest(&self) -> Result<Option<Arc<Snapshot>>> {
        loop {
            let Some(&newest) = self.held().map_err(PolicyError::from)?.last() else { return Ok(None) };
            match self.read(newest) {
                // Newer ones have pushed it out since.
                Err(Error::Policy(PolicyError::UnknownVersion { .. })) => {}
                result => return result.map(Some),
            }
        }
    }

    async fn version(&self, version: PolicyVersion) -> Result<Arc<Snapshot>> {
        self.read(version)
    }

    async fn newer_than(&self, version: Option<PolicyVersion>) -> Result<Arc<Snapshot>> {
        // What another process has published by now was not announced here.
        if let Some(&newest) = self.held().map_err(PolicyError::from)?.last() {
            self.announcement.announce(newest);
        }
        let announced = self.announcement.newer_than(version).await;
        Ok(self.latest().await?.ok_or_else(|| unknown(announced, &[]))?)
    }
}

fn unknown(version: PolicyVersion, held: &[PolicyVersion]) -> PolicyError {
    PolicyError::UnknownVersion { version, held: held.iter().map(|version| version.0).collect() }
}
