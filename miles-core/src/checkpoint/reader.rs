//! Stored tensors: headers parsed at opening, bytes read on demand, one range at a time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Deserialize;

use super::error::{CheckpointError, io};
use super::header::{self, Metadata, TensorInfo};
use super::limits::{MAX_JSON_BYTES, MAX_TENSORS};
use super::positional::read_exact_at;
use crate::json;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// One open safetensors file.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    file: File,
    tensors: Vec<TensorInfo>,
    metadata: Metadata,
}

/// Place of a tensor: shard and index within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorRef {
    shard: usize,
    index: usize,
}

/// Every tensor of a checkpoint directory.
#[derive(Debug)]
pub(crate) struct StoredTensors {
    shards: Vec<Shard>,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let mut file = File::open(path).map_err(io(path))?;
        let header = header::read(path, &mut file)?;
        Ok(Shard { path: path.to_owned(), file, tensors: header.tensors, metadata: header.metadata })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Fills `into` with the bytes of a tensor from `offset_bytes` on. Any number of threads at once.
    pub(super) fn read(&self, tensor: &TensorInfo, offset_bytes: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        read_exact_at(&self.file, into, tensor.start + offset_bytes).map_err(|source| match source.kind() {
            // The file was whole when it was opened.
            ErrorKind::UnexpectedEof => CheckpointError::Truncated {
                path: self.path.clone(),
                tensor: Some(tensor.name.clone()),
                expected_bytes: tensor.start + tensor.bytes,
                actual_bytes: self.file.metadata().map_or(0, |metadata| metadata.len()),
            },
            _ => CheckpointError::Io { path: self.path.clone(), source },
        })
    }
}

impl StoredTensors {
    /// Opens `model.safetensors`, or the shards of `model.safetensors.index.json`. Both together are refused unless the
    /// index names the single file alone: transformers would read that file and vLLM the shards, two different models.
    pub(super) fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        let shards = if index.exists() {
            open_index(dir, &index)?
        } else if single.exists() {
            vec![Shard::open(&single)?]
        } else {
            return Err(CheckpointError::NoWeights { dir: dir.to_owned() });
        };
        Ok(StoredTensors { shards })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = TensorRef> + '_ {
        self.shards
            .iter()
            .enumerate()
            .flat_map(|(shard, file)| (0..file.tensors.len()).map(move |index| TensorRef { shard, index }))
    }

    /// Hashes what tells these files from others without reading their data: headers, names, lengths, times of change.
    pub(super) fn describe(&self, hasher: &mut blake3::Hasher) -> Result<(), CheckpointError> {
        for shard in &self.shards {
            let metadata = shard.file.metadata().map_err(io(&shard.path))?;
            let name = shard.path.file_name().unwrap_or_default();
            let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            hasher.update(format!("{name:?} {} {changed:?} {:?}\n", metadata.len(), shard.tensors).as_bytes());
        }
        Ok(())
    }

    pub(super) fn info(&self, tensor: TensorRef) -> &TensorInfo {
        &self.shards[tensor.shard].tensors[tensor.index]
    }

    pub(super) fn path(&self, tensor: TensorRef) -> &Path {
        &self.shards[tensor.shard].path
    }

    /// Fills `into` with the bytes of a tensor from `offset_bytes` on.
    pub(super) fn read(&self, tensor: TensorRef, offset_bytes: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        self.shards[tensor.shard].read(self.info(tensor), offset_bytes, into)
    }

    /// All bytes of a tensor.
    pub(super) fn read_all(&self, tensor: TensorRef) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; self.info(tensor).bytes as usize];
        self.read(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn open_index(dir: &Path, path: &Path) -> Result<Vec<Shard>, CheckpointError> {
    let bad = |why: String| CheckpointError::BadIndex { path: path.to_owned(), why };
    let bytes = fs::metadata(path).map_err(io(path))?.len();
    if bytes > MAX_JSON_BYTES {
        let what = "the size of the index in bytes";
        return Err(CheckpointError::OverLimit { path: path.to_owned(), what, actual: bytes, limit: MAX_JSON_BYTES });
    }
    let text = fs::read(path).map_err(io(path))?;
    let index: Index = json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let mut first_tensor: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        first_tensor.entry(shard).or_insert(tensor);
    }
    if dir.join(SINGLE).exists() && first_tensor.keys().any(|name| *name != SINGLE) {
        return Err(CheckpointError::TwoSources { single: dir.join(SINGLE), index: path.to_owned() });
    }
    let mut shards = Vec::with_capacity(first_tensor.len());
    for (name, tensor) in first_tensor {
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(bad(format!("`{name}` leads outside the directory")));
        }
        let file = dir.join(name);
        if !file.exists() {
            let (shard, tensor) = (name.to_owned(), tensor.to_owned());
            return Err(CheckpointError::MissingShard { index: path.to_owned(), shard, tensor });
        }
        shards.push(Shard::open(&file)?);
    }
    check_against_index(path, dir, &index, &shards)?;
    Ok(shards)
}

/// Refuses tensors stored twice, stored elsewhere than the index says, or not mentioned by it.
fn check_against_index(path: &Path, dir: &Path, index: &Index, shards: &[Shard]) -> Result<(), CheckpointError> {
    let count: usize = shards.iter().map(|shard| shard.tensors.len()).sum();
    if count > MAX_TENSORS {
        return Err(CheckpointError::OverLimit {
            path: path.to_owned(),
            what: "the number of tensors",
            actual: count as u64,
            limit: MAX_TENSORS as u64,
        });
    }
    let mut stored: BTreeMap<&str, &Path> = BTreeMap::new();
    for shard in shards {
        for tensor in &shard.tensors {
            if let Some(first) = stored.insert(&tensor.name, &shard.path) {
                return Err(CheckpointError::DuplicateTensor {
                    tensor: tensor.name.clone(),
                    first: first.to_owned(),
                    second: shard.path.clone(),
                });
            }
            if !index.weight_map.contains_key(&tensor.name) {
                let why = "the index does not mention";
                return Err(CheckpointError::IndexMismatch {
                    path: shard.path.clone(),
                    tensor: tensor.name.clone(),
                    why,
                });
            }
        }
    }
    for (tensor, shard) in &index.weight_map {
        let file = dir.join(shard);
        if stored.get(tensor.as_str()) != Some(&file.as_path()) {
            let why = "the index says that this file holds";
            return Err(CheckpointError::IndexMismatch { path: file, tensor: tensor.clone(), why });
        }
    }
    Ok(())
}
