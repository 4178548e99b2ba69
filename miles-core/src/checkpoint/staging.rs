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
        refuse_occupied(target, replace)?;
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
        put_in_place(&self.partial, &self.target, self.replace)
    }
}

/// Renames a directory that is whole to `target`. What is there goes only if it is empty, or with `replace`.
pub(crate) fn put_in_place(whole: &Path, target: &Path, replace: bool) -> Result<(), CheckpointError> {
    sync_dir(whole)?;
    let replaced = beside(target, "replaced");
    remove_dir(&replaced)?;
    if target.exists() {
        refuse_occupied(target, replace)?;
        fs::rename(target, &replaced).map_err(io(target))?;
    }
    if let Err(source) = fs::rename(whole, target) {
        // Best effort: the error to report is the first one.
        let _ = fs::rename(&replaced, target);
        return Err(CheckpointError::Io { path: target.to_owned(), source });
    }
    remove_dir(&replaced)?;
    sync_parent(target)
}

/// Refuses a target that holds something, unless it is to be replaced.
pub(crate) fn refuse_occupied(target: &Path, replace: bool) -> Result<(), CheckpointError> {
    if replace || is_absent_or_empty(target)? {
        return Ok(());
    }
    Err(CheckpointError::TargetNotEmpty { dir: target.to_owned() })
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

pub(crate) fn remove_dir(dir: &Path) -> Result<(), CheckpointError> {
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
pub(crate) fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    if cfg!(unix) { File::open(dir).and_then(|file| file.sync_all()).map_err(io(dir)) } else { Ok(()) }
}
