//! One thing in which what a run left does not fit together.

use std::fmt;
use std::path::PathBuf;

use miles_core::digest::Digest;
use miles_core::policy::{Finding, LogLine, PolicyVersion};

/// Who says something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// A line of a log.
    Line(LogLine),
    /// A file.
    File(PathBuf),
}

/// One thing in which what a run left does not fit together; each names the file, and the line where there are lines.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunFinding {
    /// The ledger contradicts itself, or stored bytes contradict it.
    Ledger(Finding),
    /// A file that every run has is not there.
    MissingFile {
        /// File.
        path: PathBuf,
    },
    /// The ledger does not begin with version 0.
    First {
        /// Its first line.
        at: LogLine,
        /// Version of the line.
        version: PolicyVersion,
    },
    /// A line says again what an earlier one says; a run writes each once.
    Repeated {
        /// Line.
        at: LogLine,
    },
    /// An export that newer versions follow: a run exports its last version and ends.
    Outdated {
        /// Line of the export.
        at: LogLine,
        /// Exported version.
        version: PolicyVersion,
        /// Newest version.
        newest: PolicyVersion,
    },
    /// A version was exported and no step is on record that made it.
    Unmeasured {
        /// Line of the export.
        at: LogLine,
        /// Exported version.
        version: PolicyVersion,
        /// The metrics.
        metrics: PathBuf,
    },
    /// The steps of the metrics do not follow one another.
    Step {
        /// Line.
        at: LogLine,
        /// Step of the line.
        recorded: u64,
        /// Step that has to stand there.
        expected: u64,
    },
    /// A line of the metrics without the version and the digest of the policy that the step made.
    NoStamp {
        /// Line.
        at: LogLine,
    },
    /// The ledger does not have a version that the run made.
    NoVersion {
        /// Who says that it was made.
        witness: Witness,
        /// Version.
        version: PolicyVersion,
        /// Ledger.
        ledger: PathBuf,
    },
    /// A version was recorded under another step than the metrics say.
    VersionStep {
        /// First and last event of the version.
        within: [LogLine; 2],
        /// Version.
        version: PolicyVersion,
        /// Step in the ledger.
        recorded: u64,
        /// Step by the metrics.
        expected: u64,
        /// Line of the metrics that says so.
        at: LogLine,
    },
    /// The tensors of a version do not give the digest that the version had.
    Policy {
        /// First and last event of the version.
        within: [LogLine; 2],
        /// Version.
        version: PolicyVersion,
        /// What the lines give.
        found: Digest,
        /// Who has another digest.
        witness: Witness,
        /// That digest.
        expected: Digest,
    },
    /// A checkpoint was saved under another precision map than the run has.
    PrecisionMap {
        /// `loop.json`.
        path: PathBuf,
        /// Digest in it.
        saved: Digest,
        /// Digest of the run's map.
        expected: Digest,
    },
    /// A log is shorter than it was when a checkpoint was saved.
    Shortened {
        /// Log.
        path: PathBuf,
        /// `loop.json`.
        saved: PathBuf,
        /// Length when it was saved.
        expected_bytes: u64,
        /// Length now.
        actual_bytes: u64,
    },
    /// The first bytes of a log are not what they were when a checkpoint was saved.
    Changed {
        /// Log.
        path: PathBuf,
        /// Lines that begin in them.
        lines: usize,
        /// `loop.json`.
        saved: PathBuf,
        /// How many bytes.
        bytes: u64,
        /// Their digest when it was saved.
        expected: Digest,
        /// Their digest now.
        found: Digest,
    },
    /// The newest version of the ledger is not the one that was live when a checkpoint was saved.
    Newest {
        /// `loop.json`.
        path: PathBuf,
        /// Live version in it.
        saved: PolicyVersion,
        /// Newest version of the ledger up to there.
        newest: PolicyVersion,
    },
    /// The metrics do not have the steps that were done when a checkpoint was saved.
    Steps {
        /// `loop.json`.
        path: PathBuf,
        /// Steps done in it.
        saved: u64,
        /// The metrics.
        metrics: PathBuf,
        /// Steps on record up to there.
        found: u64,
    },
    /// An export differs from what the config of the run asks for.
    Config {
        /// Line of the export.
        at: LogLine,
        /// Key of the line.
        field: &'static str,
        /// Its value.
        recorded: String,
        /// The config.
        config: PathBuf,
        /// What the config says.
        expected: String,
    },
    /// Every step was done, and there is neither an export nor a line about one.
    NeverExported {
        /// Where it would be.
        dir: PathBuf,
        /// Steps of the run.
        steps: u64,
    },
}

impl From<Finding> for RunFinding {
    fn from(finding: Finding) -> Self {
        RunFinding::Ledger(finding)
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Witness::Line(at) => at.fmt(f),
            Witness::File(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Display for RunFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunFinding::Ledger(finding) => finding.fmt(f),
            RunFinding::MissingFile { path } => write!(f, "{}: there is no such file", path.display()),
            RunFinding::First { at, version } => {
                write!(f, "{at}: the ledger of a run begins with version 0, not {version}")
            }
            RunFinding::Repeated { at } => write!(f, "{at}: the line says again what an earlier one says"),
            RunFinding::Outdated { at, version, newest } => {
                write!(f, "{at}: an export of version {version} before version {newest}: a run exports its last one")
            }
            RunFinding::Unmeasured { at, version, metrics } => {
                write!(f, "{at}: version {version} was exported, but {} has no step that made it", metrics.display())
            }
            RunFinding::Step { at, recorded, expected } => write!(f, "{at}: step {recorded} instead of {expected}"),
            RunFinding::NoStamp { at } => write!(f, "{at}: no `policy_version` with a `policy_digest`"),
            RunFinding::NoVersion { witness, version, ledger } => {
                write!(f, "{}: no line of version {version}, which {witness} names", ledger.display())
            }
            RunFinding::VersionStep { within: [first, last], version, recorded, expected, at } => write!(
                f,
                "{first}-{}: version {version} was made in step {recorded}, by {at} in step {expected}",
                last.line
            ),
            RunFinding::Policy { within: [first, last], version, found, witness, expected } => write!(
                f,
                "{first}-{}: the lines of version {version} give the policy digest {found}, {witness} has {expected}",
                last.line
            ),
            RunFinding::PrecisionMap { path, saved, expected } => {
                write!(f, "{}: saved under the precision map {saved}, the run has {expected}", path.display())
            }
            RunFinding::Shortened { path, saved, expected_bytes, actual_bytes } => write!(
                f,
                "{}: {actual_bytes} bytes, but {} was saved after {expected_bytes}",
                path.display(),
                saved.display()
            ),
            RunFinding::Changed { path, lines, saved, bytes, expected, found } => write!(
                f,
                "{}:1-{lines}: the first {bytes} bytes have the digest {found}, had {expected} when {} was saved",
                path.display(),
                saved.display()
            ),
            RunFinding::Newest { path, saved, newest } => write!(
                f,
                "{}: saved with version {saved} live, but the newest version of the ledger up to there is {newest}",
                path.display()
            ),
            RunFinding::Steps { path, saved, metrics, found } => write!(
                f,
                "{}: saved after {saved} steps, but {} has {found} up to there",
                path.display(),
                metrics.display()
            ),
            RunFinding::Config { at, field, recorded, config, expected } => {
                write!(f, "{at}: `{field}` is {recorded}, but {} says {expected}", config.display())
            }
            RunFinding::NeverExported { dir, steps } => write!(
                f,
                "{}: all {steps} steps were done, but nothing was exported here and no line records an export",
                dir.display()
            ),
        }
    }
}
