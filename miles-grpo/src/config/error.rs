//! Everything that is wrong with a config, as one value.

use std::borrow::Cow;
use std::fmt;

use miles_core::registry::RegistryError;

/// Every fault of one config, in the order of its keys.
#[derive(Debug)]
pub struct ConfigErrors {
    /// The faults; at least one.
    pub issues: Vec<ConfigIssue>,
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.issues.len() == 1 { "" } else { "s" };
        write!(f, "the config has {} error{plural}", self.issues.len())?;
        self.issues.iter().try_for_each(|issue| write!(f, "\n  {issue}"))
    }
}

/// One fault.
#[derive(Debug)]
pub struct ConfigIssue {
    /// Dotted key.
    pub key: String,
    /// Value as written or in effect; empty where there is none.
    pub value: String,
    /// What is wrong with it.
    pub why: Why,
}

impl fmt::Display for ConfigIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = printable(&self.key);
        match self.value.is_empty() {
            true => write!(f, "{key}: {}", self.why),
            false => write!(f, "{key} = {}: {}", printable(&self.value), self.why),
        }
    }
}

/// The text as it stands, or quoted where it would break the line.
fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) { Cow::Owned(format!("{text:?}")) } else { Cow::Borrowed(text) }
}

/// What can be wrong with a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// The file could not be read.
    #[error("{0}")]
    Unreadable(std::io::Error),
    /// The text is not TOML.
    #[error("{0}")]
    NotToml(#[from] toml::de::Error),
    /// An override that is not `key=value`.
    #[error("an override is written key=value")]
    NotAnOverride,
    /// A key that does not exist.
    #[error("unknown key{}", nearest.as_ref().map(|key| format!(" (did you mean `{key}`?)")).unwrap_or_default())]
    UnknownKey {
        /// The nearest known key, if one is near.
        nearest: Option<String>,
    },
    /// A value of the wrong type.
    #[error("{0}")]
    WrongType(serde_json::Error),
    /// A key without default that was not given.
    #[error("is required")]
    Missing,
    /// A value outside its range.
    #[error("must be {range}")]
    OutOfRange {
        /// The range in words.
        range: String,
    },
    /// Counts that are too large together.
    #[error("with {with} these are {product} {what}, more than the limit of {limit}")]
    TooManyTogether {
        /// The other keys and their values.
        with: String,
        /// What the counts make together.
        what: &'static str,
        /// How many of it.
        product: u128,
        /// Most that are accepted.
        limit: u64,
    },
    /// An input that the run would replace.
    #[error("lies in {}, which the run replaces", output.display())]
    Replaced {
        /// File or directory that the run writes.
        output: std::path::PathBuf,
    },
    /// A config that a TOML file cannot hold.
    #[error("cannot be written as TOML: {0}")]
    NotWritable(#[from] toml::ser::Error),
    /// Two values that do not go together.
    #[error("contradicts {with}: {why}")]
    Contradiction {
        /// The other key and its value.
        with: String,
        /// Why they do not go together.
        why: &'static str,
    },
    /// A name that no linked crate registers, or options that it does not take.
    #[error("{0}")]
    Plugin(miles_core::Error),
    /// A precision recipe that does not exist, or a plan that cuts experts into nothing.
    #[error("{0}")]
    Recipe(#[from] miles_core::precision::PrecisionError),
    /// A model directory that cannot be used.
    #[error("{0}")]
    Model(#[from] miles_core::model::ModelError),
    /// A file that is not there.
    #[error("no such file")]
    NoSuchFile,
}

impl From<RegistryError> for Why {
    fn from(error: RegistryError) -> Self {
        Why::Plugin(error.into())
    }
}
