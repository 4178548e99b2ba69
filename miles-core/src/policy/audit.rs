//! Checking a ledger against itself: every value of a line that follows from other lines, or from what is known of the
//! run, is computed again.
//!
//! | key | what it has to be |
//! |---|---|
//! | `run`, `step`, `quantizer` | one value per version; steps never go back |
//! | `version` | the next one, from line to line |
//! | `tensor` | every version has every tensor: of the model where that is known, else of all versions together |
//! | `format` | a format's name; the map's where it is known, else the same in every version |
//! | `source_dtype` | `bf16`, or the format of a tensor kept in high precision |
//! | `source_digest` | the output's for a tensor kept in high precision |
//! | `precision_map`, `policy_digest` of an export | the map's digest where it is known; what it and the tensors give |
//!
//! What remains (`output_digest`, a quantized tensor's `source_digest`, `as_held`, `files`) takes bytes to recompute:
//! [`verify`](super::verify()), [`verify_rebuilt`](super::verify_rebuilt).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{ExportEvent, Finding, LedgerEvent, LedgerFile, LogLine, PolicyError, PolicyVersion, RecordedVersion};
use crate::digest::Digest;
use crate::network::Inventory;
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::Dtype;

/// What is known of a run's versions beside its ledger.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownPolicy {
    /// The format of every tensor, by name.
    pub formats: Option<BTreeMap<String, TensorFormat>>,
    /// Digest of the precision map.
    pub precision_map: Option<Digest>,
}

impl KnownPolicy {
    /// Everything that a precision map of these tensors says.
    #[must_use]
    pub fn of(inventory: &Inventory, map: &PrecisionMap) -> Self {
        let format = |id| (inventory.parameter(id).name.clone(), map.entry(id).format.clone());
        KnownPolicy { formats: Some(inventory.ids().map(format).collect()), precision_map: Some(map.digest()) }
    }
}

/// A version as an audit found it.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditedVersion {
    /// Version.
    pub version: PolicyVersion,
    /// The step that made it, by most of its events.
    pub step: u64,
    /// Its first and last event.
    pub extent: [LogLine; 2],
    /// The policy digest that its tensors give under the known map; `None` where no map is known.
    pub policy_digest: Option<Digest>,
    /// Its last export.
    pub export: Option<(ExportEvent, LogLine)>,
    /// Lines that say again what an earlier one says.
    pub repeats: Vec<LogLine>,
}

/// What an audit found.
#[derive(Debug, Default)]
pub struct LedgerAudit {
    /// Every version, oldest first.
    pub versions: Vec<AuditedVersion>,
    /// Quantization events, repeated ones not counted.
    pub events: usize,
    /// Everything that contradicts something else.
    pub findings: Vec<Finding>,
}

impl LedgerAudit {
    /// A version.
    #[must_use]
    pub fn version(&self, version: PolicyVersion) -> Option<&AuditedVersion> {
        self.versions.iter().find(|audited| audited.version == version)
    }

    /// The newest version that was exported.
    #[must_use]
    pub fn exported(&self) -> Option<&AuditedVersion> {
        self.versions.iter().rev().find(|audited| audited.export.is_some())
    }
}

/// Audits the first `bytes` bytes of a ledger; `u64::MAX` is all of it.
///
/// # Errors
/// If the ledger cannot be read or trusted.
pub fn audit_ledger(ledger: &Path, bytes: u64, known: &KnownPolicy) -> Result<LedgerAudit, PolicyError> {
    let open = || LedgerFile::open_prefix(ledger, bytes);
    let mut auditor =
        Auditor { known, tensors: BTreeSet::new(), formats: BTreeMap::new(), audit: LedgerAudit::default() };
    let mut fewest = usize::MAX;
    for recorded in open()? {
        let recorded = recorded?;
        fewest = fewest.min(recorded.events().len());
        auditor.add(&recorded);
    }
    let Auditor { tensors, mut audit, .. } = auditor;
    // Where the model is not known, which tensors there are is known at the end only.
    if known.formats.is_none() && fewest < tensors.len() {
        for recorded in open()? {
            missing_events(tensors.iter(), &recorded?, &mut audit.findings);
        }
    }
    Ok(audit)
}

struct Auditor<'a> {
    known: &'a KnownPolicy,
    /// Every tensor, where the model is not known.
    tensors: BTreeSet<String>,
    /// The first format of each of them, and its line.
    formats: BTreeMap<String, (String, LogLine)>,
    audit: LedgerAudit,
}

