//! Why a file cannot be quantized.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

/// A file without a single matrix.
#[derive(Debug)]
pub struct NothingToQuantize {
    /// The file.
    pub path: PathBuf,
}

impl fmt::Display for NothingToQuantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: nothing to quantize: the file holds no 2-D tensor", self.path.display())
    }
}

impl Error for NothingToQuantize {}

/// A matrix that is not in high precision.
#[derive(Debug)]
pub struct UnsupportedDtype {
    /// Its name.
    pub tensor: String,
    /// What it is.
    pub dtype: safetensors::Dtype,
}

impl fmt::Display for UnsupportedDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor `{}` is {:?}; only BF16, F16 and F32 can be quantized", self.tensor, self.dtype)
    }
}

impl Error for UnsupportedDtype {}

/// A group that cannot be formed.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// The file has no matrix of this name.
    Unknown {
        /// The name.
        tensor: String,
    },
    /// A matrix is named twice, in one group or in two.
    Twice {
        /// The name.
        tensor: String,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Unknown { tensor } => {
                write!(f, "a group names `{tensor}`, which is not a 2-D tensor of the file")
            }
            GroupError::Twice { tensor } => write!(f, "tensor `{tensor}` is named twice in groups"),
        }
    }
}

impl Error for GroupError {}

/// Why a tensor (or a group of tensors) could not be quantized.
#[derive(Debug)]
pub struct TensorFailure {
    tensor: String,
    source: Box<miles_core::Error>,
}

impl TensorFailure {
    pub(super) fn new(tensor: &str, source: miles_core::Error) -> Self {
        TensorFailure { tensor: tensor.to_owned(), source: Box::new(source) }
    }
}

impl fmt::Display for TensorFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot quantize tensor `{}`", self.tensor)
    }
}

impl Error for TensorFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref())
    }
}
