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
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::Network;
use miles_core::policy::{
    Finding, LedgerFile, PolicyVersion, Snapshot, StoredMasters, rebuild, verify, verify_snapshot,
};

use crate::checkpoint::SavedLoop;
use crate::output::{OutputDir, OutputError};
use crate::{Result, RunConfig};

/// An output directory that a run has left or is still writing.
#[derive(Clone, Debug)]
pub struct LeftRun {
    out: OutputDir,
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
        let config = out.config();
        let model = match config.is_file() {
            true => Some(RunConfig::read(&config, &[])?.model.dir),
            false => None,
        };
        Ok(LeftRun { out, model: model.filter(|dir| dir.join("config.json").is_file()) })
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

    /// Every version whose bytes are there or can be made again, oldest first, each once. A `policy/` that is not, to
    /// the bit, a version of the ledger is left out.
    ///
    /// # Errors
    /// If the ledger cannot be trusted or a checkpoint cannot be read.
    pub fn held(&self) -> Result<Vec<HeldVersion>> {
        let mut held = Vec::new();
        if let Some(dir) = self.policy() {
            let found = verify(&dir, &self.ledger(), None)?;
            let is_whole = found.is_equal() && found.converted_tensors == 0;
            let version = if is_whole { Some(found.version) } else { found.equal_version };
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
    /// If a file is damaged or missing, or the ledger does not have the version.
    pub fn tensors(&self, held: &HeldVersion) -> Result<Snapshot> {
        let recorded = LedgerFile::find(&self.ledger(), held.version)?;
        match &held.place {
            Place::Policy(dir) => Ok(Checkpoint::open(dir)?.snapshot_as_stored(held.version)?),
            Place::Model(dir) => {
                let model = Checkpoint::open(dir)?;
                Ok(rebuild(model.network(), &recorded, &model)?)
            }
            Place::Checkpoint(saved) => {
                let masters = saved.trainer_dir()?.join("masters.safetensors");
                let dir = self.model.clone().unwrap_or_else(|| self.out.policy());
                let config = HuggingFaceConfig::read(&dir).map_err(miles_core::Error::from)?;
                let network = Arc::new(Network::new(config.model()));
                let source = StoredMasters::open(&network, &masters)?;
                Ok(rebuild(&network, &recorded, &source)?)
            }
        }
    }

    /// Compares a held version with the ledger.
    ///
    /// # Errors
    /// As [`LeftRun::tensors`].
    pub fn verify(&self, held: &HeldVersion) -> Result<Vec<Finding>> {
        let snapshot = self.tensors(held)?;
        Ok(verify_snapshot(&snapshot, &LedgerFile::find(&self.ledger(), held.version)?))
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
