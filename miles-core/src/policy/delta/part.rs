//! A tensor's parts as little-endian bytes, and bytes put back.

use std::borrow::Cow;
use std::fmt;

use super::{DeltaError, PartDelta, Run, TensorDelta};
use crate::format::{BlockScales, QuantizedTensor};
use crate::policy::PolicyTensor;
use crate::tensor::DenseTensor;

/// One array of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeltaPart {
    /// Elements of a dense tensor.
    Dense,
    /// Codes.
    Codes,
    /// Block scales.
    Scales,
    /// Outer scales.
    Outer,
    /// The amax values behind the outer scales.
    Amax,
}

impl DeltaPart {
    /// Every part, each at the place of its code in encoded bytes.
    pub(super) const ALL: [DeltaPart; 5] =
        [DeltaPart::Dense, DeltaPart::Codes, DeltaPart::Scales, DeltaPart::Outer, DeltaPart::Amax];
}

impl fmt::Display for DeltaPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeltaPart::Dense => "dense elements",
            DeltaPart::Codes => "codes",
            DeltaPart::Scales => "block scales",
            DeltaPart::Outer => "outer scales",
            DeltaPart::Amax => "amax values",
        })
    }
}

/// Whether two tensors have the same parts in the same sizes; amax values may be known of one of them only.
pub(super) fn same_form(old: &PolicyTensor, new: &PolicyTensor) -> bool {
    match (old, new) {
        (PolicyTensor::Dense(old), PolicyTensor::Dense(new)) => {
            (old.dtype(), old.shape()) == (new.dtype(), new.shape())
        }
        (PolicyTensor::Quantized(old), PolicyTensor::Quantized(new)) => {
            let size = |tensor: &QuantizedTensor| (tensor.rows(), tensor.cols());
            old.spec() == new.spec() && size(old) == size(new) && old.layout() == new.layout()
        }
        _ => false,
    }
}

/// Every part of a tensor, in the order of [`DeltaPart`].
pub(super) fn part_bytes(tensor: &PolicyTensor) -> Vec<(DeltaPart, Cow<'_, [u8]>)> {
    match tensor {
        PolicyTensor::Dense(tensor) => vec![(DeltaPart::Dense, Cow::Borrowed(tensor.bytes()))],
        PolicyTensor::Quantized(tensor) => vec![
            (DeltaPart::Codes, Cow::Borrowed(tensor.codes())),
            (
                DeltaPart::Scales,
                match tensor.scales() {
                    BlockScales::U8(scales) => Cow::Borrowed(scales.as_slice()),
                    BlockScales::F32(scales) => Cow::Owned(to_bytes(scales)),
                },
            ),
            (DeltaPart::Outer, Cow::Owned(to_bytes(tensor.outer()))),
            (DeltaPart::Amax, Cow::Owned(to_bytes(tensor.amax()))),
        ],
    }
}

/// Runs of blocks that differ; the whole part where the sizes do.
pub(super) fn changed_runs(old: &[u8], new: &[u8], block_bytes: usize) -> Vec<Run> {
    if old.len() != new.len() {
        return if new.is_empty() { Vec::new() } else { vec![Run { offset: 0, bytes: new.to_vec() }] };
    }
    let mut runs: Vec<Run> = Vec::new();
    let blocks = old.chunks(block_bytes).zip(new.chunks(block_bytes));
    for (index, (_, after)) in blocks.enumerate().filter(|(_, (before, after))| before != after) {
        let offset = (index * block_bytes) as u64;
        match runs.last_mut().filter(|run| run.end() == Some(offset)) {
            Some(run) => run.bytes.extend_from_slice(after),
            None => runs.push(Run { offset, bytes: after.to_vec() }),
        }
    }
    runs
}

impl Run {
    pub(super) fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes.len() as u64)
    }
}

/// The tensor with the changed bytes in their places.
pub(super) fn with_bytes(tensor: &PolicyTensor, changed: &TensorDelta) -> Result<PolicyTensor, DeltaError> {
    let name = &changed.name;
    for (index, part) in changed.parts.iter().enumerate() {
        if changed.parts[..index].iter().any(|earlier| earlier.part == part.part) {
            return Err(DeltaError::Doubled { tensor: name.clone(), part: Some(part.part) });
        }
    }
    match tensor {
        PolicyTensor::Dense(tensor) => dense_with_bytes(tensor, changed).map(PolicyTensor::Dense),
        PolicyTensor::Quantized(tensor) => quantized_with_bytes(tensor, changed).map(PolicyTensor::Quantized),
    }
}

