//! Checks what a run left against its ledger, and finds where two runs part.
//!
//! ```console
//! cargo run --release --example ledger -- verify runs/quickstart
//! cargo run --release --example ledger -- diff runs/a runs/b
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use miles_core::policy::{
    DirectoryDiff, LedgerDiff, PolicyVersion, Side, Verification, diff_directories, diff_ledgers, verify,
};
use miles_examples::exit;
use miles_grpo::left_run::{LeftRun, is_run};
use miles_grpo::run_diff::{RunDiff, diff_runs};

/// Checks what a run left against its ledger, and finds where two runs part.
///
/// Exit code: 0 equal (and something was compared), 1 a difference, 2 an error, such as a ledger that cannot be read.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Computes the digest of every stored tensor and file again and compares them with the ledger.
    Verify {
        /// Output directory of a run, or a checkpoint directory together with --ledger
        dir: PathBuf,
        /// Ledger file (default: the one in DIR)
        #[arg(long, value_name = "FILE")]
        ledger: Option<PathBuf>,
        /// Policy version (default: the one exported last, else the last one)
        #[arg(long, value_name = "N")]
        version: Option<u64>,
        /// Also make the version of every saved checkpoint of the run again from its master weights
        #[arg(long, conflicts_with = "ledger")]
        checkpoints: bool,
    },
    /// Finds the first version, tensor and byte where two runs, two ledger files or two checkpoint directories part.
    Diff {
        /// Output directory of a run, ledger file, or checkpoint directory
        a: PathBuf,
        /// The same of the other
        b: PathBuf,
    },
}

fn main() -> ExitCode {
    let is_equal = match Arguments::parse().command {
        Command::Verify { dir, ledger, version, checkpoints } => {
            verified(&dir, ledger.as_deref(), version.map(PolicyVersion), checkpoints)
        }
        Command::Diff { a, b } => diff(&a, &b),
    };
    match is_equal {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // The line on stderr is that of every example; the code tells an error from a difference.
            let _ = exit(Err(error));
            ExitCode::from(2)
        }
    }
}

fn verified(
    dir: &Path,
    ledger: Option<&Path>,
    version: Option<PolicyVersion>,
    checkpoints: bool,
) -> Result<bool, Box<dyn Error>> {
    if let Some(ledger) = ledger {
        return told(&verify(dir, ledger, version)?);
    }
    if !is_run(dir) {
        return Err(format!("{}: no ledger.jsonl here; name the ledger with --ledger FILE", dir.display()).into());
    }
    let run = LeftRun::open(dir)?;
    let mut is_equal = true;
    let policy = run.policy();
    if let Some(policy) = &policy {
        is_equal &= told(&verify(policy, &run.ledger(), version)?)?;
    }
    let saved = run.checkpoints()?;
    let looked_at = match (checkpoints, &policy) {
        (true, _) => &saved[..],
        (false, Some(_)) => &[],
        // A run that was stopped has no policy/ yet: its newest checkpoint stands for it.
        (false, None) => &saved[saved.len().saturating_sub(1)..],
    };
    if policy.is_none() && looked_at.is_empty() {
        return Err(format!("{}: neither policy/ nor a checkpoint to verify", dir.display()).into());
    }
    for held in looked_at {
        let findings = run.verify(held)?;
        findings.iter().try_for_each(|finding| say(&finding.to_string()))?;
        let verdict = if findings.is_empty() { "equal" } else { "DIFFERENT" };
        say(&format!("version {}, {}: {verdict}", held.version, held.place))?;
        is_equal &= findings.is_empty();
    }
    Ok(is_equal)
}

fn told(found: &Verification) -> Result<bool, Box<dyn Error>> {
    found.findings.iter().try_for_each(|finding| say(&finding.to_string()))?;
    if let Some(version) = found.equal_version {
        say(&format!("every tensor is equal to version {version}"))?;
    }
    if found.converted_tensors > 0 {
        say(&format!(
            "{} tensors were dequantized for the export: only their files were compared",
            found.converted_tensors
        ))?;
    }
    let files = match found.compared_files {
        Some(files) => format!("{files} files"),
        None => "no files: the ledger has no export of this version, so only the tensors are covered".to_owned(),
    };
    let verdict = match (found.is_equal(), found.findings.is_empty()) {
        (true, _) => "equal",
        (false, true) => "NOTHING COMPARED",
        (false, false) => "DIFFERENT",
    };
    let (dir, version, tensors) = (found.dir.display(), found.version, found.compared_tensors);
    say(&format!("version {version}, {dir}: {verdict} ({tensors} tensors, {files})"))?;
    Ok(found.is_equal())
}

