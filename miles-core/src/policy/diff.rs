//! Where two runs, or two directories, part.

use std::fmt;
use std::path::Path;

use super::{
    LedgerEvent, LedgerFile, PolicyError, PolicyVersion, RecordedVersion, TensorDifference, tensor_difference,
};
use crate::checkpoint::{Checkpoint, CheckpointError};

/// One of the two things that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

/// Why two ledgers part where they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The tensor has another format: the precision maps differ.
    Format,
    /// The values that were quantized differ: they parted before the quantizer.
    Source,
    /// The same values were quantized to the same format with another result: the quantizers parted.
    Output,
    /// Only one ledger has the tensor in this version: the models differ.
    TensorOnlyIn(Side),
    /// Only one ledger has the version, and both have later ones.
    VersionOnlyIn(Side),
    /// One ledger ends before this version.
    Ended(Side),
}

/// The first place where two ledgers part, by version and then by the order of A's events.
#[derive(Clone, Debug, PartialEq)]
pub struct Parting {
    /// Version.
    pub version: PolicyVersion,
    /// Tensor; `None` where a whole version is missing.
    pub tensor: Option<String>,
    /// Why.
    pub cause: Cause,
    /// The events of A and B, where they exist.
    pub events: [Option<LedgerEvent>; 2],
}

/// What two ledgers have in common, and where they part.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerDiff {
    /// Versions that are equal in every tensor.
    pub equal_versions: usize,
    /// Tensors compared and equal, over all versions.
    pub equal_tensors: usize,
    /// The first two quantizers that made equal bytes under different names.
    pub quantizers: Option<[String; 2]>,
    /// The first difference.
    pub parting: Option<Parting>,
}

/// Compares two ledgers up to the first difference. Names of runs, steps and quantizers are not differences.
///
/// # Errors
/// If a ledger cannot be read or trusted.
pub fn diff_ledgers(a: &Path, b: &Path) -> Result<LedgerDiff, PolicyError> {
    let (mut a, mut b) = (LedgerFile::open(a)?, LedgerFile::open(b)?);
    let mut diff = LedgerDiff { equal_versions: 0, equal_tensors: 0, quantizers: None, parting: None };
    loop {
        let parting = match (a.next().transpose()?, b.next().transpose()?) {
            (None, None) => return Ok(diff),
            (None, Some(longer)) => Some(whole(longer.version(), Cause::Ended(Side::A))),
            (Some(longer), None) => Some(whole(longer.version(), Cause::Ended(Side::B))),
            (Some(a), Some(b)) if a.version() < b.version() => Some(whole(a.version(), Cause::VersionOnlyIn(Side::A))),
            (Some(a), Some(b)) if a.version() > b.version() => Some(whole(b.version(), Cause::VersionOnlyIn(Side::B))),
            (Some(a), Some(b)) => compare(&a, &b, &mut diff),
        };
        if parting.is_some() {
            return Ok(LedgerDiff { parting, ..diff });
        }
        diff.equal_versions += 1;
    }
}

fn whole(version: PolicyVersion, cause: Cause) -> Parting {
    Parting { version, tensor: None, cause, events: [None, None] }
}

fn compare(a: &RecordedVersion, b: &RecordedVersion, diff: &mut LedgerDiff) -> Option<Parting> {
    let version = a.version();
    for event in a.events() {
        let tensor = Some(event.tensor.clone());
        let Some(other) = b.event(&event.tensor) else {
            let events = [Some(event.clone()), None];
            return Some(Parting { version, tensor, cause: Cause::TensorOnlyIn(Side::A), events });
        };
        if let Some(cause) = cause(event, other) {
            return Some(Parting { version, tensor, cause, events: [Some(event.clone()), Some(other.clone())] });
        }
        diff.equal_tensors += 1;
        if event.quantizer != other.quantizer && diff.quantizers.is_none() {
            diff.quantizers = Some([event.quantizer.clone(), other.quantizer.clone()]);
        }
    }
    let only_b = b.events().iter().find(|event| a.event(&event.tensor).is_none())?;
    let (tensor, cause) = (Some(only_b.tensor.clone()), Cause::TensorOnlyIn(Side::B));
    Some(Parting { version, tensor, cause, events: [None, Some(only_b.clone())] })
}

