//! What can be wrong with the description of a model.

use std::path::PathBuf;

/// Why a `config.json` (or `generation_config.json`) does not describe a model that the library knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A file is larger than such a file can reasonably be.
    #[error("{}: {bytes} bytes, more than the {limit_bytes} that are read", path.display())]
    TooLarge {
        /// File.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Largest size that is read.
        limit_bytes: u64,
    },
    /// A file is not JSON, or gives a key twice.
    #[error("{}: cannot be read as JSON: {source}", path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// Cause, with line and column; a key that is given twice by its name.
        source: serde_json::Error,
    },
    /// A key that has no default is absent.
    #[error("{}: `{key}` is missing", path.display())]
    MissingKey {
        /// File.
        path: PathBuf,
        /// Key, with the objects it is nested in.
        key: String,
    },
    /// A value has the wrong type or is out of range.
    #[error("{}: `{key}` is {found}, expected {expected}", path.display())]
    WrongValue {
        /// File.
        path: PathBuf,
        /// Key, with the objects it is nested in.
        key: String,
        /// What is accepted.
        expected: String,
        /// The value as JSON, shortened.
        found: String,
    },
    /// A model family that is not described here.
    #[error(
        "{}: `architectures` names `{found}`, which is not a known model family{} (known: {})",
        path.display(), suggestion(nearest), known.join(", ")
    )]
    UnknownArchitecture {
        /// File.
        path: PathBuf,
        /// Name found.
        found: String,
        /// Closest known name.
        nearest: Option<String>,
        /// Every known name.
        known: Vec<&'static str>,
    },
    /// A feature of a known family that the library does not compute.
    #[error("{}: `{key}` is {value}, which is not supported (supported: {supported})", path.display())]
    Unsupported {
        /// File.
        path: PathBuf,
        /// Key, with the objects it is nested in.
        key: String,
        /// The value as JSON, shortened.
        value: String,
        /// What would be accepted.
        supported: &'static str,
    },
    /// Two keys that cannot both hold.
    #[error("{}: `{key}`: {why}", path.display())]
    Contradiction {
        /// File.
        path: PathBuf,
        /// Key, with the objects it is nested in.
        key: String,
        /// What it contradicts.
        why: String,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
