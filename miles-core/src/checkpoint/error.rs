//! What can be wrong with a checkpoint.

use std::path::PathBuf;

use super::contract_error::ContractError;
use super::stored_error::StoredError;
use crate::digest::Digest;
use crate::format::FormatError;
use crate::model::ModelError;
use crate::names::NamesError;
use crate::policy::PolicyError;

/// Why a checkpoint cannot be read or written. Every variant names the file or the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Reading or writing a file failed (a full disk is among the causes).
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The model's configuration is at fault.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The stored tensors are not those of a model of the family.
    #[error("{}: {source}", dir.display())]
    Names {
        /// Directory.
        dir: PathBuf,
        /// Cause; names the tensor.
        source: Box<NamesError>,
    },
    /// The directory holds neither `model.safetensors` nor an index.
    #[error("{}: neither `model.safetensors` nor `model.safetensors.index.json` is there", dir.display())]
    NoWeights {
        /// Directory.
        dir: PathBuf,
    },
    /// Weights in one file and in shards beside it; programs differ in which of them they read.
    #[error(
        "{}: {} names other files, and programs differ in which of the two they read; remove one",
        single.display(), index.display()
    )]
    TwoSources {
        /// `model.safetensors`.
        single: PathBuf,
        /// Index of the shards.
        index: PathBuf,
    },
    /// The shard index is not what an index has to be.
    #[error("{}: {why}", path.display())]
    BadIndex {
        /// Index file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The index names a file that is not there.
    #[error("{}: `{tensor}` is said to be in `{shard}`, which does not exist", index.display())]
    MissingShard {
        /// Index file.
        index: PathBuf,
        /// File named.
        shard: String,
        /// First tensor that is said to be in it.
        tensor: String,
    },
    /// The index and a shard disagree about a tensor.
    #[error("{}: {why} `{tensor}`", path.display())]
    IndexMismatch {
        /// Shard.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Which side lacks it.
        why: &'static str,
    },
    /// A header that is not a safetensors header.
    #[error("{}: not a safetensors header: {why}", path.display())]
    BadHeader {
        /// File.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A count or size beyond what any model has.
    #[error("{}: {what} is {actual}, more than the limit of {limit}", path.display())]
    OverLimit {
        /// File.
        path: PathBuf,
        /// What was counted.
        what: &'static str,
        /// Claimed.
        actual: u64,
        /// Most that is accepted.
        limit: u64,
    },
    /// The file ends before the data that its header describes.
    #[error("{}: truncated: {expected_bytes} bytes described, {actual_bytes} there{}", path.display(), of(tensor.as_deref()))]
    Truncated {
        /// File.
        path: PathBuf,
        /// First tensor that is cut, where the header itself is whole.
        tensor: Option<String>,
        /// Bytes that the header describes.
        expected_bytes: u64,
        /// Bytes in the file.
        actual_bytes: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("{}: {bytes} bytes before {} belong to no tensor", path.display(), before.as_deref().unwrap_or("the end"))]
    UnclaimedBytes {
        /// File.
        path: PathBuf,
        /// Tensor behind them; `None`: they are at the end.
        before: Option<String>,
        /// How many.
        bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("{}: `{first}` and `{second}` overlap", path.display())]
    Overlap {
        /// File.
        path: PathBuf,
        /// One tensor.
        first: String,
        /// The other.
        second: String,
    },
    /// The bytes of a tensor are not those of its shape.
    #[error("{}: `{tensor}` {shape:?} of {dtype} needs another number of bytes than {actual_bytes}", path.display())]
    WrongSize {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Number type.
        dtype: String,
        /// Shape.
        shape: Vec<usize>,
        /// Bytes between its offsets.
        actual_bytes: u64,
    },
    /// One tensor stored twice, under one name or under two names that mean the same.
    #[error("`{tensor}` is stored twice: in {} and in {}", first.display(), second.display())]
    DuplicateTensor {
        /// Canonical name.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other; may be the same.
        second: PathBuf,
    },
    /// `config.json` declares a layout of codes, and every tensor is in high precision.
    #[error("{}: `quantization_config` declares {format}, but no tensor of the checkpoint holds codes", path.display())]
    NothingQuantized {
        /// `config.json`.
        path: PathBuf,
        /// Format of the declared layout.
        format: String,
    },
    /// Tensors of the network that are not stored.
    #[error("{}: {} tensors are missing: {}", dir.display(), tensors.len(), first_few(tensors))]
    MissingTensors {
        /// Directory.
        dir: PathBuf,
        /// Canonical names.
        tensors: Vec<String>,
    },
    /// Stored tensors that the network does not have.
    #[error("{}: {} tensors belong to no part of the model: {}", dir.display(), tensors.len(), first_few(tensors))]
    UnexpectedTensors {
        /// Directory.
        dir: PathBuf,
        /// Names as stored.
        tensors: Vec<String>,
    },
    /// A tensor has another shape than the network gives it.
    #[error("{}: `{tensor}` has shape {found:?}, expected {expected:?}", path.display())]
    WrongShape {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Shape that the configuration implies.
        expected: Vec<usize>,
        /// Shape stored.
        found: Vec<usize>,
    },
    /// A tensor has a number type that it cannot be read from.
    #[error("{}: `{tensor}` is {found}, expected {expected}", path.display())]
    WrongDtype {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// What is accepted there.
        expected: &'static str,
        /// Type stored.
        found: String,
    },
    /// Codes without their scale.
    #[error("{}: `{tensor}` holds codes, but its scale `{scale}` is missing", path.display())]
    MissingScale {
        /// File of the codes.
        path: PathBuf,
        /// Codes.
        tensor: String,
        /// Scale expected.
        scale: String,
    },
    /// A scale without codes: its tensor is missing or in high precision.
    #[error("{}: scale `{scale}` has no codes: `{tensor}` is {state}", path.display())]
    OrphanScale {
        /// File of the scale.
        path: PathBuf,
        /// Scale.
        scale: String,
        /// Tensor that it would belong to.
        tensor: String,
        /// `missing` or `in high precision`.
        state: &'static str,
    },
    /// Codes in a checkpoint whose `config.json` declares no quantization.
    #[error("{}: `{tensor}` is {dtype}, but `config.json` has no `quantization_config`", path.display())]
    UndeclaredLayout {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Its number type.
        dtype: String,
    },
    /// Stored bytes that contradict what is declared about them.
    #[error("{}: {source}", path.display())]
    Stored {
        /// File.
        path: PathBuf,
        /// Cause; names the tensor.
        source: StoredError,
    },
    /// A tied model whose file holds another head than the embedding table.
    #[error(
        "{}: the embeddings are tied, but `lm_head.weight` ({head}) differs from `model.embed_tokens.weight` ({embedding})",
        path.display()
    )]
    TiedHeadDiffers {
        /// File of the head.
        path: PathBuf,
        /// Digest of the head.
        head: Digest,
        /// Digest of the embedding table.
        embedding: Digest,
    },
    /// A weight that is NaN or infinite.
    #[error("{}: `{tensor}` is {value:?} at row {row}, column {column}", path.display())]
    NonFinite {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Row.
        row: usize,
        /// Column.
        column: usize,
        /// Value.
        value: f32,
    },
    /// Codes or scales that no quantizer emits.
    #[error("{}: {source}", path.display())]
    Format {
        /// File.
        path: PathBuf,
        /// Cause; names the tensor.
        source: Box<FormatError>,
    },
    /// A quantized tensor that cannot be written.
    #[error("`{tensor}`: {source}")]
    Quantized {
        /// Tensor.
        tensor: String,
        /// Cause.
        source: Box<FormatError>,
    },
    /// The tensors do not make a policy version.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The contract sidecar of a directory is damaged, or at odds with the directory.
    #[error("{}/{}: {source}", dir.display(), super::ContractSidecar::FILE)]
    Contract {
        /// Directory.
        dir: PathBuf,
        /// Cause; names the tensor, the file or the key.
        source: Box<ContractError>,
    },
    /// The target directory holds something.
    #[error("{}: exists and is not empty; it is replaced only when asked", dir.display())]
    TargetNotEmpty {
        /// Directory.
        dir: PathBuf,
    },
    /// A format that no checkpoint layout holds.
    #[error("`{tensor}`: no checkpoint layout holds {format} {why}")]
    NoLayout {
        /// Tensor.
        tensor: String,
        /// Its format.
        format: String,
        /// What stands in the way.
        why: &'static str,
    },
    /// Tensors of two formats; a checkpoint declares one.
    #[error(
        "`{first}` is {first_format} and `{second}` is {second_format}, but a checkpoint holds one quantized format"
    )]
    MixedFormats {
        /// One tensor.
        first: String,
        /// Its format.
        first_format: String,
        /// Another tensor.
        second: String,
        /// Its format.
        second_format: String,
    },
    /// The configuration to write describes another model than the tensors.
    #[error("{}: describes another model than the tensors to be written", path.display())]
    OtherModel {
        /// Configuration.
        path: PathBuf,
    },
    /// A source gave another number of values than the tensor has.
    #[error("`{tensor}`: {actual} values given, {expected} expected")]
    WrongLength {
        /// Tensor.
        tensor: String,
        /// Values of its shape.
        expected: usize,
        /// Values given.
        actual: usize,
    },
    /// The source of values to be written failed.
    #[error("`{tensor}`: {source}")]
    Source {
        /// Tensor.
        tensor: String,
        /// Cause.
        source: Box<crate::Error>,
    },
    /// A tensor that a state file does not hold, or that was written out of turn.
    #[error("{}: no tensor `{tensor}` here{}", path.display(), expected.as_ref().map(|name| format!(" (next is `{name}`)")).unwrap_or_default())]
    NoSuchTensor {
        /// File.
        path: PathBuf,
        /// Name.
        tensor: String,
        /// While writing: the tensor whose turn it is.
        expected: Option<String>,
    },
    /// A writer was finished before every announced tensor was written.
    #[error("{}: finished before `{tensor}` was written", path.display())]
    Unfinished {
        /// File.
        path: PathBuf,
        /// First tensor left.
        tensor: String,
    },
}

/// For `map_err`: an I/O error of one file.
pub(crate) fn io(path: &std::path::Path) -> impl Fn(std::io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io { path: path.clone(), source }
}

fn of(tensor: Option<&str>) -> String {
    tensor.map(|name| format!(" (first tensor cut: `{name}`)")).unwrap_or_default()
}

fn first_few(tensors: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = tensors.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if tensors.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
