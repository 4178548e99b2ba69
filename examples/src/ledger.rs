//! What the example `ledger` does: checks what a run left against its ledger, and finds where two runs part.
//!
//! Each command writes its lines to `out` and says whether everything is equal. What cannot be read is an error, as is a
//! command that compares nothing by its arguments; everything that differs, or is missing, is a line and `false`.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use miles_core::policy::{
    DirectoryDiff, LedgerDiff, PolicyVersion, Side, Verification, diff_directories, diff_ledgers, verify,
    verify_directory,
};
use miles_grpo::left_run::{HeldVersion, LeftRun, is_run};
use miles_grpo::run_audit::RunAudit;
use miles_grpo::run_diff::{PolicyDiff, RunDiff, diff_runs};

/// Whether everything that was compared is equal, and something was.
type Verdict = Result<bool, Box<dyn Error>>;

/// What `verify` looks at.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// The ledger, where `dir` is no run but a checkpoint directory.
    pub ledger: Option<PathBuf>,
    /// The version that the stored bytes are compared with: the exported one if none is given.
    pub version: Option<PolicyVersion>,
    /// Whether the version of every saved checkpoint is made again.
    pub checkpoints: bool,
}

/// Checks a run, or a checkpoint directory together with a ledger.
///
/// # Errors
/// If something cannot be read, or there is no ledger.
pub fn verify_left(dir: &Path, options: &VerifyOptions, out: &mut dyn Write) -> Verdict {
    if let Some(ledger) = &options.ledger {
        return told(&verify(dir, ledger, options.version)?, out);
    }
    if !is_run(dir) {
        return Err(format!("{}: no ledger.jsonl here; name the ledger with --ledger FILE", dir.display()).into());
    }
    let run = LeftRun::open(dir)?;
    let mut is_equal = told_audit(&run, &run.audit()?, out)?;
    let policy = run.policy();
    if let Some(policy) = &policy {
        is_equal &= told(&verify_directory(policy, &run.ledger(), options.version)?, out)?;
    }
    let looked_at = if options.checkpoints { run.checkpoints()? } else { Vec::new() };
    if options.checkpoints && looked_at.is_empty() {
        writeln!(out, "{}: no checkpoint here, so none was compared", dir.join("checkpoints").display())?;
        is_equal = false;
    }
    // A run that was stopped has no policy/ yet: the newest version whose bytes can be made again stands for it.
    let stands_in = if policy.is_none() { stand_in(&run, options.version)? } else { None };
    let more = stands_in.filter(|held| !looked_at.contains(held));
    if policy.is_none() && looked_at.is_empty() && more.is_none() {
        writeln!(out, "{}: NOTHING COMPARED: no bytes of a version are here", dir.display())?;
        is_equal = false;
    }
    for held in looked_at.iter().chain(&more) {
        let findings = run.verify(held)?;
        findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))?;
        let verdict = if findings.is_empty() { "equal" } else { "DIFFERENT" };
        writeln!(out, "version {}, {}: {verdict}", held.version, held.place)?;
        is_equal &= findings.is_empty();
    }
    Ok(is_equal)
}

/// The newest version whose bytes are there, or the one that is asked for.
fn stand_in(run: &LeftRun, version: Option<PolicyVersion>) -> Result<Option<HeldVersion>, Box<dyn Error>> {
    let is_asked = |held: &HeldVersion| version.is_none_or(|version| version == held.version);
    Ok(run.held()?.into_iter().rev().find(is_asked))
}

fn told_audit(run: &LeftRun, audit: &RunAudit, out: &mut dyn Write) -> Verdict {
    audit.findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))?;
    if let Some(why) = run.unknown_map()? {
        writeln!(out, "formats were not compared with the run's precision map, which is not known here: {why}")?;
    }
    let verdict = if audit.findings.is_empty() { "equal" } else { "DIFFERENT" };
    let (ledger, versions, events) = (run.ledger(), audit.ledger.versions.len(), audit.ledger.events);
    writeln!(
        out,
        "{}: {verdict} ({versions} versions, {events} tensors, {} steps of metrics, {} checkpoints; {} policy digests compared)",
        ledger.display(),
        audit.steps,
        audit.checkpoints,
        audit.compared_policies
    )?;
    Ok(audit.findings.is_empty())
}

fn told(found: &Verification, out: &mut dyn Write) -> Verdict {
    found.findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))?;
    if let Some(version) = found.equal_version {
        writeln!(out, "every tensor is equal to version {version}")?;
    }
    if found.converted_tensors > 0 {
        let count = found.converted_tensors;
        writeln!(out, "{count} tensors were dequantized for the export: only their files were compared")?;
    }
    let verdict = match (found.is_equal(), found.findings.is_empty()) {
        (true, _) => "equal",
        (false, true) => "NOTHING COMPARED",
        (false, false) => "DIFFERENT",
    };
    let (dir, version, tensors) = (found.dir.display(), found.version, found.compared_tensors);
    let files = found.compared_files.unwrap_or_default();
    writeln!(out, "version {version}, {dir}: {verdict} ({tensors} tensors, {files} files)")?;
    Ok(found.is_equal())
}

