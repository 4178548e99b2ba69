//! What a new policy version does to the completions that are running.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What becomes of a request that runs while a newer version is loaded. A request never goes back: an older version, and
/// the live one loaded again, are for requests that begin later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublicationMode {
    /// A request is of one version, the one that was live when it began, its completions that have not started
    /// included. Both versions stay in memory until it ends.
    #[default]
    Finish,
    /// Running completions go on with the new version between two tokens; each token says which version it was drawn
    /// from. Keys and values of prompt and completion are computed again with the new version, so a token's logprob is
    /// that of its version over the whole sequence. A token at least is drawn between two swaps: versions that come
    /// faster than keys can be computed again do not stop the request, it passes some of them by.
    Continue,
    /// A group is of one version: each group with a completion that is not finished begins again on the new version,
    /// from its prompt and with the same random numbers, and its finished completions are dropped too, because an
    /// advantage compares completions of one policy. Whole groups stay. A group that takes longer than the time
    /// between two versions never ends.
    AbortAndResubmit,
}

impl PublicationMode {
    /// Every mode.
    pub const ALL: [PublicationMode; 3] =
        [PublicationMode::Finish, PublicationMode::Continue, PublicationMode::AbortAndResubmit];

    /// Name in configs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PublicationMode::Finish => "finish",
            PublicationMode::Continue => "continue",
            PublicationMode::AbortAndResubmit => "abort-and-resubmit",
        }
    }
}

impl fmt::Display for PublicationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_configs() {
        for mode in PublicationMode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(serde_json::from_value::<PublicationMode>(mode.name().into()).unwrap(), mode);
        }
        assert!(serde_json::from_str::<PublicationMode>("\"Finish\"").is_err());
    }
}
