//! The header of a safetensors file, checked before any data is read.
//!
//! ```text
//! offset  size      field
//!      0     8      n, u64 little endian
//!      8     n      JSON: { "name": { "dtype", "shape", "data_offsets": [start, end] }, "__metadata__": {..} }
//!  8 + n            data; offsets count from here, tensors follow one another without a gap
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::Dtype;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::{CheckpointError, io};
use super::limits::{MAX_HEADER_BYTES, MAX_RANK, MAX_TENSORS};
use crate::json;

/// Free text of a header.
pub(super) type Metadata = BTreeMap<String, String>;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub(super) start: u64,
    /// Number of bytes.
    pub(super) bytes: u64,
}

/// Every tensor of a file, in the order of their bytes.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) metadata: Metadata,
}

/// Bytes of a tensor; `None` when they do not fill whole bytes or cannot be counted.
pub(super) fn tensor_bytes(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent as u64))?;
    let bits = elements.checked_mul(dtype.bitsize() as u64)?;
    (bits % 8 == 0).then_some(bits / 8)
}

/// Reads and checks the header of an open file.
pub(super) fn read(path: &Path, file: &mut File) -> Result<Header, CheckpointError> {
    let file_bytes = file.metadata().map_err(io(path))?.len();
    let truncated = |expected_bytes| CheckpointError::Truncated {
        path: path.to_owned(),
        tensor: None,
        expected_bytes,
        actual_bytes: file_bytes,
    };
    if file_bytes < 8 {
        return Err(truncated(8));
    }
    let mut length = [0; 8];
    file.seek(SeekFrom::Start(0)).map_err(io(path))?;
    file.read_exact(&mut length).map_err(io(path))?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(CheckpointError::OverLimit {
            path: path.to_owned(),
            what: "the size of the header in bytes",
            actual: header_bytes,
            limit: MAX_HEADER_BYTES,
        });
    }
    let data_start = 8 + header_bytes;
    if data_start > file_bytes {
        return Err(truncated(data_start));
    }
    let mut text = vec![0; header_bytes as usize];
    file.read_exact(&mut text).map_err(io(path))?;
    let header = parse(path, &text, data_start, MAX_TENSORS)?;
    check_extent(path, &header, data_start, file_bytes)?;
    Ok(header)
}

