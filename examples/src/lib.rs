//! What the examples share: reading and writing safetensors files, and ending with one line of error.

#![forbid(unsafe_code)]

pub mod contract;
pub mod layouts;
pub mod ledger;
pub mod progress;
pub mod quantize;
pub mod seams;
pub mod training;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io::Write;
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
    /// The output is an input, or a file of an input directory.
    ReplacesInput {
        /// Output.
        output: PathBuf,
        /// Input.
        input: PathBuf,
    },
    /// The tensors cannot be a safetensors file.
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
            FileError::ReplacesInput { output, input } => {
                write!(f, "{}: this output would replace the input {}", output.display(), input.display())
            }
            FileError::Safetensors { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FileError::Io { source, .. } => Some(source),
            FileError::ReplacesInput { .. } => None,
            FileError::Safetensors { source, .. } => Some(source),
        }
    }
}

/// Refuses an output that is one of the inputs or a file of an input directory, by whatever path or link it is named.
///
/// # Errors
/// [`FileError::ReplacesInput`].
pub fn refuse_replacing(output: &Path, inputs: &[&Path]) -> Result<(), FileError> {
    // What is not there yet is nobody's input.
    let Ok(existing) = std::fs::canonicalize(output) else { return Ok(()) };
    let holds = |input: &&&Path| std::fs::canonicalize(input).is_ok_and(|input| existing.starts_with(input));
    match inputs.iter().find(holds) {
        None => Ok(()),
        Some(input) => Err(FileError::ReplacesInput { output: output.to_owned(), input: (*input).to_owned() }),
    }
}

/// Writes a safetensors file; `path` is whole or as it was before.
///
/// # Errors
/// If the tensors do not form a file, or writing fails; nothing is then left behind.
pub fn write_safetensors(path: &Path, tensors: &[(String, OutputTensor)]) -> Result<(), FileError> {
    let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let bytes = safetensors::serialize(views, None)
        .map_err(|source| FileError::Safetensors { path: path.to_owned(), source })?;
    write_file(path, &bytes)
}

/// Writes a file under a temporary name beside `path` and renames it: `path` is whole or as it was before.
///
/// # Errors
/// If `path` is something else than a file, or writing fails; nothing is then left behind.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    if std::fs::metadata(path).is_ok_and(|existing| !existing.is_file()) {
        let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "exists and is not a regular file");
        return Err(FileError::Io { path: path.to_owned(), source });
    }
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
    // Nobody reading it is no reason to panic.
    let _ = writeln!(std::io::stderr(), "error: {line}");
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
        let bytes = std::fs::read(&path).unwrap();
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

    #[test]
    fn an_output_that_is_an_input_is_refused_by_whatever_name() {
        let directory = tempfile::tempdir().unwrap();
        let (dir, input) = (directory.path(), directory.path().join("in.safetensors"));
        std::fs::create_dir(dir.join("sub")).unwrap();
        std::fs::write(&input, "source").unwrap();
        let mut names = vec![input.clone(), dir.join("./in.safetensors"), dir.join("sub/../in.safetensors")];
        #[cfg(unix)]
        for (link, target) in [("to-file", input.as_path()), ("to-folder", dir)] {
            std::os::unix::fs::symlink(target, dir.join(link)).unwrap();
            names.push(if target == dir { dir.join(link).join("in.safetensors") } else { dir.join(link) });
        }
        for name in &names {
            for (output, from) in [(name, &input), (&input, name)] {
                let error = refuse_replacing(output, &[Path::new("elsewhere"), from]).unwrap_err();
                assert!(matches!(&error, FileError::ReplacesInput { input, .. } if input == from), "{error}");
            }
        }
        // A file of an input directory.
        assert!(refuse_replacing(&input, &[dir]).is_err());
        std::fs::write(dir.join("other"), "").unwrap();
        for output in [dir.join("other"), dir.join("absent"), dir.join("sub/in.safetensors")] {
            refuse_replacing(&output, &[&input]).unwrap();
        }
        refuse_replacing(&dir.join("absent"), &[dir]).unwrap();
    }
}
