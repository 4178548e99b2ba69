//! [`QuantizeCounts`]: what a quantization could not keep, in numbers.
//!
//! A weight that is not finite is an error; an activation follows the hardware rule, so what it lost has to be counted:
//!
//! | count | one for |
//! |---|---|
//! | `elements` | every element |
//! | `blocks` | every run or tile of elements with one block scale, also where it is cut short; a line or the tensor, where there are only outer scales |
//! | `saturated` | a finite element whose magnitude is beyond the largest that its block can represent |
//! | `underflowed_blocks` | a block with an element other than 0 and NaN that decodes to nothing but zeros |
//! | `non_finite` | an element that is NaN or infinite, together |
//!
//! The largest magnitude that a block can represent is that of the largest code, decoded with the block's scales. Scales
//! are the results of up to four F32 roundings, so "beyond" is by more than [`SCALE_ROUNDING`] of it: the amax that a
//! scale was made from is not beyond it for a last place. A block that can represent nothing but 0 has underflowed and
//! saturates nothing. Where even the largest code decodes to infinity, nothing is beyond it.

mod rows;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use serde::{Deserialize, Serialize};

use super::{Axis, FormatError, FormatRule, Partition, QuantizedParts, QuantizedTensor, Source, builtin_rule};

/// How far the largest magnitude of a block may be exceeded, as a part of it, before that counts: 2^-21, four roundings
/// of 2^-24 each and as much again.
pub const SCALE_ROUNDING: f32 = 1.0 / 2_097_152.0;

/// What quantizing some elements did. Counts of parts add up to those of the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizeCounts {
    /// Elements.
    pub elements: u64,
    /// Blocks.
    pub blocks: u64,
    /// Finite elements beyond the largest magnitude of their block.
    pub saturated: u64,
    /// Blocks of which nothing is left.
    pub underflowed_blocks: u64,
    /// Elements that are NaN or infinite.
    pub non_finite: u64,
}

impl QuantizeCounts {
    /// Adds the counts of other elements.
    pub fn merge(&mut self, other: &Self) {
        self.elements += other.elements;
        self.blocks += other.blocks;
        self.saturated += other.saturated;
        self.underflowed_blocks += other.underflowed_blocks;
        self.non_finite += other.non_finite;
    }

    /// Compares a source with the tensor that `rule` made of it.
    ///
    /// Row-wise copies of the built-in formats are read in one pass; any other tensor is decoded as it is and with the
    /// largest code in every place, or with each of the 256 bytes where the rule does not tell its largest code. The
    /// numbers are the same.
    ///
    /// # Errors
    /// [`FormatError::SourceLength`] when the shapes differ; whatever `rule` reports.
    pub fn of(rule: &dyn FormatRule, source: &Source<'_>, tensor: &QuantizedTensor) -> Result<Self, FormatError> {
        check_shape(source, tensor)?;
        match rows::count(source, tensor) {
            Some(counts) => Ok(counts),
            None => decoded(rule, source, tensor),
        }
    }
}

fn check_shape(source: &Source<'_>, tensor: &QuantizedTensor) -> Result<(), FormatError> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    if (source.rows(), source.cols()) == (rows, cols) {
        return Ok(());
    }
    Err(FormatError::SourceLength { tensor: source.tensor_name(), rows, cols, found: source.rows() * source.cols() })
}

