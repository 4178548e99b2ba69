//! [`Report`]: what a suite found, case by case.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a suite found about one subject.
///
/// As JSON ([`to_json`](Self::to_json)):
///
/// ```text
/// {"subject": "cpu-ref/0.1.0", "cases": [{"name": "golden_bytes/mxfp8", "outcome": "passed"},
///                                        {"name": "golden_bytes/nvfp4", "outcome": "failed", "why": "..."}]}
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What was tested.
    pub subject: String,
    /// Every case, in the order in which they ran.
    pub cases: Vec<Case>,
}

/// One case of a suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// `group` or `group/detail`, for example `golden_bytes/nvfp4`.
    pub name: String,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// The subject did what the contract says.
    Passed,
    /// It did not.
    Failed {
        /// The first difference.
        why: String,
    },
    /// The subject declares that it cannot do this, and refuses it as declared.
    Unsupported {
        /// The subject's reason.
        why: String,
    },
}

/// Why a report is not a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// No case passed, so nothing is known about the subject.
    #[error("{subject}: nothing ran ({} cases, none of them passed)", report.cases.len())]
    NothingRan {
        /// What was tested.
        subject: String,
        /// The whole report.
        report: Report,
    },
    /// Some case failed.
    #[error("{subject}: {} of {} cases failed\n{report}", failed.len(), report.cases.len())]
    Failed {
        /// What was tested.
        subject: String,
        /// Names of the failed cases.
        failed: Vec<String>,
        /// The whole report.
        report: Report,
    },
}

impl Report {
    /// A report without cases.
    #[must_use]
    pub fn new(subject: impl Into<String>) -> Self {
        Report { subject: subject.into(), cases: Vec::new() }
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    /// The failed cases.
    pub fn failed(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| matches!(case.outcome, Outcome::Failed { .. }))
    }

    /// Number of passed cases.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| case.outcome == Outcome::Passed).count()
    }

    /// The outcome of the case of that name.
    #[must_use]
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.cases.iter().find(|case| case.name == name).map(|case| &case.outcome)
    }

    /// Passes a report of one group: as [`require`](Self::require), but a group may hold nothing except confirmed
    /// refusals. The macro form asks for this in each of its tests; every suite has a group in which something has to
    /// pass.
    ///
    /// # Errors
    /// [`ConformanceError::Failed`] when a case failed; [`ConformanceError::NothingRan`] when there is no case.
    pub fn require_group(&self) -> Result<(), ConformanceError> {
        match self.require() {
            Err(ConformanceError::NothingRan { .. }) if !self.cases.is_empty() => Ok(()),
            other => other,
        }
    }

    /// Passes only a report in which something passed and nothing failed.
    ///
    /// # Errors
    /// [`ConformanceError::Failed`] when a case failed; [`ConformanceError::NothingRan`] when no case passed.
    pub fn require(&self) -> Result<(), ConformanceError> {
        let (subject, report) = (self.subject.clone(), self.clone());
        let failed: Vec<String> = self.failed().map(|case| case.name.clone()).collect();
        if !failed.is_empty() {
            return Err(ConformanceError::Failed { subject, failed, report });
        }
        if self.passed() == 0 {
            return Err(ConformanceError::NothingRan { subject, report });
        }
        Ok(())
    }
}

impl Case {
    /// The part of the name before the first `/`.
    #[must_use]
    pub fn group(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// A table: the subject, one line per case, and the counts.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.cases.iter().map(|case| case.name.len()).max().unwrap_or_default();
        writeln!(f, "{}", self.subject)?;
        for Case { name, outcome } in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "  {name:width$}  passed")?,
                Outcome::Failed { why } => writeln!(f, "  {name:width$}  FAILED       {why}")?,
                Outcome::Unsupported { why } => writeln!(f, "  {name:width$}  unsupported  {why}")?,
            }
        }
        let (passed, failed) = (self.passed(), self.failed().count());
        let unsupported = self.cases.len() - passed - failed;
        write!(f, "{passed} passed, {failed} failed, {unsupported} unsupported")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn report(outcomes: &[Outcome]) -> Report {
        let case = |(index, outcome): (usize, &Outcome)| Case { name: format!("g/{index}"), outcome: outcome.clone() };
        Report { subject: "it".to_owned(), cases: outcomes.iter().enumerate().map(case).collect() }
    }

    #[test]
    fn only_a_report_with_passes_and_without_failures_is_a_pass() {
        let failed = Outcome::Failed { why: "byte 3".to_owned() };
        let unsupported = Outcome::Unsupported { why: "no device".to_owned() };
        report(&[Outcome::Passed, unsupported.clone()]).require().unwrap();
        for nothing in [report(&[]), report(std::slice::from_ref(&unsupported))] {
            assert!(matches!(nothing.require(), Err(ConformanceError::NothingRan { .. })));
        }
        report(std::slice::from_ref(&unsupported)).require_group().unwrap();
        assert!(matches!(report(&[]).require_group(), Err(ConformanceError::NothingRan { .. })));
        match report(&[Outcome::Passed, failed.clone()]).require() {
            Err(ConformanceError::Failed { failed, .. }) => assert_eq!(failed, ["g/1"]),
            other => panic!("{other:?}"),
        }
        assert!(matches!(report(&[failed]).require(), Err(ConformanceError::Failed { .. })));
    }

    #[test]
    fn a_report_survives_json_and_prints_one_line_per_case() {
        let failed = Outcome::Failed { why: "byte 3".to_owned() };
        let found = report(&[Outcome::Passed, failed, Outcome::Unsupported { why: "no device".to_owned() }]);
        let json = found.to_json();
        assert_eq!(json["cases"][1], serde_json::json!({"name": "g/1", "outcome": "failed", "why": "byte 3"}));
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), found);
        let text = found.to_string();
        assert_eq!(text.lines().count(), 5);
        assert!(text.contains("g/1  FAILED       byte 3") && text.ends_with("1 passed, 1 failed, 1 unsupported"));
    }
}
