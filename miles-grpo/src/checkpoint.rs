//! Stopping and going on.
//!
//! ```text
//! out/checkpoints/step-00000012/loop.json    step, version, digest, scheduler state, config, lengths and digests of the logs
//!                              /trainer/     what the trainer saved: master weights, optimizer state
//!                              /trainer.json digest of each of those files
//! ```
//!
//! A checkpoint appears whole or not at all: it is written beside its place, synced, and renamed. No random generator
//! is saved because there is none: every draw is a function of the seed and of what is drawn. What a scheduler
//! remembers is its own named state in `loop.json`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use miles_core::digest::Digest;
use miles_core::json;
use miles_core::plugin::Trainer;
use miles_core::policy::PolicyStamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::ConfigFingerprint;
use crate::output::{OutputError, io, remove};
use crate::run_audit::RunFinding;
use crate::{Error, Result};

/// Why a run cannot go on from a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The output directory holds a run but no checkpoint.
    #[error("{}: there is no checkpoint to resume from; run.existing = \"overwrite\" starts again", dir.display())]
    NoCheckpoint {
        /// Directory of checkpoints.
        dir: PathBuf,
    },
    /// A `loop.json` that is not one.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// The config differs in keys that change results.
    #[error("{}: the config differs from that of the saved run in {}", path.display(), differences.join("; "))]
    ConfigChanged {
        /// `loop.json`.
        path: PathBuf,
        /// `key: saved -> now`.
        differences: Vec<String>,
    },
    /// A saved file is not what was saved.
    #[error("{}: the file is damaged: its digest is {found}, saved was {saved}", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// Digest when it was saved.
        saved: Digest,
        /// Digest now.
        found: Digest,
    },
    /// The trainer's directory and the list of its files differ.
    #[error("{}: {why}", path.display())]
    Unlisted {
        /// File.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What the logs held when the checkpoint was saved is no longer what they hold.
    #[error("the logs are not those of the saved run:{}", listed(findings))]
    Logs {
        /// Everything that does not fit; at least one.
        findings: Vec<RunFinding>,
    },
    /// A restored policy does not have the digest that was saved.
    #[error("the restored {what} is {found}, saved was {saved}")]
    PolicyChanged {
        /// Which policy.
        what: &'static str,
        /// Saved stamp.
        saved: PolicyStamp,
        /// Restored stamp.
        found: PolicyStamp,
    },
}

/// The first findings, one per line.
fn listed(findings: &[RunFinding]) -> String {
    const SHOWN: usize = 8;
    let mut lines: String = findings.iter().take(SHOWN).map(|finding| format!("\n  {finding}")).collect();
    if findings.len() > SHOWN {
        lines.push_str(&format!("\n  and {} more", findings.len() - SHOWN));
    }
    lines
}

/// Everything of the loop itself that a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopState {
    /// Steps done; the next step has this number.
    pub steps_done: u64,
    /// Live policy.
    pub policy: PolicyStamp,
    /// First policy of the run: the reference.
    pub reference: PolicyStamp,
    /// Digest of the precision map.
    pub precision_map: Digest,
    /// What the scheduler remembers.
    pub scheduler: Value,
    /// Length of `metrics.jsonl`.
    pub metrics_bytes: u64,
    /// Digest of these bytes.
    pub metrics_digest: Digest,
    /// Length of `ledger.jsonl`.
    pub ledger_bytes: u64,
    /// Digest of these bytes.
    pub ledger_digest: Digest,
    /// Digest of the config's fingerprint.
    pub config_digest: Digest,
    /// Every key that changes results.
    pub config: ConfigFingerprint,
}

/// A saved checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedLoop {
    dir: PathBuf,
    /// State of the loop.
    pub state: LoopState,
}

impl SavedLoop {
    /// The newest checkpoint of a directory of checkpoints.
    ///
    /// # Errors
    /// If there is none or it cannot be read.
    pub fn newest(checkpoints: &Path) -> Result<Self> {
        match saved(checkpoints)?.pop() {
            Some((_, dir)) => Self::read(dir),
            None => Err(ResumeError::NoCheckpoint { dir: checkpoints.to_owned() }.into()),
        }
    }

    /// Every checkpoint of a directory of checkpoints, oldest first; none where there is no directory.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn all(checkpoints: &Path) -> Result<Vec<Self>> {
        saved(checkpoints)?.into_iter().map(|(_, dir)| Self::read(dir)).collect()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of the loop's state.
    #[must_use]
    pub fn loop_file(&self) -> PathBuf {
        self.dir.join(LOOP)
    }

    fn read(dir: PathBuf) -> Result<Self> {
        let path = dir.join(LOOP);
        let bytes = fs::read(&path).map_err(io(&path))?;
        let state = json::from_slice(&bytes).map_err(|source| ResumeError::Malformed { path, source })?;
        Ok(SavedLoop { dir, state })
    }

