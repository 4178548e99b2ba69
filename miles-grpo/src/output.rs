//! The output directory: what a run leaves, where, and who may write there.
//!
//! ```text
//! out/run.toml         the config, defaults included; its presence marks a run
//! out/metrics.jsonl    one object per step
//! out/ledger.jsonl     one object per tensor and version, one for the exported policy
//! out/checkpoints/     step-N/ directories
//! out/policy/          the trained policy as a Hugging Face directory
//! out/versions/        version-N/ directories of a store on disk
//! out/report.html
//! ```

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use miles_core::digest::Digest;

use crate::config::ExistingOutput;

/// What can go wrong with the output directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// Reading or writing failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The directory holds a run and neither resuming nor overwriting was asked for.
    #[error(
        "{} already holds a run ({found}); set run.existing to \"resume\" or \"overwrite\" (--resume, --overwrite), or run.out to another directory",
        dir.display()
    )]
    Occupied {
        /// Directory.
        dir: PathBuf,
        /// What was found.
        found: &'static str,
    },
    /// A line of a metrics file that is not what this crate writes.
    #[error("{}:{line}: {source}", path.display())]
    Metrics {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
    /// A last line of a metrics file without its end: whoever wrote it was stopped while writing.
    #[error("{}:{line}: the last line is torn after {bytes} bytes", path.display())]
    TornMetrics {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Bytes of it that are there.
        bytes: usize,
    },
    /// A file that is shorter than a checkpoint says.
    #[error("{}: {actual_bytes} bytes, but the checkpoint was saved after {expected_bytes}", path.display())]
    Shortened {
        /// File.
        path: PathBuf,
        /// Bytes at the time of saving.
        expected_bytes: u64,
        /// Bytes now.
        actual_bytes: u64,
    },
    /// A plot could not be drawn.
    #[error("report plot `{plot}`: {why}")]
    Plot {
        /// Plot.
        plot: &'static str,
        /// Cause.
        why: String,
    },
}

/// Names an I/O error's file.
pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> OutputError + '_ {
    move |source| OutputError::Io { path: path.to_owned(), source }
}

/// A claimed output directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputDir {
    dir: PathBuf,
}

impl OutputDir {
    /// Looks at a directory; says whether an earlier run is to be gone on with. Writes and deletes nothing.
    pub(crate) fn inspect(dir: &Path, existing: ExistingOutput) -> Result<(Self, bool), OutputError> {
        let out = OutputDir { dir: dir.to_owned() };
        match (OWNED.into_iter().find(|name| dir.join(name).exists()), existing) {
            (Some(found), ExistingOutput::Refuse) => Err(OutputError::Occupied { dir: dir.to_owned(), found }),
            (Some(_), ExistingOutput::Resume) => Ok((out, true)),
            (Some(_), ExistingOutput::Overwrite) | (None, _) => Ok((out, false)),
        }
    }

    /// Makes the directory; what an earlier run left there is deleted unless it is gone on with.
    pub(crate) fn claim(&self, is_resumed: bool) -> Result<(), OutputError> {
        if !is_resumed {
            OWNED.into_iter().try_for_each(|name| remove(&self.dir.join(name)))?;
        }
        fs::create_dir_all(&self.dir).map_err(io(&self.dir))
    }

    /// The directory of a run that is only read.
    pub(crate) fn of(dir: &Path) -> Self {
        OutputDir { dir: dir.to_owned() }
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join(OWNED[0])
    }

    pub(crate) fn metrics(&self) -> PathBuf {
        self.dir.join(OWNED[1])
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.join(OWNED[2])
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.dir.join(OWNED[3])
    }

    pub(crate) fn policy(&self) -> PathBuf {
        self.dir.join(OWNED[4])
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.dir.join(OWNED[5])
    }

    pub(crate) fn versions(&self) -> PathBuf {
        self.dir.join(OWNED[6])
    }

    /// A place for a trainer's large temporary files.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }
}

/// Everything a run leaves; the only names that overwriting deletes.
const OWNED: [&str; 7] =
    ["run.toml", "metrics.jsonl", "ledger.jsonl", "checkpoints", "policy", "report.html", "versions"];

/// What of the output directory `out` an input lies in, links followed: the run would replace it.
pub(crate) fn replaced_by(out: &Path, input: &Path) -> Option<PathBuf> {
    let input = fs::canonicalize(input).ok()?;
    let owned = OWNED.into_iter().map(|name| out.join(name));
    owned.into_iter().find(|owned| fs::canonicalize(owned).is_ok_and(|owned| input.starts_with(owned)))
}

