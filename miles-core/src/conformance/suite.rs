//! [`Suite`]: runs cases against one subject and writes the report.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Case, Outcome, Report};
use crate::Error;

/// Runs cases one after the other. Also for cases of your own, beside those of this crate:
///
/// ```
/// use miles_core::conformance::{Failure, Suite};
///
/// let mut suite = Suite::new("my format");
/// suite.case("sizes/half a byte per element", || Failure::unless(4 / 2 == 2, || "wrong size".to_owned()));
/// suite.case("sizes/panics are caught", || panic!("out of range"));
/// let report = suite.finish();
/// assert_eq!((report.passed(), report.failed().count()), (1, 1));
/// ```
pub struct Suite {
    report: Report,
    only: Option<String>,
}

/// How a case ends: without a word, or with the first thing that is wrong.
pub type Verdict = Result<(), Failure>;

/// The first thing that is wrong. Every error turns into one, so that a case can use `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl Suite {
    /// A suite that runs every case; `subject` names what is tested.
    #[must_use]
    pub fn new(subject: impl Into<String>) -> Self {
        Suite { report: Report::new(subject), only: None }
    }

    /// The same, limited to the cases of one group (what a name has before its first `/`), or to the one case of that name.
    #[must_use]
    pub fn only(self, group_or_case: impl Into<String>) -> Self {
        Suite { only: Some(group_or_case.into()), ..self }
    }

    /// Whether the case of this name runs.
    #[must_use]
    pub fn runs(&self, name: &str) -> bool {
        let of = |only: &str| only == name || Some(only) == name.split('/').next();
        self.only.as_deref().is_none_or(of)
    }

    /// Runs one case, named `group` or `group/detail`. A panic is a failure of this case and of no other.
    pub fn case(&mut self, name: impl Into<String>, check: impl FnOnce() -> Verdict) {
        self.record(name.into(), || match check() {
            Ok(()) => Outcome::Passed,
            Err(Failure(why)) => Outcome::Failed { why },
        });
    }

    /// Runs something that the subject declares it cannot do: it has to answer [`Error::Unsupported`].
    pub fn refusal<T>(&mut self, name: impl Into<String>, attempt: impl FnOnce() -> crate::Result<T>) {
        self.unsupported(name, || match attempt() {
            Err(Error::Unsupported { why, .. }) => Ok(why),
            Err(error) => Err(Failure::new(format!("declared unsupported, answers another error: {error}"))),
            Ok(_) => Err(Failure::new("declared unsupported, and does it all the same")),
        });
    }

    /// Records what the subject does not do, with the reason that `confirm` finds; or the failure, if it finds that
    /// the subject does not refuse as it should.
    pub fn unsupported(&mut self, name: impl Into<String>, confirm: impl FnOnce() -> Result<String, Failure>) {
        self.record(name.into(), || match confirm() {
            Ok(why) => Outcome::Unsupported { why },
            Err(Failure(why)) => Outcome::Failed { why },
        });
    }

    /// Runs a case of something that a subject need not do: it passes with `None`, and is recorded as unsupported with the
    /// reason that the subject gives.
    pub fn optional(&mut self, name: impl Into<String>, check: impl FnOnce() -> Result<Option<String>, Failure>) {
        self.record(name.into(), || match check() {
            Ok(None) => Outcome::Passed,
            Ok(Some(why)) => Outcome::Unsupported { why },
            Err(Failure(why)) => Outcome::Failed { why },
        });
    }

    /// The report of all cases that ran.
    #[must_use]
    pub fn finish(self) -> Report {
        self.report
    }

    fn record(&mut self, name: String, run: impl FnOnce() -> Outcome) {
        if !self.runs(&name) {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|payload| Outcome::Failed { why: format!("panicked: {}", message(&*payload)) });
        self.report.cases.push(Case { name, outcome });
    }
}

impl Failure {
    /// A failure in words.
    pub fn new(why: impl Into<String>) -> Self {
        Failure(why.into())
    }

    /// Fails with the words of `why` unless `holds`.
    ///
    /// # Errors
    /// Unless `holds`.
    pub fn unless(holds: bool, why: impl FnOnce() -> String) -> Verdict {
        if holds { Ok(()) } else { Err(Failure(why())) }
    }

    /// The same failure, with where it happened in front.
    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        Failure(format!("{place}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

// Failure itself is no error, so that this covers every error and `?` needs no conversion by hand.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("with a value that is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsupported() -> crate::Result<()> {
        Err(Error::Unsupported { operation: "x".to_owned(), backend: "y".to_owned(), why: "no device".to_owned() })
    }

    #[test]
    fn a_panic_fails_its_case_and_the_next_one_runs() {
        let mut suite = Suite::new("it");
        suite.case("a", || panic!("with {}", "text"));
        suite.case("b", || Ok(()));
        let report = suite.finish();
        assert_eq!(report.outcome("a"), Some(&Outcome::Failed { why: "panicked: with text".to_owned() }));
        assert_eq!(report.outcome("b"), Some(&Outcome::Passed));
    }

    #[test]
    fn a_refusal_has_to_be_the_typed_one_and_a_case_must_not_meet_it() {
        let mut suite = Suite::new("it");
        suite.refusal("declared", unsupported);
        suite.refusal("does it", || Ok(()));
        suite.refusal::<()>("panics", || panic!("no"));
        suite.case("supported", || Ok(unsupported()?));
        let report = suite.finish();
        assert_eq!(report.outcome("declared"), Some(&Outcome::Unsupported { why: "no device".to_owned() }));
        assert_eq!(report.failed().count(), 3);
    }

    #[test]
    fn one_group_or_one_case_runs_alone() {
        let names = |only: &str| -> Vec<String> {
            let mut suite = Suite::new("it").only(only);
            ["a/1", "ab/1", "a", "a/1/x", "a/2"].into_iter().for_each(|name| suite.case(name, || Ok(())));
            suite.finish().cases.into_iter().map(|case| case.name).collect()
        };
        assert_eq!(names("a"), ["a/1", "a", "a/1/x", "a/2"]);
        assert_eq!(names("a/1"), ["a/1"]);
        assert!(names("a/").is_empty());
    }
}