fn dense_with_bytes(tensor: &DenseTensor, changed: &TensorDelta) -> Result<DenseTensor, DeltaError> {
    let mut bytes = tensor.bytes().to_vec();
    for part in &changed.parts {
        match part.part {
            DeltaPart::Dense => overlay(&changed.name, &mut bytes, part)?,
            other => return Err(DeltaError::NoSuchPart { tensor: changed.name.clone(), part: other }),
        }
    }
    // The bytes are as many as they were.
    DenseTensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes)
        .map_err(|_| DeltaError::OtherForm { tensor: changed.name.clone() })
}

fn quantized_with_bytes(tensor: &QuantizedTensor, changed: &TensorDelta) -> Result<QuantizedTensor, DeltaError> {
    let name = &changed.name;
    let mut parts = tensor.to_parts();
    for part in &changed.parts {
        match (part.part, &mut parts.scales) {
            (DeltaPart::Dense, _) => {
                return Err(DeltaError::NoSuchPart { tensor: name.clone(), part: part.part });
            }
            (DeltaPart::Codes, _) => overlay(name, &mut parts.codes, part)?,
            (DeltaPart::Scales, BlockScales::U8(scales)) => overlay(name, scales, part)?,
            (DeltaPart::Scales, BlockScales::F32(scales)) => overlay_floats(name, scales, part)?,
            (DeltaPart::Outer, _) => overlay_floats(name, &mut parts.outer, part)?,
            (DeltaPart::Amax, _) => overlay_floats(name, &mut parts.amax, part)?,
        }
    }
    tensor.with_parts(name, parts).map_err(|error| DeltaError::Format(Box::new(error)))
}

/// Replaces a part of another size, which has to be there whole, or the changed bytes of one of the same size.
fn overlay(tensor: &str, bytes: &mut Vec<u8>, part: &PartDelta) -> Result<(), DeltaError> {
    check_runs(tensor, part)?;
    if part.length != bytes.len() as u64 {
        let whole = part.runs.iter().map(|run| run.bytes.len() as u64).sum::<u64>() == part.length;
        if part.part != DeltaPart::Amax || !whole {
            return Err(DeltaError::PartLength {
                tensor: tensor.to_owned(),
                part: part.part,
                expected: bytes.len() as u64,
                found: part.length,
            });
        }
        // No more than what the delta carries.
        bytes.clear();
        part.runs.iter().for_each(|run| bytes.extend_from_slice(&run.bytes));
        return Ok(());
    }
    for run in &part.runs {
        let start = run.offset as usize;
        bytes[start..start + run.bytes.len()].copy_from_slice(&run.bytes);
    }
    Ok(())
}

fn overlay_floats(tensor: &str, values: &mut Vec<f32>, part: &PartDelta) -> Result<(), DeltaError> {
    let mut bytes = to_bytes(values);
    overlay(tensor, &mut bytes, part)?;
    if !bytes.len().is_multiple_of(4) {
        let expected = (values.len() * 4) as u64;
        let (tensor, found) = (tensor.to_owned(), bytes.len() as u64);
        return Err(DeltaError::PartLength { tensor, part: part.part, expected, found });
    }
    *values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok(())
}

/// Refuses runs that are empty, out of order, overlapping, or not within the part.
fn check_runs(tensor: &str, part: &PartDelta) -> Result<(), DeltaError> {
    let mut end = 0;
    for run in &part.runs {
        let refused = |why| DeltaError::BadRun {
            tensor: tensor.to_owned(),
            part: part.part,
            offset: run.offset,
            bytes: run.bytes.len() as u64,
            part_bytes: part.length,
            why,
        };
        if run.bytes.is_empty() {
            return Err(refused("are nothing"));
        }
        if run.offset < end {
            return Err(refused("overlap those before"));
        }
        end = run.end().filter(|end| *end <= part.length).ok_or_else(|| refused("reach beyond the end"))?;
    }
    Ok(())
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
