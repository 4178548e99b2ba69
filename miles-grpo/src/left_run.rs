//! What a run left in its output directory, read back: its ledger, and every version whose bytes are still there.
//!
//! | version | bytes |
//! |---|---|
//! | the exported one | as stored in `policy/` |
//! | each saved one | made again from the master weights in `checkpoints/` |
//! | 0 | made again from the model that the run started from, where it is still there |

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miles_core::checkpoint::Checkpoint;
use miles_core::network::Network;
use miles_core::policy::{
    Finding, LedgerFile, PolicyError, PolicyVersion, Rebuilt, Snapshot, StoredMasters, WeightSource, rebuild,
    recorded_map, stored_version, verify_rebuilt, verify_snapshot,
};

use crate::checkpoint::SavedLoop;
use crate::export::ExportForm;
use crate::left_config::{self, LeftMap};
use crate::left_policy::{self, LeftPolicy};
use crate::output::{OutputDir, OutputError};
use crate::run_audit::{RunAudit, RunFinding, Witness};
use crate::{Result, RunConfig};

/// An output directory that a run has left or is still writing.
#[derive(Clone, Debug)]
pub struct LeftRun {
    out: OutputDir,
    config: Option<Box<RunConfig>>,
    model: Option<PathBuf>,
}

/// A version whose bytes are there, or can be made again.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldVersion {
    /// Version.
    pub version: PolicyVersion,
    /// Where its bytes come from.
    pub place: Place,
}

/// Where the bytes of a version come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// A directory that holds the bytes themselves.
    Policy(PathBuf),
    /// Master weights in a checkpoint of the loop.
    Checkpoint(Box<SavedLoop>),
    /// The model that the run started from.
    Model(PathBuf),
}

/// Whether a directory holds the ledger of a run.
#[must_use]
pub fn is_run(dir: &Path) -> bool {
    OutputDir::of(dir).ledger().is_file()
}

