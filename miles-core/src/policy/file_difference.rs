//! Where two files of one name part.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::export_event::failed;
use super::{PolicyError, Side};
use crate::checkpoint::raw::RawTensors;

/// A file that two directories do not share.
#[derive(Clone, Debug, PartialEq)]
pub struct FileDifference {
    /// Path in the directory.
    pub file: String,
    /// How it differs.
    pub cause: FileCause,
}

/// How a file of one name differs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FileCause {
    /// Only one directory has it.
    OnlyIn(Side),
    /// The bytes differ.
    Byte {
        /// The first byte that differs, counted from 0.
        offset_bytes: u64,
        /// That byte in A and B; `None` behind the end of the shorter file.
        values: [Option<u8>; 2],
        /// The stored tensor around it, in a safetensors file and behind its header.
        tensor: Option<String>,
    },
}

/// How two files differ; `None` when their bytes are equal.
pub(super) fn file_difference(a: &Path, b: &Path) -> Result<Option<FileCause>, PolicyError> {
    let open = |path: &Path| File::open(path).map(BufReader::new).map_err(failed(path));
    let (mut read_a, mut read_b) = (open(a)?, open(b)?);
    let mut offset_bytes = 0;
    let values = loop {
        let (next_a, next_b) = (read_a.fill_buf().map_err(failed(a))?, read_b.fill_buf().map_err(failed(b))?);
        let shared = next_a.len().min(next_b.len());
        let equal = next_a.iter().zip(next_b).take_while(|(a, b)| a == b).count();
        offset_bytes += equal as u64;
        if equal < shared || shared == 0 {
            break [next_a, next_b].map(|next| next.get(equal).copied());
        }
        read_a.consume(shared);
        read_b.consume(shared);
    };
    if values == [None, None] {
        return Ok(None);
    }
    let tensor = [a, b].into_iter().find_map(|path| tensor_at(path, offset_bytes));
    Ok(Some(FileCause::Byte { offset_bytes, values, tensor }))
}

/// The stored tensor around a byte of a safetensors file.
fn tensor_at(path: &Path, offset_bytes: u64) -> Option<String> {
    if path.extension().is_none_or(|extension| extension != "safetensors") {
        return None;
    }
    RawTensors::open(path).ok()?.name_at(offset_bytes).map(str::to_owned)
}

impl fmt::Display for FileDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        match &self.cause {
            FileCause::OnlyIn(side) => write!(f, "file `{file}`: only {side} has it"),
            FileCause::Byte { offset_bytes, values, tensor } => {
                write!(f, "file `{file}`: byte {offset_bytes}")?;
                if let Some(tensor) = tensor {
                    write!(f, ", in `{tensor}`")?;
                }
                for (side, value) in [Side::A, Side::B].into_iter().zip(values) {
                    match value {
                        Some(value) => write!(f, ", 0x{value:02x} in {side}")?,
                        None => write!(f, ", {side} ends there")?,
                    }
                }
                Ok(())
            }
        }
    }
}
