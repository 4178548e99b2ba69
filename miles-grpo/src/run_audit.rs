//! What the logs of a run say, checked against one another and against its checkpoints.
//!
//! ```text
//! ledger.jsonl  --audit_ledger--> policy digest of every version --+-- metrics.jsonl: version and digest of every step
//!                                                                  +-- loop.json: live policy, reference
//! first bytes of both logs --digest------------------------------------ loop.json: as they were when it was saved
//! ```
//!
//! A value that follows from others is computed again and its line named. What does not (a loss, a quantized tensor's
//! source) is covered by the digests that each checkpoint keeps of both logs.

mod finding;

use std::path::{Path, PathBuf};

use miles_core::digest::Digest;
use miles_core::plugin::StepRecord;
use miles_core::policy::{KnownPolicy, LedgerAudit, LogLine, PolicyStamp, PolicyVersion, audit_ledger};
use serde_json::Value;

use crate::checkpoint::{LoopState, ResumeError, SavedLoop};
use crate::output::{OutputDir, Prefix, length};
use crate::track::read_metrics_prefix;
use crate::{Error, Result};

pub use finding::{RunFinding, Witness};

/// What was compared, and everything that does not fit.
#[derive(Debug)]
pub struct RunAudit {
    /// The ledger; its findings are among those below.
    pub ledger: LedgerAudit,
    /// Steps in the metrics.
    pub steps: usize,
    /// Policy digests that were computed from the ledger and stand elsewhere too.
    pub compared_policies: usize,
    /// Checkpoints whose record of the logs was compared with them.
    pub checkpoints: usize,
    /// Everything that does not fit.
    pub findings: Vec<RunFinding>,
}

/// Refuses a checkpoint whose logs, up to where it was saved, are not those of its run. Reads only.
pub(crate) fn check_saved(out: &OutputDir, saved: &SavedLoop, known: &KnownPolicy) -> Result<()> {
    let state = &saved.state;
    let (ledger, metrics) = (out.ledger(), out.metrics());
    let mut audit = RunAudit::of(&ledger, &metrics, Some(state), known)?;
    audit.compare_checkpoint(&ledger, &metrics, saved, known)?;
    let newest = audit.ledger.versions.last().map(|version| version.version);
    if let Some(newest) = newest.filter(|newest| *newest != state.policy.version) {
        let (path, saved) = (saved.loop_file(), state.policy.version);
        audit.findings.push(RunFinding::Newest { path, saved, newest });
    }
    if audit.steps as u64 != state.steps_done {
        let (path, saved, found) = (saved.loop_file(), state.steps_done, audit.steps as u64);
        audit.findings.push(RunFinding::Steps { path, saved, metrics, found });
    }
    match audit.findings.is_empty() {
        true => Ok(()),
        false => Err(Error::Resume(ResumeError::Logs { findings: audit.findings })),
    }
}

impl RunAudit {
    /// Audits both logs, up to where `until` was saved; without it, all of them. Metrics that are not there are a finding.
    pub(crate) fn of(ledger: &Path, metrics: &Path, until: Option<&LoopState>, known: &KnownPolicy) -> Result<Self> {
        let until = match until {
            Some(state) => [whole_lines(ledger, state.ledger_bytes)?, whole_lines(metrics, state.metrics_bytes)?],
            None => [u64::MAX; 2],
        };
        let mut audited = audit_ledger(ledger, until[0], known)?;
        let findings = std::mem::take(&mut audited.findings).into_iter().map(RunFinding::Ledger).collect();
        let mut audit = RunAudit { ledger: audited, steps: 0, compared_policies: 0, checkpoints: 0, findings };
        audit.check_versions();
        if !metrics.is_file() {
            audit.findings.push(RunFinding::MissingFile { path: metrics.to_owned() });
            return Ok(audit);
        }
        let records = read_metrics_prefix(metrics, until[1])?;
        audit.steps = records.len();
        audit.compare_metrics(ledger, metrics, &records);
        Ok(audit)
    }

    /// What a run's own ledger has to be beyond what every ledger has to be.
    fn check_versions(&mut self) {
        let first = self.ledger.versions.first().filter(|first| first.version != PolicyVersion(0));
        self.findings
            .extend(first.map(|first| RunFinding::First { at: first.extent[0].clone(), version: first.version }));
        let repeats = self.ledger.versions.iter().flat_map(|version| &version.repeats);
        self.findings.extend(repeats.map(|at| RunFinding::Repeated { at: at.clone() }));
        let newest = self.ledger.versions.last().map(|newest| newest.version);
        for version in &self.ledger.versions {
            if let (Some((_, at)), Some(newest)) = (&version.export, newest.filter(|newest| *newest != version.version))
            {
                let (at, version) = (at.clone(), version.version);
                self.findings.push(RunFinding::Outdated { at, version, newest });
            }
        }
    }

