//! [`Scratch`]: a directory that is filled anew for every input.

use std::fs;
use std::path::{Path, PathBuf};

/// A directory of this process in the system's temporary directory.
///
/// It stays behind when the process ends; `ci/fuzz` gives a temporary directory of its own and deletes that.
pub struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// The directory of one target.
    ///
    /// # Panics
    /// When it cannot be made: the target could not test anything.
    #[must_use]
    pub fn new(target: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("miles-fuzz-{target}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Scratch { dir }
    }

    /// The directory, holding exactly `files`; names may have folders in them.
    ///
    /// # Panics
    /// When a file cannot be written.
    pub fn fill<'f>(&self, files: impl IntoIterator<Item = &'f (&'static str, &'f [u8])>) -> &Path {
        empty(&self.dir);
        for (name, content) in files {
            let path = self.dir.join(name);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).unwrap();
            }
            fs::write(&path, content).unwrap();
        }
        &self.dir
    }
}

fn empty(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
}
