//! All or nothing: files and directories are written beside their target and renamed when whole.
//!
//! Whatever goes wrong before the rename (an error, a full disk, a panic) removes what was written.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::{CheckpointError, io};

/// A directory under construction.
#[derive(Debug)]
pub(super) struct StagedDir {
    partial: PathBuf,
    target: PathBuf,
    replace: bool,
}

impl StagedDir {
    /// Starts a directory that will be `target`. A target that is not empty is refused unless `replace`.
    pub(super) fn new(target: &Path, replace: bool) -> Result<Self, CheckpointError> {
        if !replace && !is_absent_or_empty(target)? {
            return Err(CheckpointError::TargetNotEmpty { dir: target.to_owned() });
        }
        if let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(io(parent))?;
        }
        let partial = beside(target, "partial");
        remove_dir(&partial)?;
        fs::create_dir(&partial).map_err(io(&partial))?;
        Ok(StagedDir { partial, target: target.to_owned(), replace })
    }

    /// Where files go until [`StagedDir::commit`].
    pub(super) fn path(&self) -> &Path {
        &self.partial
    }

    /// Puts the directory in place.
    pub(super) fn commit(self) -> Result<(), CheckpointError> {
        sync_dir(&self.partial)?;
        let replaced = beside(&self.target, "replaced");
        remove_dir(&replaced)?;
        if self.target.exists() {
            if !self.replace && !is_absent_or_empty(&self.target)? {
                return Err(CheckpointError::TargetNotEmpty { dir: self.target.clone() });
            }
            fs::rename(&self.target, &replaced).map_err(io(&self.target))?;
        }
        if let Err(source) = fs::rename(&self.partial, &self.target) {
            // Best effort: the error to report is the first one.
            let _ = fs::rename(&replaced, &self.target);
            return Err(CheckpointError::Io { path: self.target.clone(), source });
        }
        remove_dir(&replaced)?;
        sync_parent(&self.target)
    }
}

impl Drop for StagedDir {
    fn drop(&mut self) {
        // After a commit there is nothing left to remove.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// A file under construction.
#[derive(Debug)]
pub(super) struct StagedFile {
    partial: PathBuf,
    target: PathBuf,
}

impl StagedFile {
    pub(super) fn new(target: &Path) -> Self {
        StagedFile { partial: beside(target, "partial"), target: target.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.partial
    }

    /// Puts the file, written and synced, in place of what was there.
    pub(super) fn commit(self) -> Result<(), CheckpointError> {
        fs::rename(&self.partial, &self.target).map_err(io(&self.target))?;
        sync_parent(&self.target)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.partial);
    }
}

/// `dir/name` -> `dir/.name.suffix-<process>`, on the same file system.
fn beside(target: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{suffix}-{}", std::process::id()));
    target.with_file_name(name)
}

fn is_absent_or_empty(dir: &Path) -> Result<bool, CheckpointError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(source) => Err(CheckpointError::Io { path: dir.to_owned(), source }),
    }
}

fn remove_dir(dir: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(dir) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(CheckpointError::Io { path: dir.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> Result<(), CheckpointError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_dir(parent)
}

/// Makes the names in a directory durable, where the system lets a directory be opened.
fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    if cfg!(unix) { File::open(dir).and_then(|file| file.sync_all()).map_err(io(dir)) } else { Ok(()) }
}
