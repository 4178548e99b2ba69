//! Where two tensors of one name part: the first differing byte, what it stands for, and what it decodes to.
//!
//! Bytes are compared in canonical order (codes, block scales, outer scales). Which elements a byte decides follows from
//! the format's own layout, so it needs no knowledge of a particular format.

use std::fmt;
use std::ops::Range;

use super::PolicyTensor;
use crate::format::{Axis, BlockScales, FormatRule, Operand, QuantizeSpec, QuantizedTensor, ScaleKind, builtin_rule};
use crate::number::{e4m3, e8m0};
use crate::registry;
use crate::tensor::DenseTensor;

/// How two tensors of one name differ.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TensorDifference {
    /// Format, shape or scale scope: their bytes stand for different things.
    Kind {
        /// Description of the first.
        a: String,
        /// Description of the second.
        b: String,
    },
    /// Bytes.
    Byte(ByteDifference),
}

/// A part of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Elements of a tensor in high precision.
    Elements,
    /// Codes.
    Codes,
    /// Block scales.
    BlockScales,
    /// Outer scales.
    OuterScales,
}

/// The first differing byte of two tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ByteDifference {
    /// Part that it lies in.
    pub part: Part,
    /// Offset in the part.
    pub offset_bytes: usize,
    /// Rows of the elements that it decides.
    pub rows: Range<usize>,
    /// Columns of the elements that it decides.
    pub columns: Range<usize>,
    /// Row and column in the matrix of block scales; `None` for elements and outer scales.
    pub block: Option<[usize; 2]>,
    /// The code, scale or element around the byte, on each side.
    pub codes: [Code; 2],
    /// Differing and total bytes of every part that the tensors have.
    pub counts: Vec<PartCount>,
}

/// A code, a scale or an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Code {
    /// Its bits.
    pub bits: u32,
    /// How many.
    pub width_bits: u32,
    /// Its value: an element with its scales applied, a scale on its own. `None` where the format's rule is not at hand.
    pub value: Option<f32>,
}

/// How much of a part differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartCount {
    /// Part.
    pub part: Part,
    /// Differing bytes.
    pub differing_bytes: usize,
    /// All bytes.
    pub bytes: usize,
}

/// How two tensors differ; `None` when their canonical bytes are equal.
#[must_use]
pub fn tensor_difference(a: &PolicyTensor, b: &PolicyTensor) -> Option<TensorDifference> {
    let (kind_a, kind_b) = (kind(a), kind(b));
    if kind_a != kind_b {
        return Some(TensorDifference::Kind { a: kind_a, b: kind_b });
    }
    let (parts_a, parts_b) = (parts(a), parts(b));
    let count = |(x, y): (&PartBytes, &PartBytes)| PartCount {
        part: x.0,
        differing_bytes: x.1.iter().zip(&y.1).filter(|(x, y)| x != y).count(),
        bytes: x.1.len(),
    };
    let counts: Vec<PartCount> = parts_a.iter().zip(&parts_b).map(count).collect();
    let (part, offset_bytes) = parts_a
        .iter()
        .zip(&parts_b)
        .find_map(|((part, x), (_, y))| Some((*part, x.iter().zip(y).position(|(x, y)| x != y)?)))?;
    let found = match (a, b) {
        (PolicyTensor::Quantized(a), PolicyTensor::Quantized(b)) => match part {
            Part::Codes => code_difference(a, b, offset_bytes),
            Part::BlockScales => scale_difference(a, b, offset_bytes),
            _ => outer_difference(a, b, offset_bytes),
        },
        (PolicyTensor::Dense(a), PolicyTensor::Dense(b)) => element_difference(a, b, offset_bytes),
        _ => return None,
    };
    let Found { rows, columns, block, codes } = found;
    Some(TensorDifference::Byte(ByteDifference { part, offset_bytes, rows, columns, block, codes, counts }))
}

struct Found {
    rows: Range<usize>,
    columns: Range<usize>,
    block: Option<[usize; 2]>,
    codes: [Code; 2],
}

/// Everything that has to be equal for two tensors' bytes to mean the same.
fn kind(tensor: &PolicyTensor) -> String {
    match tensor {
        PolicyTensor::Dense(dense) => format!("{} {:?}", dense.dtype().name(), dense.shape()),
        PolicyTensor::Quantized(quantized) => {
            let outer = match quantized.outer().len() {
                0 => String::new(),
                count => format!(", {count} outer scales"),
            };
            let (format, rows, cols, axis) = (quantized.format(), quantized.rows(), quantized.cols(), quantized.axis());
            let (scale_rows, scale_cols) = (quantized.scale_rows(), quantized.scale_cols());
            let codes = quantized.codes().len();
            format!(
                "{format} [{rows}, {cols}], {axis} axis, {codes} bytes of codes, [{scale_rows}, {scale_cols}] block scales{outer}"
            )
        }
    }
}