    /// Every step says which version it made; the versions up to it were made in that step.
    fn compare_metrics(&mut self, ledger: &Path, metrics: &Path, records: &[StepRecord]) {
        let mut before = PolicyVersion(0);
        let newest = self.ledger.versions.last().map_or(before, |newest| newest.version);
        for (index, record) in records.iter().enumerate() {
            let (at, step) = (LogLine { path: metrics.to_owned(), line: index + 1 }, index as u64);
            if record.step != step {
                let recorded = record.step;
                self.findings.push(RunFinding::Step { at: at.clone(), recorded, expected: step });
            }
            let Some(stamp) = stamp(record) else {
                self.findings.push(RunFinding::NoStamp { at });
                continue;
            };
            self.compare_stamp(ledger, stamp, Witness::Line(at.clone()));
            self.check_steps([before, stamp.version], step, &at);
            before = stamp.version;
        }
        // A run that died has made versions of a step that it did not finish; one that ended has not.
        let at = LogLine { path: metrics.to_owned(), line: records.len() };
        self.check_steps([before, newest], records.len() as u64, &at);
        if let Some((version, (_, line))) = self.ledger.exported().and_then(|v| Some((v.version, v.export.clone()?)))
            && version > before
        {
            self.findings.push(RunFinding::Unmeasured { at: line, version, metrics: metrics.to_owned() });
        }
    }

    /// Whether the versions after one up to another were made in the step that a line of the metrics says.
    fn check_steps(&mut self, [after, last]: [PolicyVersion; 2], step: u64, at: &LogLine) {
        let versions = self.ledger.versions.iter();
        let made = versions.filter(|made| made.version > after && made.version <= last);
        let wrong = made.filter(|made| made.step != step).map(|made| RunFinding::VersionStep {
            within: made.extent.clone(),
            version: made.version,
            recorded: made.step,
            expected: step,
            at: at.clone(),
        });
        self.findings.extend(wrong.collect::<Vec<_>>());
    }

    /// Compares a stamp that stands elsewhere with the ledger.
    fn compare_stamp(&mut self, ledger: &Path, stamp: PolicyStamp, witness: Witness) {
        let version = stamp.version;
        let Some(audited) = self.ledger.version(version) else {
            self.findings.push(RunFinding::NoVersion { witness, version, ledger: ledger.to_owned() });
            return;
        };
        let Some(found) = audited.policy_digest else { return };
        self.compared_policies += 1;
        if found != stamp.digest {
            let within = audited.extent.clone();
            self.findings.push(RunFinding::Policy { within, version, found, witness, expected: stamp.digest });
        }
    }

    /// Compares the logs with what a checkpoint says of them.
    pub(crate) fn compare_checkpoint(
        &mut self,
        ledger: &Path,
        metrics: &Path,
        saved: &SavedLoop,
        known: &KnownPolicy,
    ) -> Result<()> {
        let state = &saved.state;
        self.checkpoints += 1;
        for stamp in [state.reference, state.policy] {
            self.compare_stamp(ledger, stamp, Witness::File(saved.loop_file()));
        }
        if let Some(expected) = known.precision_map.filter(|map| *map != state.precision_map) {
            let (path, saved) = (saved.loop_file(), state.precision_map);
            self.findings.push(RunFinding::PrecisionMap { path, saved, expected });
        }
        let logs =
            [(ledger, state.ledger_bytes, state.ledger_digest), (metrics, state.metrics_bytes, state.metrics_digest)];
        for (path, bytes, expected) in logs {
            self.findings.extend(changed(path, bytes, expected, saved)?);
        }
        Ok(())
    }
}

/// What is wrong with the first bytes of a log.
fn changed(path: &Path, bytes: u64, expected: Digest, saved: &SavedLoop) -> Result<Option<RunFinding>> {
    let (log, saved): (PathBuf, PathBuf) = (path.to_owned(), saved.loop_file());
    let actual_bytes = length(path)?;
    if actual_bytes < bytes {
        return Ok(Some(RunFinding::Shortened { path: log, saved, expected_bytes: bytes, actual_bytes }));
    }
    if bytes == 0 {
        return Ok(None);
    }
    let Prefix { digest: found, lines, .. } = Prefix::of(path, bytes)?;
    Ok((found != expected).then_some(RunFinding::Changed { path: log, lines, saved, bytes, expected, found }))
}

/// How much of a log is read up to where a checkpoint was saved: whole lines. A line that does not end there, in a log
/// that goes on, is as long as it is because a line before it has another length; a log that ends there is torn.
fn whole_lines(path: &Path, bytes: u64) -> Result<u64> {
    if length(path)? <= bytes {
        return Ok(bytes);
    }
    Ok(Prefix::of(path, bytes)?.whole_bytes)
}

/// The policy that a step's record says it published.
fn stamp(record: &StepRecord) -> Option<PolicyStamp> {
    let version = PolicyVersion(record.values.get("policy_version").and_then(Value::as_u64)?);
    let digest = record.values.get("policy_digest").and_then(Value::as_str)?.parse().ok()?;
    Some(PolicyStamp { version, digest })
}
