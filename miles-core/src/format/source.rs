//! [`Source`]: the high-precision values that a quantization starts from.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::rule::check_extents;
use super::{FormatError, NonFinite};
use crate::number::bf16;

/// The precision of the source values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceDtype {
    /// Every value is a BF16 value.
    Bf16,
    /// Any `f32`; also F16 sources, which are widened exactly.
    F32,
}

/// The values of a [`Source`] as they lie in memory, row-major.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum SourceValues<'a> {
    /// One `f32` each.
    F32(&'a [f32]),
    /// The two little-endian bytes of a BF16 each, at any alignment: a checkpoint's or a dense tensor's own bytes.
    Bf16(&'a [[u8; 2]]),
}

/// A borrowed row-major `[rows, cols]` tensor of high-precision values, ready to be quantized.
///
/// It can be made from high-precision values only, so codes cannot be quantized a second time:
///
/// ```compile_fail
/// # use miles_core::format::{QuantizedTensor, Source, SourceDtype};
/// fn requantize(tensor: &QuantizedTensor) {
///     let _ = Source::new(tensor.codes(), 1, 1, SourceDtype::F32, None);
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    values: SourceValues<'a>,
    rows: usize,
    cols: usize,
    dtype: SourceDtype,
    name: Option<&'a str>,
}

impl<'a> Source<'a> {
    /// Describes `values` as a row-major `[rows, cols]` tensor; `name` is used in errors.
    ///
    /// # Errors
    /// [`FormatError::SourceLength`] when there are not `rows * cols` values; [`FormatError::NotBf16`] when `dtype`
    /// is [`SourceDtype::Bf16`] and a value has more precision than that; [`FormatError::Extent`] beyond
    /// [`MAX_EXTENT`](super::MAX_EXTENT) rows or columns.
    pub fn new(
        values: &'a [f32],
        rows: usize,
        cols: usize,
        dtype: SourceDtype,
        name: Option<&'a str>,
    ) -> Result<Self, FormatError> {
        let source = Self { values: SourceValues::F32(values), rows, cols, dtype, name };
        source.check_length(values.len())?;
        if dtype == SourceDtype::Bf16
            && let Some(index) = values.iter().position(|&x| !bf16::is_exact(x))
        {
            return Err(FormatError::NotBf16 {
                tensor: source.tensor_name(),
                row: index / cols,
                column: index % cols,
                value: values[index],
            });
        }
        Ok(source)
    }

    /// Describes BF16 values, each the two bytes of its little-endian bits, as a row-major `[rows, cols]` tensor.
    ///
    /// # Errors
    /// [`FormatError::SourceLength`] when there are not `rows * cols` values.
    pub fn bf16(values: &'a [[u8; 2]], rows: usize, cols: usize, name: Option<&'a str>) -> Result<Self, FormatError> {
        let source = Self { values: SourceValues::Bf16(values), rows, cols, dtype: SourceDtype::Bf16, name };
        source.check_length(values.len())?;
        Ok(source)
    }

    /// The values as they lie in memory, row-major.
    #[must_use]
    pub const fn storage(&self) -> SourceValues<'a> {
        self.values
    }

    /// The values as `f32`, row-major; BF16 is widened exactly.
    #[must_use]
    pub fn values(&self) -> Cow<'a, [f32]> {
        match self.values {
            SourceValues::F32(values) => Cow::Borrowed(values),
            SourceValues::Bf16(values) => values.iter().map(|&pair| widen(pair)).collect(),
        }
    }

    /// The same tensor cut down to some of its rows.
    ///
    /// # Panics
    /// When `rows` reaches beyond the tensor.
    #[must_use]
    pub fn row_range(&self, rows: Range<usize>) -> Self {
        let (count, elements) = (rows.len(), rows.start * self.cols..rows.end * self.cols);
        let values = match self.values {
            SourceValues::F32(values) => SourceValues::F32(&values[elements]),
            SourceValues::Bf16(values) => SourceValues::Bf16(&values[elements]),
        };
        Self { values, rows: count, ..*self }
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// The precision before widening.
    #[must_use]
    pub const fn dtype(&self) -> SourceDtype {
        self.dtype
    }

    /// The tensor's name, where it has one.
    #[must_use]
    pub const fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// The name for an error message; `<unnamed>` where there is none.
    #[must_use]
    pub fn tensor_name(&self) -> String {
        self.name.unwrap_or("<unnamed>").to_owned()
    }

    /// Number of NaN and infinite values.
    #[must_use]
    pub fn count_non_finite(&self) -> usize {
        match self.values {
            SourceValues::F32(values) => values.iter().filter(|x| !x.is_finite()).count(),
            SourceValues::Bf16(values) => values.iter().filter(|&&pair| !widen(pair).is_finite()).count(),
        }
    }

    /// Applies the policy of `non_finite`; `block_of` maps (row, column) to the block's index within its line.
    ///
    /// # Errors
    /// [`FormatError::NonFinite`] for the first NaN or infinity in row-major order under [`NonFinite::Error`].
    pub fn check_finite(
        &self,
        non_finite: NonFinite,
        block_of: impl Fn(usize, usize) -> usize,
    ) -> Result<(), FormatError> {
        if non_finite == NonFinite::Hardware {
            return Ok(());
        }
        let first = match self.values {
            SourceValues::F32(values) => values.iter().position(|x| !x.is_finite()).map(|at| (at, values[at])),
            SourceValues::Bf16(values) => {
                values.iter().position(|&pair| !widen(pair).is_finite()).map(|at| (at, widen(values[at])))
            }
        };
        let Some((index, value)) = first else { return Ok(()) };
        let (row, column) = (index / self.cols, index % self.cols);
        Err(FormatError::NonFinite { tensor: self.tensor_name(), row, column, block: block_of(row, column), value })
    }

    fn check_length(&self, found: usize) -> Result<(), FormatError> {
        let (rows, cols) = (self.rows, self.cols);
        if rows.checked_mul(cols) == Some(found) {
            return check_extents(self.name.unwrap_or("<unnamed>"), rows, cols);
        }
        Err(FormatError::SourceLength { tensor: self.tensor_name(), rows, cols, found })
    }
}

fn widen(pair: [u8; 2]) -> f32 {
    bf16::decode(u16::from_le_bytes(pair))
}