type PartBytes = (Part, Vec<u8>);

fn parts(tensor: &PolicyTensor) -> Vec<PartBytes> {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    match tensor {
        PolicyTensor::Dense(dense) => vec![(Part::Elements, dense.bytes().to_vec())],
        PolicyTensor::Quantized(tensor) => {
            let scales = match tensor.scales() {
                BlockScales::U8(scales) => scales.clone(),
                BlockScales::F32(scales) => floats(scales),
            };
            let outer = floats(tensor.outer());
            [(Part::Codes, tensor.codes().to_vec()), (Part::BlockScales, scales), (Part::OuterScales, outer)]
                .into_iter()
                .filter(|(_, bytes)| !bytes.is_empty())
                .collect()
        }
    }
}

fn code_difference(a: &QuantizedTensor, b: &QuantizedTensor, offset: usize) -> Found {
    if a.axis() == Axis::Column {
        // Formats differ in how they store the codes of a column copy; policies hold row copies.
        let code = |tensor: &QuantizedTensor| Code { bits: tensor.codes()[offset].into(), width_bits: 8, value: None };
        return Found { rows: 0..a.rows(), columns: 0..a.cols(), block: None, codes: [code(a), code(b)] };
    }
    let (row_bytes, cols) = (a.codes().len() / a.rows(), a.cols());
    let width = code_bits(row_bytes, cols);
    let differing_bits = a.codes()[offset] ^ b.codes()[offset];
    let (row, bit_in_row) = (offset / row_bytes, offset % row_bytes * 8 + differing_bits.trailing_zeros() as usize);
    let column = (bit_in_row / width).min(cols - 1);
    let first_bit = row * row_bytes * 8 + column * width;
    let code = |tensor: &QuantizedTensor| {
        let is_set = |bit: usize| tensor.codes().get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
        let bits = (0..width).fold(0, |code, bit| code | u32::from(is_set(first_bit + bit)) << bit);
        let values = with_rule(tensor, |rule| rule.dequantize(tensor).ok()).flatten();
        let value = values.and_then(|values| values.get(row * cols + column).copied());
        Code { bits, width_bits: width as u32, value }
    };
    let block = block_extent(a).map(|[block_rows, block_cols]| [row / block_rows, column / block_cols]);
    Found { rows: row..row + 1, columns: column..column + 1, block, codes: [code(a), code(b)] }
}

fn scale_difference(a: &QuantizedTensor, b: &QuantizedTensor, offset: usize) -> Found {
    let index = match a.scales() {
        BlockScales::U8(_) => offset,
        BlockScales::F32(_) => offset / 4,
    };
    let code = |tensor: &QuantizedTensor| match (tensor.scales(), tensor.layout().scale_kind) {
        (BlockScales::F32(scales), _) => float(scales[index]),
        (BlockScales::U8(scales), kind) => {
            let value = match kind {
                ScaleKind::E4m3 => Some(e4m3::decode(scales[index])),
                ScaleKind::E8m0 => Some(e8m0::decode(scales[index])),
                _ => None,
            };
            Code { bits: u32::from(scales[index]), width_bits: 8, value }
        }
    };
    let (row, column) = (index / a.scale_cols(), index % a.scale_cols());
    let covered = |index: usize, extent: usize, end: usize| index * extent..end.min(index * extent + extent);
    let (rows, columns) = match block_extent(a) {
        None => (0..a.rows(), 0..a.cols()),
        Some([block_rows, block_cols]) => (covered(row, block_rows, a.rows()), covered(column, block_cols, a.cols())),
    };
    Found { rows, columns, block: Some([row, column]), codes: [code(a), code(b)] }
}

fn outer_difference(a: &QuantizedTensor, b: &QuantizedTensor, offset: usize) -> Found {
    let index = offset / 4;
    let lines = |lines: usize| if a.outer().len() == 1 { 0..lines } else { index..index + 1 };
    let (rows, columns) = match a.axis() {
        Axis::Row => (lines(a.rows()), 0..a.cols()),
        Axis::Column => (0..a.rows(), lines(a.cols())),
    };
    Found { rows, columns, block: None, codes: [float(a.outer()[index]), float(b.outer()[index])] }
}