/// The definition, for any rule.
fn decoded(
    rule: &dyn FormatRule,
    source: &Source<'_>,
    tensor: &QuantizedTensor,
) -> Result<QuantizeCounts, FormatError> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let (block_rows, block_cols) = block_shape(rule, tensor)?;
    let (values, decoded, largest) = (source.values(), rule.dequantize(tensor)?, largest_magnitudes(rule, tensor)?);
    let blocks_per_line = cols.div_ceil(block_cols);
    let block_count = rows.div_ceil(block_rows) * blocks_per_line;
    let mut counts =
        QuantizeCounts { elements: values.len() as u64, blocks: block_count as u64, ..QuantizeCounts::default() };
    // Whether a block has anything to lose, and whether something of it is left.
    let mut states = vec![(false, false); block_count];
    for (index, ((&x, &y), &largest)) in values.iter().zip(&decoded).zip(&largest).enumerate() {
        let (row, col) = (index / cols, index % cols);
        let state = &mut states[row / block_rows * blocks_per_line + col / block_cols];
        state.0 |= x != 0.0 && !x.is_nan();
        state.1 |= y != 0.0;
        counts.non_finite += u64::from(!x.is_finite());
        counts.saturated += u64::from(x.is_finite() && x.abs() > limit(largest));
    }
    counts.underflowed_blocks = states.iter().filter(|(had, has)| *had && !*has).count() as u64;
    Ok(counts)
}

/// The code byte of the largest magnitude: that of a built-in format, or what the rule says.
#[must_use]
pub fn largest_code(rule: &dyn FormatRule) -> Option<u8> {
    let id = rule.id();
    let builtin = || match (builtin_rule(&id), id.family()) {
        (Some(_), "nvfp4") => Some(0x77),
        (Some(_), "mxfp8" | "fp8-block" | "fp8-channel" | "fp8-tensor") => Some(0x7E),
        // The most negative one.
        (Some(_), "int8-channel") => Some(0x80),
        (Some(_), "int4-group") => Some(0x88),
        _ => None,
    };
    rule.largest_code().or_else(builtin)
}

/// The magnitude above which an element is saturated, given the largest that its block can represent.
#[inline]
fn limit(largest: f32) -> f32 {
    if largest > 0.0 { largest * (1.0 + SCALE_ROUNDING) } else { f32::INFINITY }
}

/// Rows and columns of one block in the source's orientation.
///
/// A row-wise layout of a large matrix has one scale per block; blocks of a column-wise copy are turned.
fn block_shape(rule: &dyn FormatRule, tensor: &QuantizedTensor) -> Result<(usize, usize), FormatError> {
    let spec = tensor.spec().with_axis(Axis::Row).with_partition(Partition::WHOLE);
    let layout = rule.layout(PROBE, PROBE, &spec)?;
    if layout.scale_rows * layout.scale_cols == 0 && layout.outer_len == PROBE {
        // Outer scales alone, one per line.
        return Ok(if tensor.axis() == Axis::Row { (1, PROBE) } else { (PROBE, 1) });
    }
    let (across, along) = (PROBE.div_ceil(layout.scale_rows.max(1)), PROBE.div_ceil(layout.scale_cols.max(1)));
    Ok(match tensor.axis() {
        Axis::Row => (across, along),
        Axis::Column => (along, across),
    })
}

/// For every element, the largest magnitude that a code in its place decodes to.
fn largest_magnitudes(rule: &dyn FormatRule, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
    let with_code = |code: u8| -> Result<Vec<f32>, FormatError> {
        let parts = tensor.to_parts();
        let parts = QuantizedParts { codes: vec![code; parts.codes.len()], ..parts };
        let mut values = rule.dequantize(&QuantizedTensor::from_parts(rule, None, parts)?)?;
        values.iter_mut().for_each(|value| *value = value.abs());
        Ok(values)
    };
    if let Some(code) = largest_code(rule) {
        return with_code(code);
    }
    let mut largest = vec![0.0; tensor.rows() * tensor.cols()];
    // A byte that the rule refuses is no code of it.
    for values in (0..=u8::MAX).filter_map(|code| with_code(code).ok()) {
        for (largest, value) in largest.iter_mut().zip(values).filter(|(_, value)| value.is_finite()) {
            *largest = value.max(*largest);
        }
    }
    Ok(largest)
}

/// Side of the matrix whose layout tells the block shape: a multiple of every usual block, and much longer than one.
const PROBE: usize = 4096 * 3 * 5 * 7;
