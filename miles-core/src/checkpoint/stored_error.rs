//! What stored codes and scales can contradict.

/// A contradiction between stored bytes and what the directory declares about them. Every variant names the tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// A scale that its layout cannot have: negative, or another number than the declared kind.
    #[error("`{tensor}`: its scale at scale row {row}, block {block} is {value:e}, which {why}")]
    Scale {
        /// Tensor that it belongs to.
        tensor: String,
        /// Row of the scale matrix.
        row: usize,
        /// Block within the row.
        block: usize,
        /// Value.
        value: f32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An activation scale that scales nothing.
    #[error("`{tensor}` is {value:e}, and a calibrated scale is finite and above 0")]
    InputScale {
        /// The scale.
        tensor: String,
        /// Value.
        value: f32,
    },
    /// Packed codes whose stored extents are not those of the parameter.
    #[error("`{tensor}` says {found:?}, but the parameter is {expected:?}")]
    Extents {
        /// Tensor that holds the extents.
        tensor: String,
        /// Rows and columns of the parameter.
        expected: [usize; 2],
        /// What is stored.
        found: Vec<i64>,
    },
    /// Codes where the configuration says high precision: an engine that follows it would take codes for weights.
    #[error("`{tensor}` holds codes, but the configuration keeps `{entry}` in high precision")]
    KeptModuleHasCodes {
        /// Tensor.
        tensor: String,
        /// Entry of the list of modules kept.
        entry: String,
    },
}