impl Auditor<'_> {
    fn add(&mut self, recorded: &RecordedVersion) {
        self.follows(recorded);
        let findings = &mut self.audit.findings;
        uniform(recorded, "run", |event| &event.run, findings);
        uniform(recorded, "step", |event| &event.step, findings);
        uniform(recorded, "quantizer", |event| &event.quantizer, findings);
        for (event, at) in recorded.lines() {
            self.event(event, at);
        }
        if let Some(formats) = &self.known.formats {
            missing_events(formats.keys(), recorded, &mut self.audit.findings);
        }
        for (export, at) in recorded.exports() {
            self.export(export, recorded, at);
        }
        self.audit.events += recorded.events().len();
        self.audit.versions.push(AuditedVersion {
            version: recorded.version(),
            step: step(recorded),
            extent: recorded.extent(),
            policy_digest: self.known.precision_map.as_ref().map(|map| recorded.policy_digest(map)),
            export: recorded.exports().next_back().map(|(export, at)| (export.clone(), at)),
            repeats: recorded.repeats().collect(),
        });
    }

    /// Whether a version can come after the one before it.
    fn follows(&mut self, recorded: &RecordedVersion) {
        let Some(before) = self.audit.versions.last() else { return };
        let ([at, _], step) = (recorded.extent(), step(recorded));
        if recorded.version().0.checked_sub(1) != Some(before.version.0) {
            let (version, after) = (recorded.version(), before.version);
            self.audit.findings.push(Finding::Gap { at: at.clone(), version, after });
        }
        if step < before.step {
            self.audit.findings.push(Finding::Field {
                at,
                tensor: None,
                field: "step",
                recorded: step.to_string(),
                expected: format!("{} or later", before.step),
                because: "the version before was made in that step",
            });
        }
    }

    fn event(&mut self, event: &LedgerEvent, at: LogLine) {
        let format = match event.format.parse::<TensorFormat>() {
            Ok(format) => Some(format),
            Err(error) => {
                let tensor = event.tensor.clone();
                self.audit.findings.push(Finding::BadFormat { at: at.clone(), tensor, error });
                None
            }
        };
        if let Some(format) = &format {
            self.audit.findings.extend(bad_source(event, format, &at));
        }
        let tensor = event.tensor.clone();
        match &self.known.formats {
            Some(formats) => match (formats.get(&tensor), format) {
                (None, _) => self.audit.findings.push(Finding::ForeignTensor { at, tensor }),
                (Some(known), Some(format)) if *known != format => {
                    let because = "so says the run's precision map";
                    self.audit.findings.push(field(event, at, "format", &event.format, &known.to_string(), because));
                }
                _ => {}
            },
            None => {
                self.tensors.insert(tensor.clone());
                let Some(format) = format.map(|format| format.to_string()) else { return };
                match self.formats.get(&tensor).cloned() {
                    None => drop(self.formats.insert(tensor, (format, at))),
                    Some((first_format, first)) if first_format != format => {
                        self.audit.findings.push(Finding::FormatChange { at, tensor, format, first, first_format });
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn export(&mut self, export: &ExportEvent, recorded: &RecordedVersion, at: LogLine) {
        let mut wrong = |field, recorded: String, expected: String, because| {
            let finding = Finding::Field { at: at.clone(), tensor: None, field, recorded, expected, because };
            self.audit.findings.push(finding);
        };
        let made_in = step(recorded);
        if export.step != made_in {
            wrong("step", export.step.to_string(), made_in.to_string(), "that step made the version");
        }
        if let Some(known) = self.known.precision_map.filter(|known| *known != export.precision_map) {
            wrong("precision_map", export.precision_map.to_string(), known.to_string(), "the run has that map");
        }
        let digest = recorded.policy_digest(&export.precision_map);
        if export.policy_digest != digest {
            let because = "so say the map and the version's lines";
            wrong("policy_digest", export.policy_digest.to_string(), digest.to_string(), because);
        }
    }
}

/// What is wrong with the source of a tensor of this format.
fn bad_source(event: &LedgerEvent, format: &TensorFormat, at: &LogLine) -> Vec<Finding> {
    let mut found = Vec::new();
    let (dtype, because) = match format {
        TensorFormat::Dense(dtype) => (*dtype, "a tensor kept in high precision is its own source"),
        TensorFormat::Quantized(_) => (Dtype::Bf16, "weights are quantized from BF16"),
    };
    if event.source_dtype != dtype.name() {
        found.push(field(event, at.clone(), "source_dtype", &event.source_dtype, dtype.name(), because));
    }
    if matches!(format, TensorFormat::Dense(_)) && event.source_digest != event.output_digest {
        let [source, output] = [event.source_digest, event.output_digest].map(|digest| digest.to_string());
        found.push(field(event, at.clone(), "source_digest", &source, &output, because));
    }
    found
}

fn field(
    event: &LedgerEvent,
    at: LogLine,
    field: &'static str,
    recorded: &str,
    expected: &str,
    because: &'static str,
) -> Finding {
    let (recorded, expected) = (recorded.to_owned(), expected.to_owned());
    Finding::Field { at, tensor: Some(event.tensor.clone()), field, recorded, expected, because }
}

/// The step that most events of a version have.
fn step(recorded: &RecordedVersion) -> u64 {
    usual(recorded, |event| &event.step).copied().unwrap_or_default()
}

/// Finds the lines of a version whose value is not that of most of them.
fn uniform<T: Ord + ToString>(
    recorded: &RecordedVersion,
    field: &'static str,
    value: impl Fn(&LedgerEvent) -> &T,
    findings: &mut Vec<Finding>,
) {
    let Some(usual) = usual(recorded, &value) else { return };
    let others = recorded.lines().filter(|(event, _)| value(event) != usual);
    findings.extend(others.map(|(event, at)| Finding::Field {
        at,
        tensor: Some(event.tensor.clone()),
        field,
        recorded: value(event).to_string(),
        expected: usual.to_string(),
        because: "so say most lines of the version",
    }));
}

/// The value that most events of a version have.
fn usual<'a, T: Ord>(recorded: &'a RecordedVersion, value: impl Fn(&'a LedgerEvent) -> &'a T) -> Option<&'a T> {
    let mut counts: BTreeMap<&T, usize> = BTreeMap::new();
    recorded.events().iter().for_each(|event| *counts.entry(value(event)).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

fn missing_events<'a>(
    tensors: impl Iterator<Item = &'a String>,
    recorded: &RecordedVersion,
    findings: &mut Vec<Finding>,
) {
    let missing = tensors.filter(|tensor| recorded.event(tensor).is_none());
    findings.extend(missing.map(|tensor| Finding::MissingEvent {
        within: recorded.extent(),
        version: recorded.version(),
        tensor: tensor.clone(),
    }));
}