/// What one argument of `diff` is.
enum Subject {
    Run(Box<LeftRun>),
    Ledger(PathBuf),
    Directory(PathBuf),
}

impl Subject {
    fn of(path: &Path) -> Result<Self, Box<dyn Error>> {
        if is_run(path) {
            Ok(Subject::Run(Box::new(LeftRun::open(path)?)))
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

/// Compares two runs, two ledger files or two checkpoint directories up to their first difference.
///
/// # Errors
/// If something cannot be read, or one is a ledger and the other a checkpoint directory.
pub fn diff(a: &Path, b: &Path, out: &mut dyn Write) -> Verdict {
    let subjects = (Subject::of(a)?, Subject::of(b)?);
    if let (Subject::Run(a), Subject::Run(b)) = &subjects {
        return told_runs(&diff_runs(a, b)?, out);
    }
    if let (Some(a), Some(b)) = (subjects.0.ledger(), subjects.1.ledger()) {
        return told_ledgers(&diff_ledgers(&a, &b)?, out);
    }
    match (subjects.0.directory(), subjects.1.directory()) {
        (Some(a), Some(b)) => told_directories(&diff_directories(&a, &b)?, out),
        _ => {
            Err("a ledger cannot be compared with a checkpoint directory; `verify DIR --ledger FILE` does that".into())
        }
    }
}

fn told_ledgers(diff: &LedgerDiff, out: &mut dyn Write) -> Verdict {
    if let Some([a, b]) = &diff.quantizers {
        writeln!(out, "equal bytes by different quantizers: {a} in A, {b} in B")?;
    }
    let (versions, tensors, exports) = (diff.equal_versions, diff.equal_tensors, diff.equal_exports);
    writeln!(out, "equal: {versions} versions, {tensors} tensors, {exports} exports")?;
    if let Some(parting) = &diff.parting {
        writeln!(out, "first difference: {parting}")?;
    }
    Ok(diff.parting.is_none())
}

fn told_runs(diff: &RunDiff, out: &mut dyn Write) -> Verdict {
    told_ledgers(&diff.ledgers, out)?;
    match &diff.policies {
        Some(PolicyDiff::Both(policies)) => drop(told_directories(policies, out)?),
        Some(PolicyDiff::OnlyIn(side)) => writeln!(out, "only {side} has a policy/")?,
        None => {}
    }
    if let Some(error) = &diff.unread {
        writeln!(out, "the bytes behind it cannot be shown: {error}")?;
        return Ok(diff.is_equal());
    }
    let Some((parting, _)) =
        diff.ledgers.parting.as_ref().and_then(|parting| Some((parting, parting.tensor.as_ref()?)))
    else {
        return Ok(diff.is_equal());
    };
    for (side, is_kept) in [Side::A, Side::B].into_iter().zip(diff.is_kept) {
        if !is_kept {
            writeln!(out, "the bytes of version {} are not kept in {side}", parting.version)?;
        }
    }
    let Some(bytes) = &diff.bytes else {
        writeln!(out, "there is no later version either that both runs hold the bytes of")?;
        return Ok(diff.is_equal());
    };
    writeln!(out, "bytes of version {}, which both hold", bytes.version)?;
    for ((side, place), unrecorded) in [Side::A, Side::B].into_iter().zip(&bytes.places).zip(&bytes.unrecorded) {
        writeln!(out, "{side}: {place}")?;
        if let Some(first) = unrecorded.first() {
            let count = unrecorded.len();
            writeln!(
                out,
                "{side}: {count} tensors are not what its ledger recorded, first `{first}`: its quantizer did not follow the rule"
            )?;
        }
    }
    match &bytes.first {
        Some((tensor, difference)) => writeln!(out, "`{tensor}`: {difference}")?,
        None => writeln!(out, "all of them are equal")?,
    }
    Ok(diff.is_equal())
}

fn told_directories(diff: &DirectoryDiff, out: &mut dyn Write) -> Verdict {
    for (key, [a, b]) in &diff.config {
        writeln!(out, "config.json, `{key}`: {a} in A, {b} in B")?;
    }
    match &diff.first {
        Some((tensor, Ok(difference))) => writeln!(out, "first difference: `{tensor}`: {difference}")?,
        Some((tensor, Err(side))) => writeln!(out, "first difference: `{tensor}`: only {side} has the tensor")?,
        None => {}
    }
    diff.files.iter().try_for_each(|file| writeln!(out, "{file}"))?;
    for (side, error) in [Side::A, Side::B].into_iter().zip(&diff.unopened) {
        if let Some(error) = error {
            writeln!(out, "{side} cannot be opened: {error}")?;
        }
    }
    let (equal, differing) = (diff.equal_tensors, diff.differing_tensors);
    writeln!(
        out,
        "{equal} tensors are equal, {differing} differ; {} files are equal, {} differ",
        diff.equal_files,
        diff.files.len()
    )?;
    Ok(diff.is_equal())
}
