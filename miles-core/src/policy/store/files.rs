//! [`Files`]: the file operations of a publication, as a layer that can be exchanged.
//!
//! A publication is a sequence of these calls and nothing else, so that a failing layer can stand for a full disk or a
//! power cut at each of them. Reading goes to the file system directly.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// What a publication does to a file system.
pub trait Files: Send + Sync {
    /// Makes a directory whose parent exists.
    ///
    /// # Errors
    /// If it exists or cannot be made.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes a new, empty file.
    ///
    /// # Errors
    /// If it exists or cannot be made.
    fn create(&self, file: &Path) -> io::Result<Box<dyn FileSink>>;

    /// Gives a directory another name in the same parent, at once; never over one that holds anything.
    ///
    /// # Errors
    /// If the new name is taken, or the directory cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// If that is not known to have happened.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Removes a directory and what is in it, bit by bit. One that is not there is no error.
    ///
    /// # Errors
    /// If something is left.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
}

/// A file being written.
pub trait FileSink: Write {
    /// Makes what was written durable.
    ///
    /// # Errors
    /// If that is not known to have happened.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdFiles;

impl Files for StdFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn FileSink>> {
        Ok(Box::new(File::create_new(file)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Elsewhere a directory cannot be opened, and its names are durable when the files are.
        if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl FileSink for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
