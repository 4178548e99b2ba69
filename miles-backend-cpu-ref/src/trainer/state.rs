//! Saving and restoring: master weights, both moments, and the number of optimizer steps.
//!
//! ```text
//! masters.safetensors          F32 (BF16 masters hold BF16 values), every parameter under its canonical name
//! first_moments.safetensors    F32, every trained parameter
//! second_moments.safetensors   F32, every trained parameter
//! state.json                   { "optimizer_steps": 12 }, the partition plan where it cuts experts, and the masters' number
//!                              type where it is not F32
//! ```
//!
//! Tensors are written and read one at a time, to the bit; every file is synced before the call returns.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use miles_core::Result;
use miles_core::checkpoint::tensors::{StateReader, StateWriter};
use miles_core::network::{Network, ParamId};
use miles_core::plugin::{MasterDtype, TrainError};
use miles_core::precision::PartitionPlan;
use serde::{Deserialize, Serialize};

use super::masters::Masters;
use super::optimizer::{Moments, Optimizer};

/// What `state.json` holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    optimizer_steps: u64,
    #[serde(default, skip_serializing_if = "PartitionPlan::is_whole")]
    partition: PartitionPlan,
    #[serde(default, skip_serializing_if = "is_f32")]
    masters: MasterDtype,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_f32(dtype: &MasterDtype) -> bool {
    *dtype == MasterDtype::F32
}

/// Writes everything into `directory`.
pub(super) fn save(
    directory: &Path,
    network: &Network,
    masters: &Masters,
    optimizer: &Optimizer,
    partition: PartitionPlan,
) -> Result<()> {
    let first = |id| optimizer.moments(id).map(|moments| Cow::Borrowed(&moments.first[..]));
    let second = |id| optimizer.moments(id).map(|moments| Cow::Borrowed(&moments.second[..]));
    let is_trained = |id: &ParamId| optimizer.moments(*id).is_some();
    let (all, trained): (Vec<_>, Vec<_>) = (network.ids().collect(), network.ids().filter(is_trained).collect());
    write(&directory.join(MASTERS), network, &all, |id| Some(masters.values(id)))?;
    write(&directory.join(FIRST_MOMENTS), network, &trained, first)?;
    write(&directory.join(SECOND_MOMENTS), network, &trained, second)?;
    let path = directory.join(STATE);
    let state = State { optimizer_steps: optimizer.steps(), partition, masters: masters.dtype() };
    let text = serde_json::to_string(&state).map_err(|error| state_error(&path, &error))?;
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    Ok(written.map_err(|error| state_error(&path, &error))?)
}

/// Replaces masters and optimizer state by what [`save`] wrote. Every file's tensors are checked before the first value
/// is replaced.
pub(super) fn restore(
    directory: &Path,
    network: &Network,
    masters: &mut Masters,
    optimizer: &mut Optimizer,
    partition: PartitionPlan,
) -> Result<()> {
    let path = directory.join(STATE);
    let text = fs::read_to_string(&path).map_err(|error| state_error(&path, &error))?;
    let state: State = miles_core::json::from_str(&text).map_err(|error| state_error(&path, &error))?;
    if state.partition != partition {
        let file = path.display().to_string();
        return Err(TrainError::PartitionMismatch { file, saved: state.partition, trainer: partition }.into());
    }
    if state.masters != masters.dtype() {
        let why = format!("saved with {:?} master weights, the trainer has {:?}", state.masters, masters.dtype());
        return Err(state_error(&path, &why).into());
    }
    let is_trained = |id: ParamId| optimizer.moments(id).is_some();
    let master_file = open(&directory.join(MASTERS), network, |_| true)?;
    let first_file = open(&directory.join(FIRST_MOMENTS), network, is_trained)?;
    let second_file = open(&directory.join(SECOND_MOMENTS), network, is_trained)?;
    let mut values = Vec::new();
    for id in network.ids() {
        let name = &network.parameter(id).name;
        master_file.read(name, &mut values)?;
        masters.replace(id, &values);
        if let Some(Moments { first, second }) = optimizer.moments_mut(id) {
            first_file.read(name, first)?;
            second_file.read(name, second)?;
        }
    }
    optimizer.set_steps(state.optimizer_steps);
    Ok(())
}

/// Writes the parameters `ids`, values in hand for one at a time.
fn write<'v>(
    path: &Path,
    network: &Network,
    ids: &[ParamId],
    values: impl Fn(ParamId) -> Option<Cow<'v, [f32]>>,
) -> Result<()> {
    let parameters = ids.iter().map(|id| network.parameter(*id));
    let tensors: Vec<_> = parameters.map(|parameter| (parameter.name.clone(), parameter.shape.clone())).collect();
    let mut writer = StateWriter::create(path, &tensors, &BTreeMap::new())?;
    for (id, values) in ids.iter().filter_map(|id| Some((*id, values(*id)?))) {
        writer.write(&network.parameter(id).name, &values)?;
    }
    Ok(writer.finish()?)
}

/// Opens a file and checks that it holds exactly the tensors of `network` that `wanted` names.
fn open(path: &Path, network: &Network, wanted: impl Fn(ParamId) -> bool) -> Result<StateReader> {
    let reader = StateReader::open(path)?;
    let stored: BTreeMap<&str, &[usize]> = reader.tensors().collect();
    let expected: BTreeMap<&str, &[usize]> = network
        .ids()
        .filter(|&id| wanted(id))
        .map(|id| (network.parameter(id).name.as_str(), network.parameter(id).shape.as_slice()))
        .collect();
    for (name, shape) in &expected {
        match stored.get(name) {
            Some(found) if found == shape => {}
            Some(found) => return Err(state_error(path, &format!("`{name}` is {found:?}, expected {shape:?}")).into()),
            None => return Err(state_error(path, &format!("`{name}` is missing")).into()),
        }
    }
    if let Some(name) = stored.keys().find(|name| !expected.contains_key(*name)) {
        return Err(state_error(path, &format!("`{name}` does not belong to this trainer")).into());
    }
    Ok(reader)
}

fn state_error(path: &Path, why: &dyn std::fmt::Display) -> TrainError {
    TrainError::State { file: path.display().to_string(), why: why.to_string() }
}

const MASTERS: &str = "masters.safetensors";
const FIRST_MOMENTS: &str = "first_moments.safetensors";
const SECOND_MOMENTS: &str = "second_moments.safetensors";
const STATE: &str = "state.json";
