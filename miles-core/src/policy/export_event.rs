//! What a ledger says about an exported directory: length and digest of every file.
//!
//! A tensor's digest covers codes and scales. It does not cover the rest of a directory: headers, the index, scales that
//! engines read beside the weights, and the configuration that decides what the bytes mean. This event does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{PolicyError, PolicyVersion};
use crate::digest::Digest;

/// One export of one version; the line of a ledger that follows the version's quantization events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportEvent {
    /// Run.
    pub run: String,
    /// Training step that made the version.
    pub step: u64,
    /// Policy version.
    pub version: PolicyVersion,
    /// Digest of the precision map.
    pub precision_map: Digest,
    /// Policy digest of the version: what the map's digest and the version's tensor digests give.
    pub policy_digest: Digest,
    /// Whether the tensors are the version's own bytes; otherwise codes were dequantized.
    pub as_held: bool,
    /// Every file of the directory, by its path in it.
    pub files: BTreeMap<String, FileDigest>,
}

/// Length and digest of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// Length.
    pub bytes: u64,
    /// BLAKE3 over the bytes.
    pub digest: Digest,
}

impl FileDigest {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(path: &Path) -> Result<Self, PolicyError> {
        let read = || -> io::Result<Self> {
            let mut file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok(FileDigest { bytes, digest: Digest::of_reader(&mut file)? })
        };
        read().map_err(failed(path))
    }

    /// Reads every file below a directory.
    ///
    /// # Errors
    /// If one cannot be read, or something is neither a file nor a directory.
    pub fn of_directory(dir: &Path) -> Result<BTreeMap<String, Self>, PolicyError> {
        let mut files = BTreeMap::new();
        for (name, path, is_file) in entries(dir)? {
            if !is_file {
                let source = io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a directory");
                return Err(failed(&path)(source));
            }
            files.insert(name, Self::of(&path)?);
        }
        Ok(files)
    }
}

/// Everything below a directory but directories: path in it with `/`, path, and whether it is a regular file. Sorted.
pub(super) fn entries(dir: &Path) -> Result<Vec<(String, PathBuf, bool)>, PolicyError> {
    let mut found = Vec::new();
    collect(dir, "", &mut found)?;
    found.sort_unstable();
    Ok(found)
}

fn collect(dir: &Path, prefix: &str, into: &mut Vec<(String, PathBuf, bool)>) -> Result<(), PolicyError> {
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let entry = entry.map_err(failed(dir))?;
        let (name, path) = (format!("{prefix}{}", entry.file_name().to_string_lossy()), entry.path());
        match fs::metadata(&path).map_err(failed(&path))? {
            metadata if metadata.is_dir() => collect(&path, &format!("{name}/"), into)?,
            metadata => into.push((name, path, metadata.is_file())),
        }
    }
    Ok(())
}

pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> PolicyError + '_ {
    move |source| PolicyError::Io { path: path.display().to_string(), source }
}
