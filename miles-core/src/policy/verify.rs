//! Checking stored bytes against a ledger: digests are computed again from what is on the disk.
//!
//! ```text
//! directory --Checkpoint::open--> tensors as stored --digest--> compared with the version's quantization events
//!           --every file--------> length, digest    ----------> compared with the version's export event
//! ```
//!
//! The first comparison names tensors; the second covers every other byte that a policy's meaning depends on.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use super::export_event::{entries, failed};
use super::finding::Finding;
use super::{
    ExportEvent, FileDigest, KnownPolicy, LedgerEvent, LedgerFile, LogLine, PolicyError, PolicyVersion, Rebuilt,
    RecordedVersion, Snapshot, audit_ledger,
};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::digest::Digest;
use crate::precision::TensorFormat;

/// What was compared and what differs.
#[derive(Debug)]
pub struct Verification {
    /// The directory.
    pub dir: PathBuf,
    /// The version whose events it was compared with.
    pub version: PolicyVersion,
    /// Tensors whose digests were compared.
    pub compared_tensors: usize,
    /// Tensors that the export dequantized, so that only their file's digest could be compared.
    pub converted_tensors: usize,
    /// Files whose digests were compared; `None` where the ledger has no export event of the version, which is a finding.
    pub compared_files: Option<usize>,
    /// Everything that differs: the ledger's own contradictions, files, then tensors in the order of the ledger.
    pub findings: Vec<Finding>,
    /// The newest version whose tensors are all equal to the stored ones, if it is another one.
    pub equal_version: Option<PolicyVersion>,
}

impl Verification {
    fn new(dir: &Path, version: PolicyVersion) -> Self {
        Verification {
            dir: dir.to_owned(),
            version,
            compared_tensors: 0,
            converted_tensors: 0,
            compared_files: None,
            findings: Vec::new(),
            equal_version: None,
        }
    }

    /// Whether at least one tensor was compared and nothing differs.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.findings.is_empty() && self.compared_tensors > 0
    }
}

/// Compares a checkpoint directory with what a ledger says about one version (the given one, or the one that was exported
/// last, or the last one if none was), and the ledger with itself ([`audit_ledger`]).
///
/// # Errors
/// If `dir` is no directory, the ledger cannot be trusted, or does not hold the version. What is wrong with the
/// directory, or with a value of the ledger, is not an error but a [`Finding`].
pub fn verify(dir: &Path, ledger: &Path, version: Option<PolicyVersion>) -> Result<Verification, PolicyError> {
    let mut found = verify_directory(dir, ledger, version)?;
    let mut findings = audit_ledger(ledger, u64::MAX, &KnownPolicy::default())?.findings;
    findings.append(&mut found.findings);
    Ok(Verification { findings, ..found })
}

/// As [`verify()`], without the comparison of the ledger with itself.
///
/// # Errors
/// As [`verify()`].
pub fn verify_directory(
    dir: &Path,
    ledger: &Path,
    version: Option<PolicyVersion>,
) -> Result<Verification, PolicyError> {
    fs::read_dir(dir).map_err(failed(dir))?;
    let stored = stored_tensors(dir);
    let (mut chosen, mut equal_version, mut held) = (None::<RecordedVersion>, None, Vec::new());
    for recorded in LedgerFile::open(ledger)? {
        let recorded = recorded?;
        held.push(recorded.version().0);
        if stored.as_ref().is_ok_and(|stored| holds(stored, &recorded)) {
            equal_version = Some(recorded.version());
        }
        let is_exported = |version: &RecordedVersion| version.export().is_some();
        let is_chosen = match version {
            Some(version) => recorded.version() == version,
            None => is_exported(&recorded) || !chosen.as_ref().is_some_and(is_exported),
        };
        if is_chosen {
            chosen = Some(recorded);
        }
    }
    let Some(recorded) = chosen else {
        return Err(PolicyError::UnknownVersion { version: version.unwrap_or(PolicyVersion(0)), held });
    };
    let equal_version = equal_version.filter(|version| *version != recorded.version());
    let mut verification = Verification { equal_version, ..Verification::new(dir, recorded.version()) };
    match recorded.exports().next_back() {
        Some((export, at)) => {
            verification.compared_files = Some(compare_files(dir, export, &at, &mut verification.findings)?);
        }
        None => {
            let (dir, [_, at], version) = (dir.to_owned(), recorded.extent(), recorded.version());
            verification.findings.push(Finding::Unexported { dir, at, version });
        }
    }
    match stored {
        Ok(stored) => compare_tensors(stored, &recorded, &mut verification),
        Err(error) => verification.findings.push(Finding::Unopened { error }),
    }
    Ok(verification)
}

/// The newest version of a ledger whose tensors are exactly those of a checkpoint directory; `None` also for a directory
/// that is no checkpoint.
///
/// # Errors
/// If the ledger cannot be read or trusted.
pub fn stored_version(dir: &Path, ledger: &Path) -> Result<Option<PolicyVersion>, PolicyError> {
    let Ok(stored) = stored_tensors(dir) else { return Ok(None) };
    let mut newest = None;
    for recorded in LedgerFile::open(ledger)? {
        let recorded = recorded?;
        newest = if holds(&stored, &recorded) { Some(recorded.version()) } else { newest };
    }
    Ok(newest)
}

