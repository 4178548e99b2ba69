//! [`Retention`]: which versions a store may drop.

use std::collections::BTreeMap;

use super::StoreError;
use crate::policy::PolicyVersion;

/// The newest versions are kept, and those that are pinned, however old.
///
/// Pins are counted: a version pinned twice has to be unpinned twice. They live as long as the store value does.
#[derive(Clone, Debug)]
pub struct Retention {
    keep_last: usize,
    pins: BTreeMap<PolicyVersion, usize>,
}

impl Retention {
    /// Keeps the newest `keep_last` versions (at least one).
    #[must_use]
    pub fn new(keep_last: usize) -> Self {
        Retention { keep_last: keep_last.max(1), pins: BTreeMap::new() }
    }

    /// Keeps a version until it is unpinned.
    pub fn pin(&mut self, version: PolicyVersion) {
        *self.pins.entry(version).or_default() += 1;
    }

    /// Takes one pin off.
    ///
    /// # Errors
    /// [`StoreError::NotPinned`].
    pub fn unpin(&mut self, version: PolicyVersion) -> Result<(), StoreError> {
        let pins = self.pins.get_mut(&version).ok_or(StoreError::NotPinned { version })?;
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&version);
        }
        Ok(())
    }

    /// Of the versions held, in growing order, those that may go.
    #[must_use]
    pub fn overdue(&self, held: &[PolicyVersion]) -> Vec<PolicyVersion> {
        let old = &held[..held.len().saturating_sub(self.keep_last)];
        old.iter().copied().filter(|version| !self.pins.contains_key(version)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(numbers: &[u64]) -> Vec<PolicyVersion> {
        numbers.iter().copied().map(PolicyVersion).collect()
    }

    #[test]
    fn what_is_neither_new_nor_pinned_may_go() {
        let mut retention = Retention::new(2);
        let held = versions(&[1, 2, 5, 9]);
        assert_eq!(retention.overdue(&held), versions(&[1, 2]));
        assert_eq!(retention.overdue(&held[..2]), []);
        retention.pin(PolicyVersion(1));
        retention.pin(PolicyVersion(9));
        assert_eq!(retention.overdue(&held), versions(&[2]));
        assert_eq!(Retention::new(0).overdue(&held), versions(&[1, 2, 5]));
    }

    #[test]
    fn pins_are_counted() {
        let (mut retention, held) = (Retention::new(1), versions(&[1, 2]));
        retention.pin(PolicyVersion(1));
        retention.pin(PolicyVersion(1));
        retention.unpin(PolicyVersion(1)).unwrap();
        assert_eq!(retention.overdue(&held), []);
        retention.unpin(PolicyVersion(1)).unwrap();
        assert_eq!(retention.overdue(&held), versions(&[1]));
        let error = retention.unpin(PolicyVersion(1));
        assert!(matches!(error, Err(StoreError::NotPinned { version: PolicyVersion(1) })));
    }
}