/// The bytes before the data: length, JSON, and spaces up to a multiple of 8.
pub(super) fn encode(tensors: &[(&str, Dtype, &[usize])], metadata: &Metadata) -> Vec<u8> {
    let mut object = Map::new();
    if !metadata.is_empty() {
        object.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    }
    let mut start = 0;
    for (name, dtype, shape) in tensors {
        let end = start + tensor_bytes(*dtype, shape).unwrap_or(0);
        let entry = serde_json::json!({ "dtype": dtype.to_string(), "shape": shape, "data_offsets": [start, end] });
        object.insert((*name).to_owned(), entry);
        start = end;
    }
    let mut text = Value::Object(object).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

fn parse(path: &Path, text: &[u8], data_start: u64, max_tensors: usize) -> Result<Header, CheckpointError> {
    let bad = |why: String| CheckpointError::BadHeader { path: path.to_owned(), why };
    let Entries(entries) = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    if entries.len() > max_tensors {
        return Err(CheckpointError::OverLimit {
            path: path.to_owned(),
            what: "the number of tensors",
            actual: entries.len() as u64,
            limit: max_tensors as u64,
        });
    }
    let mut seen = HashSet::new();
    if let Some((name, _)) = entries.iter().find(|(name, _)| !seen.insert(name)) {
        let (first, second) = (path.to_owned(), path.to_owned());
        return Err(CheckpointError::DuplicateTensor { tensor: name.clone(), first, second });
    }
    // What is left are keys that one entry gives twice.
    json::check_keys(text).map_err(|error| bad(error.to_string()))?;
    let mut header = Header { tensors: Vec::with_capacity(entries.len()), metadata: Metadata::new() };
    for (name, value) in entries {
        if name == "__metadata__" {
            header.metadata = serde_json::from_value(value).map_err(|error| bad(format!("`__metadata__`: {error}")))?;
            continue;
        }
        let entry: Entry = serde_json::from_value(value).map_err(|error| bad(format!("`{name}`: {error}")))?;
        header.tensors.push(check_entry(path, name, entry, data_start)?);
    }
    // An empty tensor shares its start with the next one: the shorter goes first.
    header.tensors.sort_by(|a, b| (a.start, a.bytes, &a.name).cmp(&(b.start, b.bytes, &b.name)));
    Ok(header)
}

fn check_entry(path: &Path, name: String, entry: Entry, data_start: u64) -> Result<TensorInfo, CheckpointError> {
    let Entry { dtype, shape, data_offsets: [start, end] } = entry;
    if shape.len() > MAX_RANK {
        return Err(CheckpointError::OverLimit {
            path: path.to_owned(),
            what: "the number of dimensions of a tensor",
            actual: shape.len() as u64,
            limit: MAX_RANK as u64,
        });
    }
    let (Some(bytes), Some(first)) = (end.checked_sub(start), data_start.checked_add(start)) else {
        let why = format!("`{name}`: offsets {start} to {end} are not a range");
        return Err(CheckpointError::BadHeader { path: path.to_owned(), why });
    };
    if tensor_bytes(dtype, &shape) != Some(bytes) {
        return Err(CheckpointError::WrongSize {
            path: path.to_owned(),
            tensor: name,
            dtype: dtype.to_string(),
            shape,
            actual_bytes: bytes,
        });
    }
    Ok(TensorInfo { name, dtype, shape, start: first, bytes })
}

/// Refuses overlaps, gaps, missing and left-over bytes.
fn check_extent(path: &Path, header: &Header, data_start: u64, file_bytes: u64) -> Result<(), CheckpointError> {
    let mut end = data_start;
    for (index, tensor) in header.tensors.iter().enumerate() {
        if tensor.start < end {
            return Err(CheckpointError::Overlap {
                path: path.to_owned(),
                first: header.tensors[index - 1].name.clone(),
                second: tensor.name.clone(),
            });
        }
        if tensor.start > end {
            let before = Some(format!("`{}`", tensor.name));
            return Err(CheckpointError::UnclaimedBytes { path: path.to_owned(), before, bytes: tensor.start - end });
        }
        end = tensor.start.saturating_add(tensor.bytes);
    }
    if end > file_bytes {
        let cut = header.tensors.iter().find(|tensor| tensor.start.saturating_add(tensor.bytes) > file_bytes);
        return Err(CheckpointError::Truncated {
            path: path.to_owned(),
            tensor: cut.map(|tensor| tensor.name.clone()),
            expected_bytes: end,
            actual_bytes: file_bytes,
        });
    }
    if end < file_bytes {
        return Err(CheckpointError::UnclaimedBytes { path: path.to_owned(), before: None, bytes: file_bytes - end });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The JSON object with doubled keys kept, so that they can be refused.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Entries, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Entries(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rejects_more_tensors_than_the_limit() {
        let text = encode(&[("a", Dtype::F32, &[0]), ("b", Dtype::F32, &[0])], &Metadata::new());
        let result = parse(Path::new("x"), &text[8..], 8, 1);
        assert!(matches!(result, Err(CheckpointError::OverLimit { actual: 2, limit: 1, .. })));
        const { assert!(MAX_TENSORS >= 1 << 20) };
    }

    #[test]
    fn encoded_headers_read_back() {
        let metadata = Metadata::from([("step".to_owned(), "3".to_owned())]);
        let text = encode(&[("a", Dtype::F32, &[2, 3]), ("b", Dtype::BF16, &[]), ("c", Dtype::U8, &[0])], &metadata);
        assert_eq!(text.len() % 8, 0);
        let header = parse(Path::new("x"), &text[8..], text.len() as u64, 9).unwrap();
        assert_eq!(header.metadata, metadata);
        let start = text.len() as u64;
        let places: Vec<_> = header.tensors.iter().map(|t| (t.name.as_str(), t.start - start, t.bytes)).collect();
        assert_eq!(places, [("a", 0, 24), ("b", 24, 2), ("c", 26, 0)]);
    }
}
