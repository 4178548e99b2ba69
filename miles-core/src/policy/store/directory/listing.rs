//! Names in the directory: versions, and what interrupted work has left.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::super::error::io_error;
use super::super::{Files, StoreError};
use crate::policy::PolicyVersion;

/// A version being written.
pub(super) const STAGED: &str = ".staged-";
/// A version being removed.
pub(super) const REMOVED: &str = ".removed-";
const VERSION: &str = "version-";

pub(super) fn folder_name(version: PolicyVersion) -> String {
    format!("{VERSION}{:010}", version.0)
}

/// The version of a folder's name, if it is one that [`folder_name`] gives.
fn version_of(name: &str) -> Option<PolicyVersion> {
    let version = PolicyVersion(name.strip_prefix(VERSION)?.parse().ok()?);
    (folder_name(version) == name).then_some(version)
}

/// The versions in a directory, in growing order.
pub(super) fn versions(dir: &Path) -> Result<Vec<PolicyVersion>, StoreError> {
    let mut versions: Vec<PolicyVersion> = names(dir)?.iter().filter_map(|name| version_of(name)).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// Removes what nobody can still use: versions on their way out, and staged ones that are not newer than the newest
/// version. A staged one that is newer may be another process's work in progress; it goes when that version is there.
pub(super) fn remove_leftovers(files: &dyn Files, dir: &Path, newest: Option<PolicyVersion>) -> Result<(), StoreError> {
    for name in names(dir)? {
        let overtaken = |staged: &str| staged_version(staged).is_some_and(|version| Some(version) <= newest);
        if name.starts_with(REMOVED) || name.strip_prefix(STAGED).is_some_and(overtaken) {
            let leftover = dir.join(name);
            files.remove_dir(&leftover).map_err(io_error(&leftover))?;
        }
    }
    Ok(())
}

/// `version-0000000012-<process>-..` -> 12
fn staged_version(rest: &str) -> Option<PolicyVersion> {
    rest.strip_prefix(VERSION)?.split('-').next()?.parse().ok().map(PolicyVersion)
}

/// The names in a directory, as far as they are text; the others are none of the store's.
fn names(dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_error(dir))? {
        match entry {
            Ok(entry) => names.extend(entry.file_name().into_string().ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(dir)(error)),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_by_version_and_nothing_else_is_one() {
        for version in [0, 12, 9_999_999_999, u64::MAX] {
            assert_eq!(version_of(&folder_name(PolicyVersion(version))), Some(PolicyVersion(version)));
        }
        for name in ["version-12", "version-+000000012", "version-00000000012", ".staged-version-0000000012-1", "x"] {
            assert_eq!(version_of(name), None, "{name}");
        }
        assert_eq!(staged_version("version-0000000012-77-3"), Some(PolicyVersion(12)));
    }
}
