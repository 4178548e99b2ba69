//! Where two checkpoint directories part: every tensor, every key of the configuration, and every byte of every file.

use std::path::Path;

use serde_json::{Map, Value};

use super::export_event::{entries, failed};
use super::file_difference::{FileCause, FileDifference, file_difference};
use super::{PolicyError, Side, TensorDifference, tensor_difference};
use crate::Result;
use crate::checkpoint::{Checkpoint, CheckpointError};

/// What two checkpoint directories have in common, and where they part.
#[derive(Debug, Default)]
pub struct DirectoryDiff {
    /// Tensors that are equal.
    pub equal_tensors: usize,
    /// Tensors that differ or are in one directory only.
    pub differing_tensors: usize,
    /// The first of them, in the order of A's network and then of B's; `None` for a tensor of one directory only.
    pub first: Option<(String, Result<TensorDifference, Side>)>,
    /// Keys of `config.json` with different values, with both; a key that is not there has the value `null`.
    pub config: Vec<(String, [Value; 2])>,
    /// Files that are equal.
    pub equal_files: usize,
    /// Files that differ or are in one directory only, by name. Directories with the same tensors can differ in them:
    /// scales that engines read beside the weights, the tokenizer, how tensors are spread over files.
    pub files: Vec<FileDifference>,
    /// Why tensors and configuration were not compared: A or B is no checkpoint. Then some file differs.
    pub unopened: [Option<CheckpointError>; 2],
}

/// Compares two checkpoint directories, tensor by tensor and file by file.
///
/// # Errors
/// If a directory, a file or a tensor cannot be read, or the directories have equal files and are no checkpoints.
pub fn diff_directories(a: &Path, b: &Path) -> Result<DirectoryDiff> {
    let mut diff = DirectoryDiff::default();
    diff.compare_files(a, b)?;
    match (Checkpoint::open(a), Checkpoint::open(b)) {
        (Ok(a), Ok(b)) => diff.compare_tensors(&a, &b)?,
        (Err(error), _) | (_, Err(error)) if diff.files.is_empty() => return Err(error.into()),
        (a, b) => diff.unopened = [a.err(), b.err()],
    }
    Ok(diff)
}

impl DirectoryDiff {
    /// Whether every tensor, every key of the configuration and every file is equal, and some tensor was compared.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.differing_tensors == 0 && self.config.is_empty() && self.files.is_empty() && self.equal_tensors > 0
    }

    fn compare_files(&mut self, a: &Path, b: &Path) -> Result<(), PolicyError> {
        let (files_a, files_b) = (regular_files(a)?, regular_files(b)?);
        for file in &files_a {
            let cause = match files_b.binary_search(file) {
                Ok(_) => file_difference(&a.join(file), &b.join(file))?,
                Err(_) => Some(FileCause::OnlyIn(Side::A)),
            };
            match cause {
                None => self.equal_files += 1,
                Some(cause) => self.files.push(FileDifference { file: file.clone(), cause }),
            }
        }
        let only_b = files_b.into_iter().filter(|file| files_a.binary_search(file).is_err());
        self.files.extend(only_b.map(|file| FileDifference { file, cause: FileCause::OnlyIn(Side::B) }));
        self.files.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(())
    }

    fn compare_tensors(&mut self, a: &Checkpoint, b: &Checkpoint) -> Result<()> {
        for id in a.network().ids() {
            let name = &a.network().parameter(id).name;
            let difference = match b.network().find(name) {
                None => Some(Err(Side::A)),
                Some(other) => tensor_difference(&a.read_stored(id)?, &b.read_stored(other)?).map(Ok),
            };
            match difference {
                None => self.equal_tensors += 1,
                Some(difference) => self.add(name, difference),
            }
        }
        for parameter in &b.network().parameters {
            if a.network().find(&parameter.name).is_none() {
                self.add(&parameter.name, Err(Side::B));
            }
        }
        let (a, b) = (a.config_json(), b.config_json());
        let value = |object: &Map<String, Value>, key: &str| object.get(key).cloned().unwrap_or_default();
        let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
        let values = keys.map(|key| (key.clone(), [value(a, key), value(b, key)]));
        self.config = values.filter(|(_, [a, b])| a != b).collect();
        Ok(())
    }

    fn add(&mut self, name: &str, difference: Result<TensorDifference, Side>) {
        self.differing_tensors += 1;
        self.first.get_or_insert_with(|| (name.to_owned(), difference));
    }
}

/// Every file below a directory by its path in it, sorted.
fn regular_files(dir: &Path) -> Result<Vec<String>, PolicyError> {
    let mut files = Vec::new();
    for (name, path, is_file) in entries(dir)? {
        if !is_file {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "neither a file nor a directory");
            return Err(failed(&path)(source));
        }
        files.push(name);
    }
    Ok(files)
}