fn cause(a: &LedgerEvent, b: &LedgerEvent) -> Option<Cause> {
    if a.format != b.format {
        Some(Cause::Format)
    } else if (a.source_digest, &a.source_dtype) != (b.source_digest, &b.source_dtype) {
        Some(Cause::Source)
    } else if a.output_digest != b.output_digest {
        Some(Cause::Output)
    } else {
        None
    }
}

/// What two checkpoint directories have in common, and where they part.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryDiff {
    /// Tensors that are equal.
    pub equal_tensors: usize,
    /// Tensors that differ or are in one directory only.
    pub differing_tensors: usize,
    /// The first of them, in the order of A's network and then of B's; `None` for a tensor of one directory only.
    pub first: Option<(String, Result<TensorDifference, Side>)>,
    /// Keys of `config.json` with different values, with both; a key that is not there has the value `null`.
    pub config: Vec<(String, [serde_json::Value; 2])>,
}

/// Compares the tensors and the configurations of two checkpoint directories, tensor by tensor.
///
/// # Errors
/// If one of them is no checkpoint or a tensor cannot be read.
pub fn diff_directories(a: &Path, b: &Path) -> Result<DirectoryDiff, CheckpointError> {
    let (a, b) = (Checkpoint::open(a)?, Checkpoint::open(b)?);
    let mut diff = DirectoryDiff { equal_tensors: 0, differing_tensors: 0, first: None, config: Vec::new() };
    for id in a.network().ids() {
        let name = &a.network().parameter(id).name;
        let difference = match b.network().find(name) {
            None => Some(Err(Side::A)),
            Some(other) => tensor_difference(&a.read_stored(id)?, &b.read_stored(other)?).map(Ok),
        };
        match difference {
            None => diff.equal_tensors += 1,
            Some(difference) => diff.add(name, difference),
        }
    }
    for parameter in &b.network().parameters {
        if a.network().find(&parameter.name).is_none() {
            diff.add(&parameter.name, Err(Side::B));
        }
    }
    let (a, b) = (a.config_json(), b.config_json());
    let value =
        |object: &serde_json::Map<String, serde_json::Value>, key: &str| object.get(key).cloned().unwrap_or_default();
    let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
    diff.config = keys.map(|key| (key.clone(), [value(a, key), value(b, key)])).filter(|(_, [a, b])| a != b).collect();
    Ok(diff)
}

impl DirectoryDiff {
    /// Whether every tensor and every key of the configuration is equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.differing_tensors == 0 && self.config.is_empty() && self.equal_tensors > 0
    }

    fn add(&mut self, name: &str, difference: Result<TensorDifference, Side>) {
        self.differing_tensors += 1;
        self.first.get_or_insert_with(|| (name.to_owned(), difference));
    }
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::A => "A",
            Side::B => "B",
        })
    }
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version;
        let tensor = self.tensor.as_deref().unwrap_or_default();
        match self.cause {
            Cause::Ended(side) => return write!(f, "{side} ends before version {version}, which {} has", side.other()),
            Cause::VersionOnlyIn(side) => return write!(f, "version {version}: only {side} has it"),
            Cause::TensorOnlyIn(side) => return write!(f, "version {version}, `{tensor}`: only {side} has the tensor"),
            Cause::Format => write!(f, "version {version}, `{tensor}`: the formats differ (precision maps)")?,
            Cause::Source => write!(
                f,
                "version {version}, `{tensor}`: the values that were quantized differ (they parted before the quantizer)"
            )?,
            Cause::Output => write!(
                f,
                "version {version}, `{tensor}`: the same values gave different bytes (the quantizers parted)"
            )?,
        }
        for (side, event) in [Side::A, Side::B].into_iter().zip(&self.events) {
            let Some(event) = event else { continue };
            let LedgerEvent { source_digest, source_dtype, format, quantizer, output_digest, .. } = event;
            write!(f, "\n{side}: {source_dtype} {source_digest} -> {format} {output_digest} by {quantizer}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
