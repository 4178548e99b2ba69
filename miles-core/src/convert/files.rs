//! [`OutputFiles`]: the files of weights under construction, written at known places by any number of threads.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::plan::ConvertPlan;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::error::io;
use crate::checkpoint::positional::{read_exact_at, write_all_at};

/// Every file of weights, open at its full length.
pub(super) struct OutputFiles {
    files: Vec<OutputFile>,
}

struct OutputFile {
    /// The path that errors name.
    shown: PathBuf,
    name: String,
    file: File,
    bytes: u64,
}

impl OutputFiles {
    /// Opens the files of a plan in `dir`, new ones and those that an earlier conversion left; `shown` is the directory
    /// that they will be in. What does not depend on weights is written at once.
    pub(super) fn open(dir: &Path, shown: &Path, plan: &ConvertPlan) -> Result<Self, CheckpointError> {
        let mut files = Vec::with_capacity(plan.directory.plan.shards.len());
        for shard in &plan.directory.plan.shards {
            let shown = shown.join(&shard.name);
            let open = || -> std::io::Result<File> {
                let file =
                    File::options().read(true).write(true).create(true).truncate(false).open(dir.join(&shard.name))?;
                file.set_len(shard.bytes())?;
                write_all_at(&file, &shard.header, 0)?;
                Ok(file)
            };
            let file = open().map_err(io(&shown))?;
            files.push(OutputFile { shown, name: shard.name.clone(), file, bytes: shard.bytes() });
        }
        let files = OutputFiles { files };
        for constant in &plan.constants {
            files.write(constant.shard, constant.offset, &constant.bytes)?;
        }
        Ok(files)
    }

    /// Name of a file.
    pub(super) fn name(&self, shard: usize) -> &str {
        &self.files[shard].name
    }

    /// Length of a file.
    pub(super) fn bytes(&self, shard: usize) -> u64 {
        self.files[shard].bytes
    }

    pub(super) fn write(&self, shard: usize, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let output = &self.files[shard];
        write_all_at(&output.file, bytes, offset).map_err(io(&output.shown))
    }

    pub(super) fn read(&self, shard: usize, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let output = &self.files[shard];
        read_exact_at(&output.file, into, offset).map_err(io(&output.shown))
    }

    /// Makes all files durable.
    pub(super) fn sync(&self) -> Result<(), CheckpointError> {
        self.files.iter().try_for_each(|output| output.file.sync_all().map_err(io(&output.shown)))
    }
}
