//! [`Workplace`]: the directory `.OUTPUT.partial` beside an output, which survives a killed conversion.
//!
//! ```text
//! .OUTPUT.partial/journal   what is finished; locked while a process works here
//! .OUTPUT.partial/files/    what will be OUTPUT
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::error::ConvertError;
use super::journal::Journal;
use crate::Result;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::error::io;
use crate::checkpoint::staging::{put_in_place, remove_dir};
use crate::digest::Digest;

/// Where a conversion works.
pub(super) struct Workplace {
    root: PathBuf,
    files: PathBuf,
    output: PathBuf,
}

impl Workplace {
    /// Takes the place beside `output`, with the journal of the conversion that was interrupted there, if it is this one.
    /// What another conversion left is removed.
    pub(super) fn open(output: &Path, conversion: Digest) -> Result<(Self, Journal)> {
        let Some(name) = output.file_name() else {
            return Err(ConvertError::NoName { path: output.to_owned() }.into());
        };
        let mut partial = OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        let root = output.with_file_name(partial);
        let files = root.join("files");
        fs::create_dir_all(&root).map_err(io(&root))?;
        let mut journal = Journal::open(&root.join("journal"))?;
        if !journal.is_of(conversion) || !files.is_dir() {
            remove_dir(&files)?;
            journal.start(conversion)?;
            fs::create_dir(&files).map_err(io(&files))?;
        }
        Ok((Workplace { root, files, output: output.to_owned() }, journal))
    }

    /// Where files are written.
    pub(super) fn files(&self) -> &Path {
        &self.files
    }

    /// The path that a file will have, for errors.
    pub(super) fn shown(&self, name: &str) -> PathBuf {
        self.output.join(name)
    }

    /// Writes a small file and waits until it is on disk.
    pub(super) fn write_durably(&self, name: &str, text: &str) -> Result<(), CheckpointError> {
        let write = || -> std::io::Result<()> {
            let mut file = File::create(self.files.join(name))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(io(&self.shown(name)))
    }

    /// Puts the directory in place and leaves nothing beside it.
    pub(super) fn commit(self, replace: bool) -> Result<(), CheckpointError> {
        put_in_place(&self.files, &self.output, replace)?;
        self.remove()
    }

    /// Removes the place.
    pub(super) fn remove(&self) -> Result<(), CheckpointError> {
        remove_dir(&self.root)
    }
}
