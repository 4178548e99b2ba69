//! Making a recorded version again from high-precision values, by the arithmetic of the formats.
//!
//! A run keeps the codes of its last version only, but the master weights of others. Quantizing these by the rules gives
//! the codes of their version again; whether they are what the ledger recorded is for
//! [`verify_rebuilt`](super::verify_rebuilt) to say.

use std::sync::Arc;

use super::quantize::quantize_events;
use super::{Ledger, LedgerEvent, PolicyContext, PolicyError, PolicyVersion, RecordedVersion, Snapshot, WeightSource};
use crate::Result;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::tensors::StateReader;
use crate::format::{FormatId, FormatRule, Partition, QuantizeSpec, QuantizedTensor, Source, builtin_rule};
use crate::network::{Network, ParamId};
use crate::plugin::{Quantizer, Support};
use crate::precision::{BackwardMode, PartitionPlan, PrecisionEntry, PrecisionMap, TensorFormat};
use crate::registry;

/// A version made again, and what its ledger lines would be.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// The version.
    pub snapshot: Snapshot,
    /// One event per tensor; `run`, `step` and `quantizer` are those of the rebuilding.
    pub events: Vec<LedgerEvent>,
}

/// Makes a version again: `source` is quantized into the formats of `map` by the rules of the formats.
///
/// # Errors
/// As [`quantize_policy`](super::quantize_policy); also when a format has no rule here.
pub fn rebuild(
    network: &Arc<Network>,
    map: &Arc<PrecisionMap>,
    version: PolicyVersion,
    source: &dyn WeightSource,
) -> Result<Rebuilt> {
    let (ledger, mut events) = (Ledger::discard(), Vec::new());
    let context = PolicyContext { run: "rebuild", step: 0, version, ledger: &ledger };
    let snapshot = quantize_events(network, map, &RuleQuantizer, source, context, &mut |event| {
        events.push(event.clone());
        Ok(())
    })?;
    Ok(Rebuilt { snapshot, events })
}

/// The precision map that the lines of a version tell, for a run whose own map is not at hand: the formats are the
/// recorded ones, routed experts are whole. A ledger does not record a partition plan, so a cut version is found to differ
/// in its digests.
///
/// # Errors
/// If the ledger has no event for a tensor of the network or names a format that cannot be.
pub fn recorded_map(network: &Network, recorded: &RecordedVersion) -> Result<PrecisionMap> {
    let mismatch = |tensor: &str, why: String| PolicyError::TensorMismatch { tensor: tensor.to_owned(), why };
    let mut entries = Vec::with_capacity(network.parameters.len());
    for parameter in &network.parameters {
        let name = &parameter.name;
        let no_event = || mismatch(name, format!("version {} has no event of it", recorded.version()));
        let event = recorded.event(name).ok_or_else(no_event)?;
        let format: TensorFormat = event.format.parse()?;
        let (backward, partition) = (BackwardMode::HighPrecision, Partition::WHOLE);
        entries.push(PrecisionEntry { format, backward, partition, rule: "as recorded".to_owned() });
    }
    Ok(PrecisionMap::seal("as-recorded".to_owned(), network, entries, PartitionPlan::WHOLE))
}

/// Master weights in a state file, under the names of the network.
pub struct StoredMasters<'a> {
    network: &'a Network,
    file: StateReader,
}

impl<'a> StoredMasters<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read, or lacks a tensor of the network.
    pub fn open(network: &'a Network, path: &std::path::Path) -> Result<Self, CheckpointError> {
        let file = StateReader::open(path)?;
        let lacks = |name: &str| !file.tensors().any(|(stored, _)| stored == name);
        if let Some(parameter) = network.parameters.iter().find(|parameter| lacks(&parameter.name)) {
            let (path, tensor) = (path.to_owned(), parameter.name.clone());
            return Err(CheckpointError::NoSuchTensor { path, tensor, expected: None });
        }
        Ok(StoredMasters { network, file })
    }
}

impl WeightSource for StoredMasters<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        Ok(self.file.read(&self.network.parameter(id).name, into)?)
    }
}

/// Quantizes by the rules themselves, on no device: built in, or registered under the format's name.
#[derive(Clone, Copy, Debug)]
pub struct RuleQuantizer;

impl RuleQuantizer {
    fn with<T>(format: &FormatId, use_rule: impl FnOnce(&dyn FormatRule) -> Result<T>) -> Result<T> {
        match builtin_rule(format) {
            Some(rule) => use_rule(rule),
            None => use_rule(registry::format(format.as_str(), &serde_json::Value::Null)?.as_ref()),
        }
    }
}

impl Quantizer for RuleQuantizer {
    fn id(&self) -> &str {
        concat!("rule/", env!("CARGO_PKG_VERSION"))
    }

    fn support(&self, format: &FormatId) -> Support {
        if Self::with(format, |_| Ok(())).is_ok() { Support::Native } else { Support::Unsupported }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        Self::with(&spec.format, |rule| match sources {
            [source] => Ok(vec![rule.quantize(source, spec)?]),
            _ => Ok(rule.quantize_joint(sources, spec)?),
        })
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Self::with(tensor.format(), |rule| Ok(rule.dequantize(tensor)?))
    }
}
