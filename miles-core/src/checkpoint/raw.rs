//! Safetensors files as named arrays of bytes, without the names of a model.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;

use super::error::CheckpointError;
use super::header;
use super::reader::Shard;

/// The bytes that stand before the data of a file of these tensors, in this order.
pub(crate) fn raw_header(tensors: &[(&str, Dtype, &[usize])], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    header::encode(tensors, metadata)
}

/// An open safetensors file whose header is checked: every byte belongs to exactly one tensor, and no name is given
/// twice. Tensors are read on demand.
#[derive(Debug)]
pub struct RawTensors {
    file: Shard,
    places: BTreeMap<String, usize>,
}

impl RawTensors {
    /// Opens a file and checks its header against its size.
    ///
    /// # Errors
    /// [`CheckpointError`] when it cannot be read, is no safetensors file, is cut short or too long, or names a tensor
    /// twice.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let file = Shard::open(path)?;
        let places = file.tensors().iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(RawTensors { file, places })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn metadata(&self) -> &BTreeMap<String, String> {
        self.file.metadata()
    }

    /// The names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The tensor that holds a byte of the file; `None` for a byte of the header.
    pub(crate) fn name_at(&self, offset_bytes: u64) -> Option<&str> {
        let holds = |start: u64, bytes: u64| (start..start.saturating_add(bytes)).contains(&offset_bytes);
        let tensor = self.file.tensors().iter().find(|tensor| holds(tensor.start, tensor.bytes))?;
        Some(&tensor.name)
    }

    /// Number type and shape of a tensor; `None` when the file has none of the name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(Dtype, &[usize])> {
        let tensor = &self.file.tensors()[*self.places.get(name)?];
        Some((tensor.dtype, &tensor.shape))
    }

    /// All bytes of a tensor, row-major and little endian; the header was checked against the size of the file, so there
    /// are that many.
    ///
    /// # Errors
    /// [`CheckpointError::NoSuchTensor`], [`CheckpointError::Io`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let index = self.places.get(name).ok_or_else(|| CheckpointError::NoSuchTensor {
            path: self.file.path().to_owned(),
            tensor: name.to_owned(),
            expected: None,
        })?;
        let tensor = &self.file.tensors()[*index];
        let mut bytes = vec![0; tensor.bytes as usize];
        self.file.read(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }
}