/// Compares a policy version in memory with what a ledger says about it. Findings are in the order of the ledger.
#[must_use]
pub fn verify_snapshot(snapshot: &Snapshot, recorded: &RecordedVersion) -> Vec<Finding> {
    let (network, map) = (snapshot.network(), snapshot.map());
    let made = network.ids().map(|id| {
        let name = network.parameter(id).name.clone();
        (name, Ok(Stored { format: map.entry(id).format.to_string(), digest: snapshot.tensor_digest(id) }))
    });
    let mut verification = Verification::new(Path::new(""), recorded.version());
    compare_tensors(made.collect(), recorded, &mut verification);
    verification.findings
}

/// Compares a version that was made again with what a ledger says about it: as [`verify_snapshot`], and the values that
/// were quantized too.
#[must_use]
pub fn verify_rebuilt(rebuilt: &Rebuilt, recorded: &RecordedVersion) -> Vec<Finding> {
    let mut findings = verify_snapshot(&rebuilt.snapshot, recorded);
    let sources: HashMap<&str, &LedgerEvent> =
        rebuilt.events.iter().map(|event| (event.tensor.as_str(), event)).collect();
    for (event, at) in recorded.lines() {
        let Some(made) = sources.get(event.tensor.as_str()) else { continue };
        if made.source_digest != event.source_digest {
            findings.push(Finding::Field {
                at,
                tensor: Some(event.tensor.clone()),
                field: "source_digest",
                recorded: event.source_digest.to_string(),
                expected: made.source_digest.to_string(),
                because: "the master weights have that BF16 rounding",
            });
        }
    }
    findings
}

/// A tensor as it is stored.
struct Stored {
    format: String,
    digest: Digest,
}

type StoredTensors = BTreeMap<String, Result<Stored, CheckpointError>>;

/// Digests of a directory's tensors, one tensor in memory at a time.
fn stored_tensors(dir: &Path) -> Result<StoredTensors, CheckpointError> {
    let checkpoint = Checkpoint::open(dir)?;
    let network = checkpoint.network();
    let stored = |id| {
        let format = checkpoint.stored_format(id).to_string();
        checkpoint.read_stored(id).map(|tensor| Stored { format, digest: tensor.digest() })
    };
    Ok(network.ids().map(|id| (network.parameter(id).name.clone(), stored(id))).collect())
}

/// Whether the tensors are exactly those of a version.
fn holds(stored: &StoredTensors, recorded: &RecordedVersion) -> bool {
    stored.len() == recorded.events().len()
        && recorded.events().iter().all(|event| match stored.get(&event.tensor) {
            Some(Ok(tensor)) => (&tensor.format, tensor.digest) == (&event.format, event.output_digest),
            _ => false,
        })
}

fn compare_tensors(mut stored: StoredTensors, recorded: &RecordedVersion, into: &mut Verification) {
    let export = recorded.exports().next_back();
    let is_converted = export.as_ref().is_some_and(|(export, _)| !export.as_held);
    let mut codes = 0;
    for (event, at) in recorded.lines() {
        let tensor = event.tensor.clone();
        match stored.remove(&tensor) {
            None => into.findings.push(Finding::MissingTensor { tensor, at }),
            Some(Err(error)) => into.findings.push(Finding::UnreadTensor { tensor, at, error }),
            Some(Ok(found)) if found.format != event.format && is_converted => into.converted_tensors += 1,
            Some(Ok(found)) if found.format != event.format => {
                into.compared_tensors += 1;
                let (recorded, found) = (event.format.clone(), found.format);
                into.findings.push(Finding::Format { tensor, at, recorded, found });
            }
            Some(Ok(found)) => {
                into.compared_tensors += 1;
                codes += usize::from(matches!(found.format.parse(), Ok(TensorFormat::Quantized(_))));
                if found.digest != event.output_digest {
                    let (recorded, found) = (event.output_digest, found.digest);
                    into.findings.push(Finding::Tensor { tensor, at, recorded, found });
                }
            }
        }
    }
    let within = recorded.extent();
    let unrecorded = stored.into_keys().map(|tensor| Finding::UnrecordedTensor { tensor, within: within.clone() });
    into.findings.extend(unrecorded);
    if let Some((_, at)) = export.filter(|_| is_converted && codes > 0) {
        into.findings.push(Finding::Field {
            at,
            tensor: None,
            field: "as_held",
            recorded: false.to_string(),
            expected: true.to_string(),
            because: "the directory holds codes",
        });
    }
}

/// Number of files compared.
fn compare_files(
    dir: &Path,
    export: &ExportEvent,
    at: &LogLine,
    findings: &mut Vec<Finding>,
) -> Result<usize, PolicyError> {
    for (file, recorded) in &export.files {
        let path = dir.join(file);
        if !path.is_file() {
            findings.push(Finding::MissingFile { file: file.clone(), at: at.clone() });
            continue;
        }
        let (found, file, at) = (FileDigest::of(&path)?, file.clone(), at.clone());
        if found != *recorded {
            findings.push(Finding::File { file, at, recorded: *recorded, found });
        }
    }
    let unrecorded = entries(dir)?.into_iter().filter(|(name, ..)| !export.files.contains_key(name));
    findings.extend(unrecorded.map(|(file, ..)| Finding::UnrecordedFile { file, at: at.clone() }));
    Ok(export.files.len())
}