impl LeftRun {
    /// Looks at an output directory.
    ///
    /// # Errors
    /// If it has no ledger, or a `run.toml` that cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        let out = OutputDir::of(dir);
        let ledger = out.ledger();
        std::fs::metadata(&ledger).map_err(|source| OutputError::Io { path: ledger, source })?;
        let config = left_config::read(&out.config())?.map(Box::new);
        let model = config.as_ref().map(|config| config.model.dir.clone());
        Ok(LeftRun { out, config, model: model.filter(|dir| dir.join("config.json").is_file()) })
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.out.ledger()
    }

    /// The exported policy; `None` for a run that has not ended.
    #[must_use]
    pub fn policy(&self) -> Option<PathBuf> {
        Some(self.out.policy()).filter(|dir| dir.is_dir())
    }

    /// The checkpoints of the loop, oldest first.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn checkpoints(&self) -> Result<Vec<HeldVersion>> {
        let held = |saved: SavedLoop| HeldVersion {
            version: saved.state.policy.version,
            place: Place::Checkpoint(Box::new(saved)),
        };
        Ok(SavedLoop::all(&self.out.checkpoints())?.into_iter().map(held).collect())
    }

    /// Checks the logs of the run against one another, its config and its checkpoints, and whether what they say was
    /// exported is there. The bytes of `policy/` and of the checkpoints are for
    /// [`verify_directory`](miles_core::policy::verify_directory) and [`LeftRun::verify`].
    ///
    /// # Errors
    /// If a log, the config or a checkpoint cannot be read.
    pub fn audit(&self) -> Result<RunAudit> {
        let saved = SavedLoop::all(&self.out.checkpoints())?;
        let known = self.known(&saved)?.policy;
        let (ledger, metrics) = (self.out.ledger(), self.out.metrics());
        let mut audit = RunAudit::of(&ledger, &metrics, None, &known)?;
        for saved in &saved {
            audit.compare_checkpoint(&ledger, &metrics, saved, &known)?;
        }
        self.check_export(&mut audit);
        Ok(audit)
    }

    /// Why policy digests cannot be computed again with certainty: the run's own precision map cannot be made. `None`
    /// where it can.
    ///
    /// # Errors
    /// If the config or a checkpoint cannot be read, or the config makes no precision map.
    pub fn unknown_map(&self) -> Result<Option<String>> {
        Ok(self.known(&SavedLoop::all(&self.out.checkpoints())?)?.why)
    }

    /// What the logs and the config say of the export, and whether there is one.
    fn check_export(&self, audit: &mut RunAudit) {
        let (dir, config) = (self.out.policy(), self.out.config());
        let Some(settings) = &self.config else {
            audit.findings.push(RunFinding::MissingFile { path: config });
            return;
        };
        match audit.ledger.exported().and_then(|version| version.export.as_ref()) {
            Some((export, at)) => {
                let as_held = settings.export.form == ExportForm::AsHeld;
                let fields = [
                    ("run", export.run.clone(), settings.run.name.clone()),
                    ("as_held", export.as_held.to_string(), as_held.to_string()),
                ];
                let wrong = fields.into_iter().filter(|(_, recorded, expected)| recorded != expected);
                let (at, files) = (at.clone(), export.files.keys().cloned().collect::<Vec<_>>());
                audit.findings.extend(wrong.map(|(field, recorded, expected)| {
                    let (at, config) = (at.clone(), config.clone());
                    RunFinding::Config { at, field, recorded, config, expected }
                }));
                if !dir.is_dir() {
                    audit.findings.push(Finding::MissingDirectory { dir, at: at.clone() }.into());
                    let missing = files.into_iter().map(|file| Finding::MissingFile { file, at: at.clone() }.into());
                    audit.findings.extend(missing);
                }
            }
            // A run that was stopped has neither; one that did all its steps has both.
            None if !dir.exists() && audit.steps as u64 >= settings.run.steps => {
                audit.findings.push(RunFinding::NeverExported { dir, steps: settings.run.steps });
            }
            None => {}
        }
    }

    /// Every version whose bytes are there or can be made again, oldest first, each once. A `policy/` that is not, to
    /// the bit, a version of the ledger is left out.
    ///
    /// # Errors
    /// If the ledger cannot be trusted or a checkpoint cannot be read.
    pub fn held(&self) -> Result<Vec<HeldVersion>> {
        let mut held = Vec::new();
        if let Some(dir) = self.policy() {
            let version = stored_version(&dir, &self.ledger())?;
            held.extend(version.map(|version| HeldVersion { version, place: Place::Policy(dir) }));
        }
        held.extend(self.checkpoints()?);
        let first = |dir: &PathBuf| HeldVersion { version: PolicyVersion(0), place: Place::Model(dir.clone()) };
        held.extend(self.model.as_ref().map(first));
        // Stable: bytes that are stored go before bytes that have to be made again.
        held.sort_by_key(|held| held.version);
        held.dedup_by_key(|held| held.version);
        Ok(held)
    }

    /// The tensors of a held version.
    ///
    /// # Errors
    /// If a file is damaged or missing. For a version that has to be made again under an unknown precision map
    /// ([`LeftRun::unknown_map`]): if the ledger does not have all of its tensors.
    pub fn tensors(&self, held: &HeldVersion) -> Result<Snapshot> {
        match &held.place {
            Place::Policy(dir) => Ok(Checkpoint::open(dir)?.snapshot_as_stored(held.version)?),
            Place::Model(dir) => {
                let model = Checkpoint::open(dir)?;
                Ok(self.rebuilt(model.network(), held.version, &model)?.snapshot)
            }
            Place::Checkpoint(saved) => Ok(self.masters_rebuilt(saved, held.version)?.snapshot),
        }
    }

    /// Compares a held version with the ledger.
    ///
    /// # Errors
    /// As [`LeftRun::tensors`]; also if the ledger cannot be trusted. That it does not have the version is a finding.
    pub fn verify(&self, held: &HeldVersion) -> Result<Vec<RunFinding>> {
        let recorded = match LedgerFile::find(&self.ledger(), held.version) {
            Ok(recorded) => recorded,
            Err(PolicyError::UnknownVersion { version, .. }) => {
                let (witness, ledger) = (Witness::File(held.place.path()), self.ledger());
                return Ok(vec![RunFinding::NoVersion { witness, version, ledger }]);
            }
            Err(error) => return Err(error.into()),
        };
        let findings = match &held.place {
            Place::Policy(_) => verify_snapshot(&self.tensors(held)?, &recorded),
            Place::Model(dir) => {
                let model = Checkpoint::open(dir)?;
                verify_rebuilt(&self.rebuilt(model.network(), held.version, &model)?, &recorded)
            }
            Place::Checkpoint(saved) => verify_rebuilt(&self.masters_rebuilt(saved, held.version)?, &recorded),
        };
        Ok(findings.into_iter().map(RunFinding::Ledger).collect())
    }

    fn masters_rebuilt(&self, saved: &SavedLoop, version: PolicyVersion) -> Result<Rebuilt> {
        let masters = saved.trainer_dir()?.join("masters.safetensors");
        let known = self.known(std::slice::from_ref(saved))?;
        let network = match known.network {
            Some(network) => network,
            None => left_policy::network(&self.model.clone().unwrap_or_else(|| self.out.policy()))?,
        };
        let source = StoredMasters::open(&network, &masters)?;
        self.rebuilt(&network, version, &source)
    }

    /// A version made again under the run's precision map, or under what the ledger tells of it.
    fn rebuilt(&self, network: &Arc<Network>, version: PolicyVersion, source: &dyn WeightSource) -> Result<Rebuilt> {
        let left = self.config.as_ref().map(|config| left_config::precision_map(&self.out.config(), config, network));
        let map = match left.transpose()? {
            Some(LeftMap::Made(map)) => map,
            Some(LeftMap::UnknownFormat(_)) | None => {
                recorded_map(network, &LedgerFile::find(&self.ledger(), version)?)?
            }
        };
        Ok(rebuild(network, &Arc::new(map), version, source)?)
    }

    fn known(&self, saved: &[SavedLoop]) -> Result<LeftPolicy> {
        LeftPolicy::find(&self.out, self.config.as_deref(), self.model.as_deref(), saved)
    }
}

impl Place {
    /// The file or directory that the bytes come from.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Place::Policy(dir) | Place::Model(dir) => dir.clone(),
            Place::Checkpoint(saved) => saved.loop_file(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Policy(dir) => write!(f, "stored in {}", dir.display()),
            Place::Checkpoint(saved) => write!(f, "made again from the masters in {}", saved.dir().display()),
            Place::Model(dir) => write!(f, "made again from {}", dir.display()),
        }
    }
}
