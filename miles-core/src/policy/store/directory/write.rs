//! Writing one version into a new folder.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::super::error::io_error;
use super::super::{FileSink, Files, StoreError};
use super::description::{self, Description};
use super::parts::{self, StoredPart, stored_parts};
use crate::checkpoint::raw::raw_header;
use crate::digest::Digest;
use crate::policy::Snapshot;

/// Fills the new folder `dir` with a version; its files and their names are durable afterwards.
pub(super) fn write_version(files: &dyn Files, dir: &Path, snapshot: &Snapshot) -> Result<(), StoreError> {
    let path = dir.join(description::FILE);
    let text = Description::of(snapshot).encode().map_err(|error| io_error(&path)(io::Error::other(error)))?;
    write_file(files, &path, |file| file.write_all(&text))?;
    write_file(files, &dir.join(parts::FILE), |file| write_tensors(file, snapshot, Digest::of(&text)))?;
    files.sync_dir(dir).map_err(io_error(dir))
}

fn write_file(
    files: &dyn Files,
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<Sink>) -> io::Result<()>,
) -> Result<(), StoreError> {
    let write = || {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, Sink(files.create(path)?));
        fill(&mut file)?;
        file.flush()?;
        file.get_mut().0.sync()
    };
    write().map_err(io_error(path))
}

fn write_tensors(file: &mut impl Write, snapshot: &Snapshot, description: Digest) -> io::Result<()> {
    let network = snapshot.network();
    let all = || network.ids().flat_map(|id| stored_parts(&network.parameter(id).name, snapshot.tensor(id)));
    let stored: Vec<StoredPart<'_>> = all().collect();
    let listed: Vec<_> = stored.iter().map(|part| (part.name.as_str(), part.dtype, part.shape.as_slice())).collect();
    let metadata = BTreeMap::from([(parts::DESCRIPTION_KEY.to_owned(), description.to_string())]);
    file.write_all(&raw_header(&listed, &metadata))?;
    stored.iter().try_for_each(|part| part.visit(|bytes| file.write_all(bytes)))
}

/// For [`BufWriter`], which takes a type of known size.
struct Sink(Box<dyn FileSink>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

const BUFFER_BYTES: usize = 1 << 18;