/// What one argument of `diff` is.
enum Subject {
    Run(LeftRun),
    Ledger(PathBuf),
    Directory(PathBuf),
}

impl Subject {
    fn of(path: &Path) -> Result<Self, Box<dyn Error>> {
        if is_run(path) {
            Ok(Subject::Run(LeftRun::open(path)?))
        } else if path.join("config.json").is_file() {
            Ok(Subject::Directory(path.to_owned()))
        } else if path.is_file() {
            Ok(Subject::Ledger(path.to_owned()))
        } else {
            let why = "neither the output directory of a run, nor a ledger file, nor a checkpoint directory";
            Err(format!("{}: {why}", path.display()).into())
        }
    }

    fn ledger(&self) -> Option<PathBuf> {
        match self {
            Subject::Run(run) => Some(run.ledger()),
            Subject::Ledger(path) => Some(path.clone()),
            Subject::Directory(_) => None,
        }
    }

    fn directory(&self) -> Option<PathBuf> {
        match self {
            Subject::Run(run) => run.policy(),
            Subject::Ledger(_) => None,
            Subject::Directory(path) => Some(path.clone()),
        }
    }
}

fn diff(a: &Path, b: &Path) -> Result<bool, Box<dyn Error>> {
    let subjects = (Subject::of(a)?, Subject::of(b)?);
    if let (Subject::Run(a), Subject::Run(b)) = &subjects {
        return told_runs(&diff_runs(a, b)?);
    }
    if let (Some(a), Some(b)) = (subjects.0.ledger(), subjects.1.ledger()) {
        return told_ledgers(&diff_ledgers(&a, &b)?);
    }
    match (subjects.0.directory(), subjects.1.directory()) {
        (Some(a), Some(b)) => told_directories(&diff_directories(&a, &b)?),
        _ => {
            Err("a ledger cannot be compared with a checkpoint directory; `verify DIR --ledger FILE` does that".into())
        }
    }
}

fn told_ledgers(diff: &LedgerDiff) -> Result<bool, Box<dyn Error>> {
    if let Some([a, b]) = &diff.quantizers {
        say(&format!("equal bytes by different quantizers: {a} in A, {b} in B"))?;
    }
    say(&format!("equal: {} versions, {} tensors", diff.equal_versions, diff.equal_tensors))?;
    if let Some(parting) = &diff.parting {
        say(&format!("first difference: {parting}"))?;
    }
    Ok(diff.parting.is_none())
}

fn told_runs(diff: &RunDiff) -> Result<bool, Box<dyn Error>> {
    let is_equal = told_ledgers(&diff.ledgers)?;
    let Some(parting) = &diff.ledgers.parting else { return Ok(is_equal) };
    if parting.tensor.is_none() {
        return Ok(is_equal);
    }
    for (side, is_kept) in [Side::A, Side::B].into_iter().zip(diff.is_kept) {
        if !is_kept {
            say(&format!("the bytes of version {} are not kept in {side}", parting.version))?;
        }
    }
    let Some(bytes) = &diff.bytes else {
        say("there is no later version either that both runs hold the bytes of")?;
        return Ok(is_equal);
    };
    say(&format!("bytes of version {}, which both hold", bytes.version))?;
    for ((side, place), unrecorded) in [Side::A, Side::B].into_iter().zip(&bytes.places).zip(&bytes.unrecorded) {
        say(&format!("{side}: {place}"))?;
        if let Some(first) = unrecorded.first() {
            let count = unrecorded.len();
            say(&format!(
                "{side}: {count} tensors are not what its ledger recorded, first `{first}`: its quantizer did not follow the rule"
            ))?;
        }
    }
    match &bytes.first {
        Some((tensor, difference)) => say(&format!("`{tensor}`: {difference}"))?,
        None => say("all of them are equal")?,
    }
    Ok(is_equal)
}

fn told_directories(diff: &DirectoryDiff) -> Result<bool, Box<dyn Error>> {
    for (key, [a, b]) in &diff.config {
        say(&format!("config.json, `{key}`: {a} in A, {b} in B"))?;
    }
    match &diff.first {
        Some((tensor, Ok(difference))) => say(&format!("first difference: `{tensor}`: {difference}"))?,
        Some((tensor, Err(side))) => say(&format!("first difference: `{tensor}`: only {side} has the tensor"))?,
        None => {}
    }
    say(&format!("{} tensors are equal, {} differ", diff.equal_tensors, diff.differing_tensors))?;
    Ok(diff.is_equal())
}

/// One line on stdout. Nobody reading it is an error, not a panic.
fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