fn element_difference(a: &DenseTensor, b: &DenseTensor, offset: usize) -> Found {
    let width = a.dtype().element_bytes();
    let index = offset / width;
    let cols = a.shape().last().copied().unwrap_or(1).max(1);
    let code = |tensor: &DenseTensor| {
        let bytes = &tensor.bytes()[index * width..][..width];
        let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        Code { bits, width_bits: width as u32 * 8, value: tensor.to_f32().get(index).copied() }
    };
    let (row, column) = (index / cols, index % cols);
    Found { rows: row..row + 1, columns: column..column + 1, block: None, codes: [code(a), code(b)] }
}

fn float(value: f32) -> Code {
    Code { bits: value.to_bits(), width_bits: 32, value: Some(value) }
}

/// Bits of one code, of which `length` fill `bytes`; a line may end in padding.
fn code_bits(bytes: usize, length: usize) -> usize {
    let bits = (bytes * 8 / length.max(1)).clamp(1, 32);
    if bits * length == bytes * 8 { bits } else { 1 << bits.ilog2() }
}

/// Rows and columns that one block scale covers, found by asking the format for the layout of smaller tensors. `None`
/// where that is not known.
fn block_extent(tensor: &QuantizedTensor) -> Option<[usize; 2]> {
    if tensor.axis() == Axis::Column {
        return None;
    }
    let spec = match tensor.operand() {
        Operand::Weight => QuantizeSpec::weight(tensor.format().clone()),
        Operand::Activation => QuantizeSpec::activation(tensor.format().clone()),
    };
    let spec = spec.with_scope(tensor.scope());
    let (rows, cols) = (tensor.rows(), tensor.cols());
    with_rule(tensor, |rule| {
        let scale_rows = |size| rule.layout(size, cols, &spec).ok().map(|layout| layout.scale_rows);
        let scale_cols = |size| rule.layout(rows, size, &spec).ok().map(|layout| layout.scale_cols);
        [largest_with_one_scale(rows, scale_rows), largest_with_one_scale(cols, scale_cols)]
    })
}

/// The largest size up to `end` that has one scale. Sizes that the format does not take (an odd number of packed codes)
/// say nothing.
fn largest_with_one_scale(end: usize, scales: impl Fn(usize) -> Option<usize>) -> usize {
    let mut largest = 1;
    for size in 1..=end {
        match scales(size) {
            None => {}
            Some(0 | 1) => largest = size,
            Some(_) => break,
        }
    }
    largest
}

fn with_rule<T>(tensor: &QuantizedTensor, use_rule: impl FnOnce(&dyn FormatRule) -> T) -> Option<T> {
    match builtin_rule(tensor.format()) {
        Some(rule) => Some(use_rule(rule)),
        None => Some(use_rule(registry::format(tensor.format().as_str(), &serde_json::Value::Null).ok()?.as_ref())),
    }
}

impl Part {
    /// Name, in the words of the library.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Elements => "elements",
            Part::Codes => "codes",
            Part::BlockScales => "block scales",
            Part::OuterScales => "outer scales",
        }
    }
}

impl fmt::Display for TensorDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorDifference::Kind { a, b } => write!(f, "A is {a}\nB is {b}"),
            TensorDifference::Byte(byte) => byte.fmt(f),
        }
    }
}

impl fmt::Display for ByteDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, byte {}: {}, {}",
            self.part.name(),
            self.offset_bytes,
            at("row", &self.rows),
            at("column", &self.columns)
        )?;
        if let Some([row, column]) = self.block {
            write!(f, ", block [{row}, {column}]")?;
        }
        for (side, code) in ["A", "B"].into_iter().zip(&self.codes) {
            write!(f, "\n{side}: {code}")?;
        }
        for count in &self.counts {
            write!(f, "\n{}: {} of {} bytes differ", count.part.name(), count.differing_bytes, count.bytes)?;
        }
        Ok(())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.width_bits.div_ceil(4) as usize;
        write!(f, "0x{:0digits$x} ", self.bits)?;
        match self.value {
            Some(value) => write!(f, "({value:?})"),
            None => f.write_str("(its value is not known)"),
        }
    }
}

/// `row 3`, or `rows 0 to 127`.
fn at(name: &str, range: &Range<usize>) -> String {
    match range.len() {
        1 => format!("{name} {}", range.start),
        _ => format!("{name}s {} to {}", range.start, range.end.saturating_sub(1)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
