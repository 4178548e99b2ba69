//! [`Journal`]: which units of a conversion are finished, one line each, in a file that only grows.
//!
//! ```text
//! {"conversion":"<digest of source, map, quantizer and plan>"}
//! {"unit":3,"digests":["<of each member>"]}
//! ```
//!
//! A line that was cut short by the end of the process is dropped. A line is no proof: the unit is read back first.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::error::ConvertError;
use crate::Result;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::error::io;
use crate::digest::Digest;

/// The journal of one conversion, locked for this process.
pub(super) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
    conversion: Option<Digest>,
    finished: BTreeMap<usize, Vec<Digest>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    conversion: Digest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    unit: usize,
    digests: Vec<Digest>,
}

impl Journal {
    /// Opens or makes the file and locks it for this process.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut file = loop {
            let file = File::options().read(true).append(true).create(true).open(path).map_err(io(path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(ConvertError::Busy { path: path.to_owned() }.into()),
                Err(TryLockError::Error(source)) => {
                    return Err(CheckpointError::Io { path: path.to_owned(), source }.into());
                }
            }
            // Between opening and locking, another process may have finished and removed the file.
            if is_at(&file, path) {
                break file;
            }
        };
        let mut text = String::new();
        // What is not text was not written here, and starts nothing.
        if file.read_to_string(&mut text).is_err() {
            text.clear();
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (conversion, finished) = parse(&text[..whole]).unwrap_or_default();
        let length = if conversion.is_some() { whole as u64 } else { 0 };
        file.set_len(length).and_then(|()| file.seek(SeekFrom::End(0))).map_err(io(path))?;
        Ok(Journal { path: path.to_owned(), file: Mutex::new(file), conversion, finished })
    }

    /// Whether the journal is of this conversion.
    pub(super) fn is_of(&self, conversion: Digest) -> bool {
        self.conversion == Some(conversion)
    }

    /// Forgets everything and starts a conversion.
    pub(super) fn start(&mut self, conversion: Digest) -> Result<(), CheckpointError> {
        self.finished.clear();
        self.conversion = Some(conversion);
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        file.set_len(0).map_err(io(&self.path))?;
        self.append(&First { conversion })
    }

    /// The digests of a unit's members, if an earlier conversion finished it.
    pub(super) fn finished(&self, unit: usize) -> Option<&[Digest]> {
        self.finished.get(&unit).map(Vec::as_slice)
    }

    /// Adds a finished unit.
    pub(super) fn add(&self, unit: usize, digests: &[Digest]) -> Result<(), CheckpointError> {
        self.append(&Line { unit, digests: digests.to_vec() })
    }

    fn append(&self, line: &impl Serialize) -> Result<(), CheckpointError> {
        let mut text = serde_json::to_vec(line)
            .map_err(|error| CheckpointError::Io { path: self.path.clone(), source: error.into() })?;
        text.push(b'\n');
        // In one write, so that lines of several threads do not mix.
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text).map_err(io(&self.path))
    }
}

type Parsed = (Option<Digest>, BTreeMap<usize, Vec<Digest>>);

/// `None` when any line is not one of a journal.
fn parse(text: &str) -> Option<Parsed> {
    let mut lines = text.lines();
    let First { conversion } = serde_json::from_str(lines.next()?).ok()?;
    let mut finished = BTreeMap::new();
    for line in lines {
        let Line { unit, digests } = serde_json::from_str(line).ok()?;
        finished.insert(unit, digests);
    }
    Some((Some(conversion), finished))
}

/// Whether `path` still leads to this open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, found) = (file.metadata().map(identity), std::fs::metadata(path).map(identity));
    matches!((open, found), (Ok(open), Ok(found)) if open == found)
}

/// An open file cannot be removed there.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::Error;

    #[test]
    fn finished_units_come_back_and_a_cut_line_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (conversion, other) = (Digest::of(b"a"), Digest::of(b"b"));
        let mut journal = Journal::open(&path).unwrap();
        assert!(!journal.is_of(conversion));
        journal.start(conversion).unwrap();
        journal.add(7, &[other]).unwrap();
        journal.add(2, &[conversion, other]).unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let journal = Journal::open(&path).unwrap();
        assert!(journal.is_of(conversion) && !journal.is_of(other));
        assert_eq!((journal.finished(7), journal.finished(2)), (Some([other].as_slice()), None));
        journal.add(2, &[conversion, other]).unwrap();
        drop(journal);
        assert_eq!(fs::read(&path).unwrap(), whole, "the cut line went before the new one");
    }

    #[test]
    fn what_is_no_journal_starts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        for text in [b"\xFF\xFE\n".as_slice(), b"{}\n", b"\0\0\0\0\n", b"{\"unit\":1,\"digests\":[]}\n"] {
            fs::write(&path, text).unwrap();
            let journal = Journal::open(&path).unwrap();
            assert_eq!(journal.conversion, None);
            assert!(journal.finished.is_empty());
            assert_eq!(fs::read(&path).unwrap(), b"");
        }
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let first = Journal::open(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::Convert(ConvertError::Busy { .. }))));
        drop(first);
        Journal::open(&path).unwrap();
    }
}
