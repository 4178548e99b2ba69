//! Names and number types of a tensor's parts in `tensors.safetensors`.
//!
//! | part | name | number type | shape |
//! |---|---|---|---|
//! | a dense tensor | its own | its own | its own |
//! | codes | `name:codes` | U8 | bytes |
//! | block scales | `name:scales` | U8 or F32 | scales |
//! | outer scales | `name:outer` | F32 | scales; left out where the format has none |
//! | amax values | `name:amax` | F32 | values; left out where they are not known |
//!
//! No parameter's name holds a colon.

use std::borrow::Cow;

use safetensors::Dtype as Stored;

use crate::format::{BlockScales, QuantizedTensor};
use crate::policy::PolicyTensor;
use crate::tensor::Dtype;

pub(super) const FILE: &str = "tensors.safetensors";
/// Key in the header under which the digest of `snapshot.json` stands.
pub(super) const DESCRIPTION_KEY: &str = "snapshot.json";

pub(super) const CODES: &str = "codes";
pub(super) const SCALES: &str = "scales";
pub(super) const OUTER: &str = "outer";
pub(super) const AMAX: &str = "amax";

/// One array of the file.
pub(super) struct StoredPart<'a> {
    pub(super) name: String,
    pub(super) dtype: Stored,
    pub(super) shape: Vec<usize>,
    values: Values<'a>,
}

enum Values<'a> {
    Bytes(&'a [u8]),
    Floats(&'a [f32]),
}

impl StoredPart<'_> {
    /// Passes the part's bytes, little endian, to `write` piece by piece.
    pub(super) fn visit<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        match self.values {
            Values::Bytes(bytes) => write(bytes),
            Values::Floats(values) => values.chunks(CHUNK_VALUES).try_for_each(|chunk| {
                let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
                write(&bytes)
            }),
        }
    }
}

/// The parts of one tensor, in the order in which they are stored.
pub(super) fn stored_parts<'a>(name: &str, tensor: &'a PolicyTensor) -> Vec<StoredPart<'a>> {
    match tensor {
        PolicyTensor::Dense(tensor) => vec![StoredPart {
            name: name.to_owned(),
            dtype: stored_dtype(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            values: Values::Bytes(tensor.bytes()),
        }],
        PolicyTensor::Quantized(tensor) => quantized_parts(name, tensor),
    }
}

pub(super) fn part_name<'a>(tensor: &'a str, part: &str) -> Cow<'a, str> {
    Cow::Owned(format!("{tensor}:{part}"))
}

pub(super) fn stored_dtype(dtype: Dtype) -> Stored {
    match dtype {
        Dtype::F32 => Stored::F32,
        Dtype::F16 => Stored::F16,
        Dtype::Bf16 => Stored::BF16,
    }
}

fn quantized_parts<'a>(name: &str, tensor: &'a QuantizedTensor) -> Vec<StoredPart<'a>> {
    let part = |part: &str, values: Values<'a>| {
        let (dtype, length) = match values {
            Values::Bytes(bytes) => (Stored::U8, bytes.len()),
            Values::Floats(values) => (Stored::F32, values.len()),
        };
        StoredPart { name: part_name(name, part).into_owned(), dtype, shape: vec![length], values }
    };
    let scales = match tensor.scales() {
        BlockScales::U8(scales) => Values::Bytes(scales),
        BlockScales::F32(scales) => Values::Floats(scales),
    };
    let mut parts = vec![part(CODES, Values::Bytes(tensor.codes())), part(SCALES, scales)];
    for (name, values) in [(OUTER, tensor.outer()), (AMAX, tensor.amax())] {
        if !values.is_empty() {
            parts.push(part(name, Values::Floats(values)));
        }
    }
    parts
}

const CHUNK_VALUES: usize = 1 << 14;
