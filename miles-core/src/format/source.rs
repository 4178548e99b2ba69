//! [`Source`]: the high-precision values that a quantization starts from.

use serde::{Deserialize, Serialize};

use super::{FormatError, NonFinite};
use crate::number::bf16;

/// The precision that the source values were held in before they were widened to `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceDtype {
    /// Every value is a BF16 value.
    Bf16,
    /// Any `f32`; also F16 sources, which are widened exactly.
    F32,
}

/// A borrowed row-major `[rows, cols]` tensor of `f32` values, ready to be quantized.
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
    values: &'a [f32],
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
    /// is [`SourceDtype::Bf16`] and a value has more precision than that.
    pub fn new(
        values: &'a [f32],
        rows: usize,
        cols: usize,
        dtype: SourceDtype,
        name: Option<&'a str>,
    ) -> Result<Self, FormatError> {
        let source = Self { values, rows, cols, dtype, name };
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(FormatError::SourceLength { tensor: source.tensor_name(), rows, cols, found: values.len() });
        }
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

    /// The values, row-major.
    #[must_use]
    pub const fn values(&self) -> &'a [f32] {
        self.values
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
        self.values.iter().filter(|x| !x.is_finite()).count()
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
        match self.values.iter().position(|x| !x.is_finite()) {
            None => Ok(()),
            Some(index) => {
                let (row, column) = (index / self.cols, index % self.cols);
                Err(FormatError::NonFinite {
                    tensor: self.tensor_name(),
                    row,
                    column,
                    block: block_of(row, column),
                    value: self.values[index],
                })
            }
        }
    }
}
