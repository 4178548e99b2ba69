//! Converting fixtures, and whole directories as values.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use miles_core::checkpoint::{ContractSidecar, StoredModel, Template, WriteOptions, write_values};
use miles_core::convert::{ConvertOptions, Converted, convert};
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, ParamId};
use miles_core::policy::WeightSource;
use miles_core::precision::{PrecisionMap, Recipe, Rule, resolve};
use miles_core::{Error, Result};

use crate::files::{Builtin, fixture};

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

/// Normal numbers that depend on nothing but the tensor and the place in it.
pub fn noise(name: &str, elements: usize) -> Vec<f32> {
    let seed = name.bytes().fold(1_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut state = seed | 1;
    let draw = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        half::bf16::from_f32(((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.05).to_f32()
    };
    (0..elements).map(draw).collect()
}

struct Noise(Network);

impl WeightSource for Noise {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        let parameter = self.0.parameter(id);
        *into = noise(&parameter.name, parameter.elements());
        Ok(())
    }
}

/// A directory like a fixture, but with other sizes and random weights, in several files.
pub fn random_model(like: &str, dir: &Path, sizes: &[(&str, usize)]) {
    let path = fixture(like).join("config.json");
    let mut json: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json.extend(sizes.iter().map(|(key, size)| ((*key).to_owned(), (*size).into())));
    let config = HuggingFaceConfig::from_json(&path, json).unwrap();
    let source = Noise(Network::new(config.model()));
    let options = WriteOptions { max_shard_bytes: 5_000_000, ..WriteOptions::default() };
    write_values(&source, &Template { config, sidecar_dir: None }, dir, &options).unwrap();
}

pub fn refused(model: &Path, recipe: Recipe, output: &Path) -> Error {
    run(model, recipe, output, &options(2)).expect_err("there is something to refuse")
}

/// Where a conversion into `output` works.
pub fn partial(output: &Path) -> PathBuf {
    output.with_file_name(format!(".{}.partial", output.file_name().unwrap().to_str().unwrap()))
}
