//! [`FormatId`]: the name of a format, as it stands in config files, ledgers and digests.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::FormatError;

/// The name of a format, for example `nvfp4`. Cheap to clone.
///
/// The name is part of a tensor's digest, so two formats whose bytes can differ need two names; a variant of a
/// format is named after it, as `fp8-block/power-of-two`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FormatId(Repr);

#[derive(Clone)]
enum Repr {
    Builtin(&'static str),
    Shared(Arc<str>),
}

impl FormatId {
    /// E2M1 codes, blocks of 16 with E4M3 scales, FP32 outer scales.
    #[must_use]
    pub const fn nvfp4() -> Self {
        Self::builtin("nvfp4")
    }

    /// E4M3 codes, blocks of 32 with E8M0 scales.
    #[must_use]
    pub const fn mxfp8() -> Self {
        Self::builtin("mxfp8")
    }

    /// E4M3 codes, 1x128 or 128x128 blocks with FP32 scales.
    #[must_use]
    pub const fn fp8_block() -> Self {
        Self::builtin("fp8-block")
    }

    /// The variant of `fp8-block` whose encode scales are rounded down to powers of two.
    #[must_use]
    pub const fn fp8_block_pow2() -> Self {
        Self::builtin("fp8-block/power-of-two")
    }

    /// The name of a built-in variant.
    pub(super) const fn builtin(name: &'static str) -> Self {
        Self(Repr::Builtin(name))
    }

    /// The name of a combination of built-in variants.
    pub(super) fn composed(name: &str) -> Self {
        Self(Repr::Shared(name.into()))
    }

    /// The name without its variants: `nvfp4` of `nvfp4/te-2.13`.
    #[must_use]
    pub fn family(&self) -> &str {
        let name = self.as_str();
        name.split_once('/').map_or(name, |(family, _)| family)
    }

    /// Names a format, built in or a user's own.
    ///
    /// # Errors
    /// [`FormatError::InvalidFormatId`] when `name` is empty, holds anything but `a-z 0-9 - _ . /`, or is `bf16`
    /// (a tensor kept in BF16 has no format).
    pub fn new(name: &str) -> Result<Self, FormatError> {
        match fault(name) {
            None => Ok(Self(Repr::Shared(name.into()))),
            Some(why) => Err(FormatError::InvalidFormatId { name: name.to_owned(), why }),
        }
    }

    /// Names a format of one's own in a constant: `const ID: FormatId = FormatId::from_static("mxfp6-e3m2");`
    ///
    /// # Panics
    /// When the name is none that [`new`](Self::new) takes; in a constant that is a compile error.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        assert!(fault(name).is_none(), "a format's name is made of a-z, 0-9, '-', '_', '.' and '/', and is not `bf16`");
        Self(Repr::Builtin(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Builtin(name) => name,
            Repr::Shared(name) => name,
        }
    }
}

impl PartialEq for FormatId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for FormatId {}

impl PartialOrd for FormatId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FormatId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for FormatId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for FormatId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for FormatId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FormatId({})", self.as_str())
    }
}

impl FromStr for FormatId {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl From<FormatId> for String {
    fn from(id: FormatId) -> Self {
        id.as_str().to_owned()
    }
}

impl TryFrom<String> for FormatId {
    type Error = FormatError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::new(&name)
    }
}

/// Why `name` cannot name a format.
const fn fault(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    if bytes.is_empty() {
        return Some("the name is empty");
    }
    let mut index = 0;
    while index < bytes.len() {
        if !matches!(bytes[index], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/') {
            return Some("only a-z, 0-9, '-', '_', '.' and '/' are allowed");
        }
        index += 1;
    }
    match bytes {
        b"bf16" => Some("a tensor kept in BF16 is not quantized and has no format"),
        _ => None,
    }
}

/// Names in a list for people.
pub(super) fn join(ids: &[FormatId]) -> String {
    ids.iter().map(FormatId::as_str).collect::<Vec<_>>().join(", ")
}