/// Writes a file whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    let partial = path.with_extension("partial");
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&partial, path));
    if placed.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&partial);
    }
    placed.map_err(io(path))
}

/// Cuts a file back to what it was when a checkpoint was saved.
pub(crate) fn truncate(path: &Path, bytes: u64) -> Result<(), OutputError> {
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(io(path))?;
    let actual_bytes = file.metadata().map_err(io(path))?.len();
    if actual_bytes < bytes {
        return Err(OutputError::Shortened { path: path.to_owned(), expected_bytes: bytes, actual_bytes });
    }
    file.set_len(bytes).and_then(|()| file.sync_all()).map_err(io(path))
}

/// The first bytes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Their digest.
    pub digest: Digest,
    /// Lines that begin in them.
    pub lines: usize,
    /// Bytes up to the end of the last whole line in them.
    pub whole_bytes: u64,
}

impl Prefix {
    /// Reads the first `bytes` bytes of a file, or all of a shorter one.
    pub(crate) fn of(path: &Path, bytes: u64) -> Result<Self, OutputError> {
        let mut counted =
            Counted { input: File::open(path).map_err(io(path))?.take(bytes), read: 0, ends: 0, whole: 0 };
        let digest = Digest::of_reader(&mut counted).map_err(io(path))?;
        let Counted { read, ends, whole, .. } = counted;
        Ok(Prefix { digest, lines: ends + usize::from(read > whole), whole_bytes: whole })
    }
}

/// Counts the line ends of what is read through it.
struct Counted<R> {
    input: R,
    read: u64,
    ends: usize,
    whole: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(into)?;
        for (index, _) in into[..count].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            self.ends += 1;
            self.whole = self.read + index as u64 + 1;
        }
        self.read += count as u64;
        Ok(count)
    }
}

/// Length of a file; 0 when there is none.
pub(crate) fn length(path: &Path) -> Result<u64, OutputError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(source) => Err(OutputError::Io { path: path.to_owned(), source }),
    }
}

/// Deletes a file or directory, if there is one.
pub(crate) fn remove(path: &Path) -> Result<(), OutputError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(OutputError::Io { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_a_run_is_refused_unless_told_otherwise() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("out");
        let inspect = |existing| OutputDir::inspect(&dir, existing);
        let (out, is_resumed) = inspect(ExistingOutput::Refuse).unwrap();
        assert!(!is_resumed && !dir.exists(), "looking makes nothing");
        out.claim(false).unwrap();
        fs::write(dir.join("notes.txt"), "mine").unwrap();
        assert!(inspect(ExistingOutput::Refuse).is_ok(), "files of others do not count");
        fs::write(dir.join("metrics.jsonl"), "{}").unwrap();
        let error = inspect(ExistingOutput::Refuse).unwrap_err();
        assert!(matches!(error, OutputError::Occupied { found: "metrics.jsonl", .. }), "{error}");
        let (out, is_resumed) = inspect(ExistingOutput::Resume).unwrap();
        assert!(is_resumed);
        out.claim(true).unwrap();
        let (out, is_resumed) = inspect(ExistingOutput::Overwrite).unwrap();
        assert!(!is_resumed && dir.join("metrics.jsonl").exists(), "looking deletes nothing");
        out.claim(false).unwrap();
        assert!(!dir.join("metrics.jsonl").exists() && dir.join("notes.txt").exists());
    }

    #[test]
    fn the_first_bytes_of_a_log_are_hashed_and_their_lines_counted() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        fs::write(&path, "ab\ncd\nef").unwrap();
        let expected = [(0, 0, 0), (2, 1, 0), (3, 1, 3), (4, 2, 3), (6, 2, 6), (7, 3, 6), (8, 3, 6), (99, 3, 6)];
        for (bytes, lines, whole_bytes) in expected {
            let digest = Digest::of(&b"ab\ncd\nef"[..bytes.min(8)]);
            assert_eq!(Prefix::of(&path, bytes as u64).unwrap(), Prefix { digest, lines, whole_bytes }, "{bytes}");
        }
    }

    #[test]
    fn a_file_that_lost_bytes_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("metrics.jsonl");
        fs::write(&path, "0123456789").unwrap();
        truncate(&path, 4).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0123");
        let error = truncate(&path, 5).unwrap_err();
        assert!(matches!(error, OutputError::Shortened { expected_bytes: 5, actual_bytes: 4, .. }), "{error}");
    }
}
