//! File operations that fail once, or end at a power cut, and a journal of those carried out.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::super::super::{FileSink, Files, StdFiles};
use super::durability::Operation;

/// Where operations fail; they are counted from 0.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Never,
    /// This one fails, as if the disk were full.
    Once(usize),
    /// The second one and all that follow: the power is off, and nothing can clean up. Before that, the first one fails
    /// alone.
    PowerCut(Option<usize>, usize),
}

/// The real file system with a fault. Clones share it.
#[derive(Clone)]
pub(super) struct FaultyFiles(Arc<Mutex<State>>);

struct State {
    fault: Fault,
    asked: usize,
    journal: Vec<Operation>,
}

impl FaultyFiles {
    pub(super) fn new() -> Self {
        FaultyFiles(Arc::new(Mutex::new(State { fault: Fault::Never, asked: 0, journal: Vec::new() })))
    }

    /// Counts from 0 again.
    pub(super) fn arm(&self, fault: Fault) {
        *self.0.lock().unwrap() = State { fault, asked: 0, journal: Vec::new() };
    }

    /// What was carried out since.
    pub(super) fn journal(&self) -> Vec<Operation> {
        self.0.lock().unwrap().journal.clone()
    }

    /// Whether the fault has happened.
    pub(super) fn hit(&self) -> bool {
        let state = self.0.lock().unwrap();
        match state.fault {
            Fault::Never => false,
            Fault::Once(at) | Fault::PowerCut(_, at) => state.asked > at,
        }
    }

    fn admit(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let number = state.asked;
        state.asked += 1;
        match state.fault {
            Fault::PowerCut(_, at) if at <= number => Err(io::Error::other("the power is off")),
            Fault::Once(at) | Fault::PowerCut(Some(at), _) if at == number => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn carry_out<T>(&self, operation: Operation, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.admit()?;
        let result = run()?;
        self.0.lock().unwrap().journal.push(operation);
        Ok(result)
    }
}

impl Files for FaultyFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.carry_out(Operation::CreateDir(dir.to_owned()), || StdFiles.create_dir(dir))
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn FileSink>> {
        let inner = self.carry_out(Operation::Create(file.to_owned()), || StdFiles.create(file))?;
        Ok(Box::new(FaultyFile { files: self.clone(), path: file.to_owned(), inner }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.carry_out(Operation::Rename(from.to_owned(), to.to_owned()), || StdFiles.rename(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.carry_out(Operation::SyncDir(dir.to_owned()), || StdFiles.sync_dir(dir))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.carry_out(Operation::RemoveDir(dir.to_owned()), || StdFiles.remove_dir(dir))
    }
}

struct FaultyFile {
    files: FaultyFiles,
    path: PathBuf,
    inner: Box<dyn FileSink>,
}

impl Write for FaultyFile {
    /// Takes a little at a time, so that there are many places to fail at; a failing write leaves half of it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(CHUNK_BYTES)];
        if let Err(error) = self.files.admit() {
            if error.kind() == io::ErrorKind::StorageFull {
                self.inner.write_all(&bytes[..bytes.len() / 2])?;
            }
            return Err(error);
        }
        self.inner.write_all(bytes)?;
        self.files.0.lock().unwrap().journal.push(Operation::Write(self.path.clone(), bytes.to_vec()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileSink for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        let (files, inner) = (&self.files, &mut self.inner);
        files.carry_out(Operation::Sync(self.path.clone()), || inner.sync())
    }
}

const CHUNK_BYTES: usize = 8 << 10;
