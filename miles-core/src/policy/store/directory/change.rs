//! What changes the directory: placing a version, and removing others. `changing` is held meanwhile.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::StoreError;
use super::super::error::io_error;
use super::{DirectoryStore, listing, write};
use crate::policy::{PolicyError, PolicyVersion, Snapshot};

impl DirectoryStore {
    pub(super) fn check_newer(&self, published: PolicyVersion) -> Result<(), PolicyError> {
        match listing::versions(&self.dir)?.last() {
            Some(&newest) if published <= newest => Err(PolicyError::NotMonotonic { published, newest }),
            _ => Ok(()),
        }
    }

    pub(super) fn begin(&self, version: PolicyVersion) {
        let publication = &mut self.lock().publication;
        *publication = (Some(version), publication.1 + 1);
    }

    pub(super) fn place(&self, snapshot: &Snapshot) -> Result<(), PolicyError> {
        let (version, files) = (snapshot.stamp().version, &*self.options.files);
        let (staged, target) = (self.hidden(listing::STAGED, version), self.folder(version));
        files.create_dir(&staged).map_err(io_error(&staged))?;
        let written = write::write_version(files, &staged, snapshot)
            .and_then(|()| files.rename(&staged, &target).map_err(io_error(&target)));
        if let Err(error) = written {
            // What cannot be removed now is a leftover for the next publication; the error to report is the first,
            // unless another process was faster, which is then the cause.
            let _ = files.remove_dir(&staged);
            self.check_newer(version)?;
            return Err(error.into());
        }
        files.sync_dir(&self.dir).map_err(|source| {
            // The name is there, but may not be after a power cut: whoever was told that this failed must not find it.
            // The first error is the one to report; what cannot be removed now is a leftover.
            let _ = self.remove(&[version]);
            io_error(&self.dir)(source).into()
        })
    }

    /// Removes what is beyond the newest versions and not pinned.
    pub(super) fn trim(&self) -> Result<(), StoreError> {
        let held = listing::versions(&self.dir)?;
        let overdue = self.lock().retention.overdue(&held);
        self.remove(&overdue)
    }

    /// Removes versions; one that another process has removed already is no error.
    pub(super) fn remove(&self, versions: &[PolicyVersion]) -> Result<(), StoreError> {
        let files = &*self.options.files;
        let mut removed = Vec::with_capacity(versions.len());
        for &version in versions {
            let (folder, hidden) = (self.folder(version), self.hidden(listing::REMOVED, version));
            match files.rename(&folder, &hidden) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                result => {
                    result.map_err(io_error(&folder))?;
                    removed.push(hidden);
                }
            }
            self.lock().in_use.remove(&version);
        }
        if !removed.is_empty() {
            // Before the files go: otherwise a power cut could bring back the old name of an empty folder.
            files.sync_dir(&self.dir).map_err(io_error(&self.dir))?;
        }
        removed.iter().try_for_each(|hidden| files.remove_dir(hidden).map_err(io_error(hidden)))
    }

    /// A name that nobody else uses: not another store of this process, nor one of another process, nor one that
    /// ended and had the same number.
    fn hidden(&self, prefix: &str, version: PolicyVersion) -> PathBuf {
        let process = std::process::id();
        loop {
            let number = HIDDEN.fetch_add(1, Ordering::Relaxed);
            let path = self.dir.join(format!("{prefix}{}-{process}-{number}", listing::folder_name(version)));
            if path.symlink_metadata().is_err() {
                return path;
            }
        }
    }
}

/// Numbers the hidden names of this process.
static HIDDEN: AtomicU64 = AtomicU64::new(0);
