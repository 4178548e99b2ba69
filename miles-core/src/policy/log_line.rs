//! Where in a log something stands.

use std::fmt;
use std::path::PathBuf;

/// A line of a log file; displayed as `file:line`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLine {
    /// File.
    pub path: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}
