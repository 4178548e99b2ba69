//! What the examples share: reading and writing safetensors files, and ending with one line of error.

#![forbid(unsafe_code)]

pub mod contract;
pub mod layouts;
pub mod progress;
pub mod quantize;
pub mod seams;
pub mod training;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors::{Dtype, View};

/// A tensor to be written: number type, shape and little-endian bytes.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    /// Number type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
    /// Little-endian bytes, row-major.
    pub bytes: Vec<u8>,
}

impl OutputTensor {
    /// Bytes.
    #[must_use]
    pub fn u8(shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        OutputTensor { dtype: Dtype::U8, shape, bytes }
    }

    /// F32 values.
    #[must_use]
    pub fn f32(shape: Vec<usize>, values: &[f32]) -> Self {
        OutputTensor { dtype: Dtype::F32, shape, bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect() }
    }

    /// I32 values.
    #[must_use]
    pub fn i32(shape: Vec<usize>, values: &[i32]) -> Self {
        OutputTensor { dtype: Dtype::I32, shape, bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect() }
    }

    /// BF16 bits.
    #[must_use]
    pub fn bf16(shape: Vec<usize>, bits: &[u16]) -> Self {
        OutputTensor { dtype: Dtype::BF16, shape, bytes: bits.iter().flat_map(|x| x.to_le_bytes()).collect() }
    }
}

impl View for &OutputTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// What can go wrong with an example's files.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// Reading or writing failed.
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not a safetensors file, or the tensors cannot be one.
    Safetensors {
        /// File.
        path: PathBuf,
        /// Cause.
        source: safetensors::SafeTensorError,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Io { path, source } => write!(f, "{}: {source}", path.display()),
            FileError::Safetensors { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FileError::Io { source, .. } => Some(source),
            FileError::Safetensors { source, .. } => Some(source),
        }
    }
}

/// Reads a whole file.
///
/// # Errors
/// If it cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>, FileError> {
    std::fs::read(path).map_err(|source| FileError::Io { path: path.to_owned(), source })
}

/// Writes a safetensors file under a temporary name beside `path` and renames it: `path` is whole or absent.
///
/// # Errors
/// If the tensors do not form a file, or writing fails; nothing is then left behind.
pub fn write_safetensors(path: &Path, tensors: &[(String, OutputTensor)]) -> Result<(), FileError> {
    let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    if std::fs::metadata(path).is_ok_and(|existing| !existing.is_file()) {
        let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "exists and is not a regular file");
        return Err(FileError::Io { path: path.to_owned(), source });
    }
    let bytes = safetensors::serialize(views, None)
        .map_err(|source| FileError::Safetensors { path: path.to_owned(), source })?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let written = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    written.map_err(|source| {
        // The write's own error is the one to report; there may be no partial file to remove.
        let _ = std::fs::remove_file(&partial);
        FileError::Io { path: path.to_owned(), source }
    })
}

/// Ends an example: exit code 0, or one line on stderr with every cause and exit code 1.
#[must_use]
pub fn exit(result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        // Transparent errors repeat their cause.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = inner.source();
    }
    eprintln!("error: {line}");
    ExitCode::FAILURE
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn a_written_file_reads_back_and_leaves_no_partial_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.safetensors");
        let tensors = [
            ("a".to_owned(), OutputTensor::f32(vec![2], &[1.5, -2.0])),
            ("b/codes".to_owned(), OutputTensor::u8(vec![1, 3], vec![1, 2, 3])),
        ];
        write_safetensors(&path, &tensors).unwrap();
        let bytes = read_file(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.tensor("a").unwrap().data(), tensors[0].1.bytes);
        assert_eq!(read.tensor("b/codes").unwrap().shape(), [1, 3]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write_safetensors(directory.path(), &tensors).is_err(), "a directory is not replaced");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_not_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("absent/out.safetensors");
        let error = write_safetensors(&path, &[]).unwrap_err();
        assert!(error.to_string().contains("absent/out.safetensors"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
