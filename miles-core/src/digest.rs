//! [`Digest`]: the 32-byte BLAKE3 hash that names canonical bytes wherever they are handed on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A BLAKE3 hash. Displayed, parsed and serialized as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

/// Why a text is not a [`Digest`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// The text has the wrong number of characters.
    #[error("a digest has 64 hexadecimal digits, found {found} characters in {text:?}")]
    Length {
        /// The text as given.
        text: String,
        /// Its number of characters.
        found: usize,
    },
    /// A character is not a hexadecimal digit.
    #[error("a digest has hexadecimal digits only, found {found:?} at position {position} of {text:?}")]
    Character {
        /// The text as given.
        text: String,
        /// Position of the first foreign character.
        position: usize,
        /// That character.
        found: char,
    },
}

impl Digest {
    /// Hashes `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Hashes everything that a reader gives.
    ///
    /// # Errors
    /// If reading fails.
    pub fn of_reader(reader: &mut impl std::io::Read) -> std::io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(reader, &mut hasher)?;
        Ok(hasher.finalize().into())
    }

    /// Takes 32 bytes that are a digest already.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        let found = text.chars().count();
        if found != 64 {
            return Err(DigestError::Length { text: text.to_owned(), found });
        }
        for (position, character) in text.chars().enumerate() {
            let Some(digit) = character.to_digit(16) else {
                return Err(DigestError::Character { text: text.to_owned(), position, found: character });
            };
            bytes[position / 2] = bytes[position / 2] << 4 | digit as u8;
        }
        Ok(Self(bytes))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_through_text_and_json() {
        let digest = Digest::of(b"policy");
        assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, format!("\"{digest}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
    }

    #[test]
    fn hash_is_blake3() {
        assert_eq!(Digest::of(b"").to_string(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    }

    #[test]
    fn rejects_what_is_not_hex() {
        assert!(matches!("ab".parse::<Digest>(), Err(DigestError::Length { found: 2, .. })));
        let text = format!("{}g", "0".repeat(63));
        assert!(matches!(text.parse::<Digest>(), Err(DigestError::Character { position: 63, found: 'g', .. })));
        assert!(serde_json::from_str::<Digest>("\"xyz\"").is_err());
    }
}
