//! Safetensors files written and read one tensor at a time, and the trainer's state file on top of them.
//!
//! A state file holds named `f32` arrays (master weights, moments) and a few words of text. It is written beside its
//! target, synced and renamed, so that a crash leaves the old file or the new one.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::error::{CheckpointError, io};
use super::header::{self, TensorInfo, tensor_bytes};
use super::reader::Shard;
use super::staging::StagedFile;

/// A safetensors file under construction; tensors are written in the order in which they were announced.
pub(super) struct TensorWriter {
    /// The path that errors name.
    shown: PathBuf,
    file: BufWriter<File>,
    left: VecDeque<(String, u64)>,
}

impl TensorWriter {
    /// Starts a file with `header`; `tensors` are the names in it and the bytes of each.
    pub(super) fn create(
        path: &Path,
        shown: &Path,
        header: &[u8],
        tensors: VecDeque<(String, u64)>,
    ) -> Result<Self, CheckpointError> {
        let mut file = BufWriter::new(File::create(path).map_err(io(shown))?);
        file.write_all(header).map_err(io(shown))?;
        Ok(TensorWriter { shown: shown.to_owned(), file, left: tensors })
    }

    /// Writes some of the bytes of a tensor; the next tensor's turn comes when all are there.
    pub(super) fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        while self.left.front().is_some_and(|(next, bytes)| *bytes == 0 && next != name) {
            self.left.pop_front();
        }
        match self.left.front_mut() {
            Some((next, left)) if next == name && bytes.len() as u64 <= *left => *left -= bytes.len() as u64,
            next => {
                let expected = next.map(|(name, _)| name.clone());
                return Err(CheckpointError::NoSuchTensor {
                    path: self.shown.clone(),
                    tensor: name.to_owned(),
                    expected,
                });
            }
        }
        self.file.write_all(bytes).map_err(io(&self.shown))
    }

    /// Makes the file durable.
    pub(super) fn finish(mut self) -> Result<(), CheckpointError> {
        if let Some((tensor, _)) = self.left.iter().find(|(_, bytes)| *bytes > 0) {
            return Err(CheckpointError::Unfinished { path: self.shown.clone(), tensor: tensor.clone() });
        }
        self.file.flush().map_err(io(&self.shown))?;
        self.file.get_ref().sync_all().map_err(io(&self.shown))
    }
}

/// A state file under construction.
pub struct StateWriter {
    writer: TensorWriter,
    staged: StagedFile,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl StateWriter {
    /// Starts the file `path` with `tensors` (name and shape), to be written in this order, and free text.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when the file cannot be made.
    pub fn create(
        path: &Path,
        tensors: &[(String, Vec<usize>)],
        text: &BTreeMap<String, String>,
    ) -> Result<Self, CheckpointError> {
        let staged = StagedFile::new(path);
        let announced: Vec<_> =
            tensors.iter().map(|(name, shape)| (name.as_str(), Dtype::F32, shape.as_slice())).collect();
        let sized = |(name, dtype, shape): &(&str, Dtype, &[usize])| {
            ((*name).to_owned(), tensor_bytes(*dtype, shape).unwrap_or(0))
        };
        let header = header::encode(&announced, text);
        let writer = TensorWriter::create(staged.path(), path, &header, announced.iter().map(sized).collect())?;
        Ok(StateWriter { writer, staged, shapes: tensors.iter().cloned().collect() })
    }

    /// Writes the next tensor, row-major.
    ///
    /// # Errors
    /// [`CheckpointError::NoSuchTensor`] out of turn, [`CheckpointError::WrongLength`] when `values` are not those of
    /// its shape, [`CheckpointError::Io`] when writing fails.
    pub fn write(&mut self, name: &str, values: &[f32]) -> Result<(), CheckpointError> {
        let expected = self.shapes.get(name).map(|shape| shape.iter().product::<usize>());
        if let Some(expected) = expected.filter(|expected| *expected != values.len()) {
            return Err(CheckpointError::WrongLength { tensor: name.to_owned(), expected, actual: values.len() });
        }
        let mut bytes = Vec::with_capacity(CHUNK_VALUES * 4);
        for chunk in values.chunks(CHUNK_VALUES) {
            bytes.clear();
            chunk.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            self.writer.write(name, &bytes)?;
        }
        Ok(())
    }

    /// Syncs the file and puts it in place of what was there.
    ///
    /// # Errors
    /// [`CheckpointError::Unfinished`] when an announced tensor was not written, [`CheckpointError::Io`].
    pub fn finish(self) -> Result<(), CheckpointError> {
        self.writer.finish()?;
        self.staged.commit()
    }
}

/// An open state file; tensors are read on demand.
#[derive(Debug)]
pub struct StateReader {
    file: Shard,
}

impl StateReader {
    /// Opens a state file and checks its header.
    ///
    /// # Errors
    /// [`CheckpointError`] when it cannot be read, is damaged, or holds anything but `f32`.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let file = Shard::open(path)?;
        if let Some(other) = file.tensors().iter().find(|tensor| tensor.dtype != Dtype::F32) {
            return Err(CheckpointError::WrongDtype {
                path: path.to_owned(),
                tensor: other.name.clone(),
                expected: "F32",
                found: other.dtype.to_string(),
            });
        }
        Ok(StateReader { file })
    }

    /// Name and shape of every tensor, in the order in which they were written.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.file.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
    }

    /// The free text.
    #[must_use]
    pub fn text(&self) -> &BTreeMap<String, String> {
        self.file.metadata()
    }

    /// Replaces `into` by the values of a tensor, row-major, to the bit.
    ///
    /// # Errors
    /// [`CheckpointError::NoSuchTensor`], [`CheckpointError::Io`].
    pub fn read(&self, name: &str, into: &mut Vec<f32>) -> Result<(), CheckpointError> {
        let tensor = self.find(name)?;
        into.clear();
        into.reserve(tensor.bytes as usize / 4);
        let mut chunk = vec![0; CHUNK_VALUES * 4];
        let mut offset = 0;
        while offset < tensor.bytes {
            let length = (tensor.bytes - offset).min(chunk.len() as u64) as usize;
            self.file.read(tensor, offset, &mut chunk[..length])?;
            into.extend(chunk[..length].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            offset += length as u64;
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        self.file.tensors().iter().find(|tensor| tensor.name == name).ok_or_else(|| CheckpointError::NoSuchTensor {
            path: self.file.path().to_owned(),
            tensor: name.to_owned(),
            expected: None,
        })
    }
}

const CHUNK_VALUES: usize = 1 << 16;
