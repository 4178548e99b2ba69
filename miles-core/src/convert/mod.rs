//! Conversion: a checkpoint directory becomes a directory in a recipe's formats without ever being in memory.
//!
//! ```text
//! StoredModel + PrecisionMap --plan--> files with known headers, and units of work (a tensor, a gate/up pair)
//!    units --admitted by a byte budget--> worker threads: positional read -> make -> positional write -> journal line
//!    files whose units are done --> hashed in segments --> miles_contract.json --> rename
//! ```
//!
//! **Same bytes.** A unit is made by the code that makes a policy version, files are planned by the code that writes one,
//! so that the directory is that of [`write_checkpoint`](crate::checkpoint::write_checkpoint) byte for byte, with the
//! contract sidecar beside it. Threads, budget and interruptions change nothing.
//!
//! **Bounded memory.** The units in work hold no more than [`ConvertOptions::budget_bytes`] together, headers and the plan
//! aside. Tensors that stay in high precision pass in chunks. A matrix that takes more than its thread's share of the
//! budget is made in bands of rows, where its format has no scale over all of them. A unit that needs more than the whole
//! budget even so (two large matrices of NVFP4 that share an outer scale) is refused before anything is written:
//! [`ConvertError::BudgetTooSmall`] names it and what it needs.
//!
//! **Resumable.** Everything is written to `.OUTPUT.partial` beside the output, whose journal has a line per finished unit.
//! A conversion that was killed goes on where it was, if source, map, quantizer and plan are the same; every unit of the
//! journal is read back and hashed first. Only one process at a time works on an output.

mod banded;
mod budget;
mod error;
mod file_hash;
mod files;
mod journal;
mod need;
mod plan;
mod read_back;
mod schedule;
mod stream;
mod verify;
mod worker;
mod workplace;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

pub use error::ConvertError;
pub use verify::{Verified, verify};
pub use worker::Progress;

use crate::Result;
use crate::checkpoint::error::io;
use crate::checkpoint::staging::refuse_occupied;
use crate::checkpoint::{CheckpointError, ContractSidecar, Mxfp8Layout, StoredModel, sidecar};
use crate::digest::Digest;
use crate::error::Error;
use crate::format::FormatId;
use crate::plugin::{Quantizer, Support};
use crate::policy::FileDigest;
use crate::precision::{PrecisionMap, TensorFormat, check_backend};
use files::OutputFiles;
use plan::ConvertPlan;
use worker::Outcome;
use workplace::Workplace;

/// How a directory is converted. Threads and budget change no byte of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// Most bytes that units in work hold together.
    pub budget_bytes: u64,
    /// Worker threads.
    pub threads: NonZeroUsize,
    /// Largest file, unless one tensor alone is larger.
    pub max_shard_bytes: u64,
    /// Names and description of MXFP8.
    pub mxfp8: Mxfp8Layout,
    /// Whether an output directory that holds something is replaced; otherwise it is refused.
    pub replace: bool,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        ConvertOptions {
            budget_bytes: 1 << 30,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            max_shard_bytes: crate::checkpoint::WriteOptions::default().max_shard_bytes,
            mxfp8: Mxfp8Layout::default(),
            replace: false,
        }
    }
}

/// What a conversion did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The contract of the directory.
    pub contract: ContractSidecar,
    /// Units of work.
    pub units: usize,
    /// Units that an earlier, interrupted conversion had finished.
    pub resumed_units: usize,
    /// Bytes of weights read from the source, not counting those of resumed units.
    pub read_bytes: u64,
    /// Bytes of weights written, not counting those of resumed units.
    pub written_bytes: u64,
}

/// Converts `model` under `map`, which is over its [`inventory`](StoredModel::inventory), into the directory `output`.
/// `progress` is told after every unit.
///
/// # Errors
/// If the output holds something, another process converts into it, formats have no common layout, a unit does not fit
/// the budget, a value is not finite, or reading or writing fails. The output appears whole or not at all. After a failed
/// read or write (a full disk) the partial directory stays, for the next call to go on with; after any other error it is
/// removed.
pub fn convert(
    model: &StoredModel,
    map: &PrecisionMap,
    quantizer: &dyn Quantizer,
    output: &Path,
    options: &ConvertOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Converted> {
    refuse_occupied(output, options.replace)?;
    check_quantizer(model, map, quantizer)?;
    let plan = ConvertPlan::new(model, map, quantizer, options)?;
    plan.check_budget(model, options.budget_bytes)?;
    let conversion = plan.identity(model, map, quantizer)?;
    let (workplace, journal) = Workplace::open(output, conversion)?;
    let done = || {
        let files = OutputFiles::open(workplace.files(), output, &plan)?;
        let outcome = worker::run(model, map, quantizer, &plan, &files, &journal, options, progress)?;
        finish(model, map, quantizer, &plan, files, &workplace, outcome)
    };
    match done() {
        Ok(converted) => {
            workplace.commit(options.replace)?;
            Ok(converted)
        }
        Err(error) => {
            if !is_io(&error) {
                // The first error is the one to report.
                let _ = workplace.remove();
            }
            Err(error)
        }
    }
}

/// Refuses a map with a format that the quantizer does not do.
fn check_quantizer(model: &StoredModel, map: &PrecisionMap, quantizer: &dyn Quantizer) -> Result<()> {
    let mut can: Vec<FormatId> = Vec::new();
    for entry in map.entries() {
        if let TensorFormat::Quantized(format) = &entry.format
            && !can.contains(format)
            && quantizer.support(format) != Support::Unsupported
        {
            can.push(format.clone());
        }
    }
    Ok(check_backend(model.inventory(), map, quantizer.id(), &can)?)
}

/// Writes everything beside the weights, the contract last, and makes all of it durable.
fn finish(
    model: &StoredModel,
    map: &PrecisionMap,
    quantizer: &dyn Quantizer,
    plan: &ConvertPlan,
    files: OutputFiles,
    workplace: &Workplace,
    outcome: Outcome,
) -> Result<Converted> {
    files.sync()?;
    let dir = workplace.files();
    sidecar::copy(model.dir(), dir)?;
    for (name, text) in &plan.directory.plan.texts {
        fs::write(dir.join(name), text).map_err(io(&workplace.shown(name)))?;
    }
    let mut digests: BTreeMap<String, FileDigest> = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(io(dir))? {
        let name = entry.map_err(io(dir))?.file_name().to_string_lossy().into_owned();
        if name != ContractSidecar::FILE && !outcome.files.contains_key(&name) {
            digests.insert(name.clone(), FileDigest::of(&dir.join(&name))?);
        }
    }
    digests.extend(outcome.files);
    let inventory = model.inventory();
    let (policy, carried) = outcome.digests.split_at(inventory.parameters.len());
    let beside: BTreeMap<String, Digest> = plan.beside(model).zip(carried.iter().copied()).collect();
    let contract = ContractSidecar::new(inventory, map, quantizer.id(), policy, beside, digests);
    let text = contract
        .text()
        .map_err(|source| CheckpointError::Contract { dir: workplace.shown(""), source: Box::new(source) })?;
    workplace.write_durably(ContractSidecar::FILE, &text)?;
    Ok(Converted {
        contract,
        units: plan.units.len(),
        resumed_units: outcome.resumed_units,
        read_bytes: outcome.read_bytes,
        written_bytes: outcome.written_bytes,
    })
}

/// Whether an error is about reading and writing and not about what was read.
fn is_io(error: &Error) -> bool {
    matches!(error, Error::Checkpoint(CheckpointError::Io { .. }))
}
