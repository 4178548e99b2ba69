//! Converting fixtures, and whole directories as values.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use miles_core::checkpoint::{ContractSidecar, StoredModel};
use miles_core::convert::{ConvertOptions, Converted, convert};
use miles_core::precision::{PrecisionMap, Recipe, Rule, resolve};
use miles_core::{Error, Result};

use crate::files::Builtin;

/// Every file of a directory.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Every file but the contract sidecar.
pub fn weights(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = contents(dir);
    files.remove(ContractSidecar::FILE).expect("a converted directory has a contract");
    files
}

pub fn map(model: &StoredModel, recipe: Recipe, overrides: &[Rule]) -> PrecisionMap {
    resolve(model.inventory(), recipe, overrides).unwrap()
}

pub fn options(threads: usize) -> ConvertOptions {
    ConvertOptions { threads: NonZeroUsize::new(threads).unwrap(), ..ConvertOptions::default() }
}

pub fn run(model: &Path, recipe: Recipe, output: &Path, options: &ConvertOptions) -> Result<Converted> {
    let model = StoredModel::open(model)?;
    convert(&model, &map(&model, recipe, &[]), &Builtin, output, options, &|_| {})
}

pub fn refused(model: &Path, recipe: Recipe, output: &Path) -> Error {
    run(model, recipe, output, &options(2)).expect_err("there is something to refuse")
}

/// Where a conversion into `output` works.
pub fn partial(output: &Path) -> PathBuf {
    output.with_file_name(format!(".{}.partial", output.file_name().unwrap().to_str().unwrap()))
}