    /// Refuses a config that differs in a key that changes results.
    ///
    /// # Errors
    /// [`ResumeError::ConfigChanged`] with every such key.
    pub fn check_config(&self, now: &ConfigFingerprint) -> Result<(), ResumeError> {
        if now.digest() == self.state.config_digest {
            return Ok(());
        }
        let differences = self.state.config.differences(now);
        Err(ResumeError::ConfigChanged { path: self.loop_file(), differences })
    }

    /// Where the trainer's files are, once every one of them has the digest that was saved.
    ///
    /// # Errors
    /// If a file is missing, damaged, not listed, outside the directory or cannot be read; the error names it.
    pub fn trainer_dir(&self) -> Result<PathBuf> {
        let dir = self.dir.join(TRAINER);
        let path = self.dir.join(DIGESTS);
        let bytes = fs::read(&path).map_err(io(&path))?;
        let digests: BTreeMap<String, Digest> =
            json::from_slice(&bytes).map_err(|source| ResumeError::Malformed { path, source })?;
        for entry in fs::read_dir(&dir).map_err(io(&dir))? {
            let entry = entry.map_err(io(&dir))?;
            // A folder, a link or a device is nothing that a trainer saved, and reading one may have no end.
            let is_file = entry.file_type().map_err(io(&entry.path()))?.is_file();
            if !is_file || entry.file_name().to_str().is_none_or(|name| !digests.contains_key(name)) {
                let why = "trainer.json has no digest for it, so it cannot be checked";
                return Err(ResumeError::Unlisted { path: entry.path(), why }.into());
            }
        }
        for (name, saved) in digests {
            let path = dir.join(&name);
            if path.file_name().is_none_or(|own| own != name.as_str()) || path.parent() != Some(&dir) {
                let why = "trainer.json names a file outside the trainer's directory";
                return Err(ResumeError::Unlisted { path, why }.into());
            }
            let found = digest(&path)?;
            if found != saved {
                return Err(ResumeError::Damaged { path, saved, found }.into());
            }
        }
        Ok(dir)
    }
}

/// Saves a checkpoint and deletes all but the newest `keep_last`.
///
/// # Errors
/// If writing fails; nothing half-written is left.
pub fn save(checkpoints: &Path, state: &LoopState, trainer: &dyn Trainer, keep_last: usize) -> Result<()> {
    fs::create_dir_all(checkpoints).map_err(io(checkpoints))?;
    let target = checkpoints.join(format!("step-{:08}", state.steps_done));
    let partial = checkpoints.join(format!(".step-{:08}.partial", state.steps_done));
    remove(&partial)?;
    let placed = write(&partial, state, trainer).and_then(|()| {
        remove(&target)?;
        fs::rename(&partial, &target).map_err(io(&target))?;
        Ok(sync(checkpoints)?)
    });
    if placed.is_err() {
        // The first error is the one to report.
        let _ = remove(&partial);
        return placed;
    }
    let all = saved(checkpoints)?;
    let (old, _) = all.split_at(all.len().saturating_sub(keep_last));
    old.iter().try_for_each(|(_, dir)| remove(dir))?;
    Ok(())
}

fn write(dir: &Path, state: &LoopState, trainer: &dyn Trainer) -> Result<()> {
    let trainer_dir = dir.join(TRAINER);
    fs::create_dir_all(&trainer_dir).map_err(io(&trainer_dir))?;
    trainer.save(&trainer_dir)?;
    let mut digests = BTreeMap::new();
    for entry in fs::read_dir(&trainer_dir).map_err(io(&trainer_dir))? {
        let path = entry.map_err(io(&trainer_dir))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        digests.insert(name.unwrap_or_default(), digest(&path)?);
    }
    write_json(&dir.join(DIGESTS), &digests)?;
    write_json(&dir.join(LOOP), state)?;
    Ok(sync_tree(dir)?)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value).map_err(|error| Error::from(io(path)(error.into())))?;
    Ok(fs::write(path, text).map_err(io(path))?)
}

fn digest(path: &Path) -> Result<Digest, OutputError> {
    File::open(path).and_then(|mut file| Digest::of_reader(&mut file)).map_err(io(path))
}

/// Every whole checkpoint, oldest first.
fn saved(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>, OutputError> {
    if !checkpoints.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(checkpoints).map_err(io(checkpoints))? {
        let path = entry.map_err(io(checkpoints))?.path();
        let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-")?.parse::<u64>().ok());
        found.extend(step.map(|step| (step, path)));
    }
    found.sort_unstable();
    Ok(found)
}

/// Makes sure that a directory and everything in it are on the disk.
fn sync_tree(dir: &Path) -> Result<(), OutputError> {
    for entry in fs::read_dir(dir).map_err(io(dir))? {
        let path = entry.map_err(io(dir))?.path();
        match path.is_dir() {
            true => sync_tree(&path)?,
            false => sync(&path)?,
        }
    }
    sync(dir)
}

fn sync(path: &Path) -> Result<(), OutputError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(io(path))
}

const LOOP: &str = "loop.json";
const DIGESTS: &str = "trainer.json";
const TRAINER: &str = "trainer";
