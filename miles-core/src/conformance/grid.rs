//! [`Grid`]: the tensors that the suites quantize, and the specs that they quantize them by.

use std::ops::Range;

use super::Failure;
use crate::format::{
    Axis, FormatId, FormatRule, NonFinite, Operand, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype,
};
use crate::number::bf16;

/// Lengths around the block borders of the built-in formats, both sides, with 0, 1 and primes.
pub(super) const LENGTHS: [usize; 16] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 61, 127, 128, 129, 130, 254, 257];

/// Name of every tensor of the suites, as errors have to repeat it.
pub(super) const TENSOR: &str = "conformance.weight";

/// A row-major `[rows, cols]` tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid {
    pub values: Vec<f32>,
    pub rows: usize,
    pub cols: usize,
}

impl Grid {
    pub fn new(values: Vec<f32>, rows: usize, cols: usize) -> Self {
        Grid { values, rows, cols }
    }

    /// Values given by their row and column.
    pub fn from_fn(rows: usize, cols: usize, value: impl Fn(usize, usize) -> f32) -> Self {
        let values = (0..rows * cols).map(|index| value(index / cols, index % cols)).collect();
        Grid { values, rows, cols }
    }

    /// Values of both signs over 24 binades, with zeros among them; a function of the shape and `seed` alone.
    pub fn scattered(rows: usize, cols: usize, seed: u64) -> Self {
        Self::from_fn(rows, cols, |row, col| {
            let bits = mix(seed, (row * cols + col) as u64);
            let magnitude = f32::from_bits((115 + (bits >> 40) as u32 % 24) << 23);
            if bits.is_multiple_of(17) { 0.0 } else { fraction(bits) * magnitude }
        })
    }

    /// Values between -1 and 1, as the values of a weight of a matrix are spread.
    pub fn uniform(rows: usize, cols: usize, seed: u64) -> Self {
        Self::from_fn(rows, cols, |row, col| fraction(mix(seed, (row * cols + col) as u64)))
    }

    /// Each row times a power of two.
    pub fn scaled_rows(mut self, exponent: impl Fn(usize) -> i32) -> Self {
        for (row, values) in self.values.chunks_mut(self.cols.max(1)).enumerate() {
            values.iter_mut().for_each(|value| *value = libm::ldexpf(*value, exponent(row)));
        }
        self
    }

    /// Every value rounded to BF16.
    pub fn to_bf16(&self) -> Self {
        Grid { values: self.values.iter().map(|&x| bf16::round(x)).collect(), ..*self }
    }

    pub fn transposed(&self) -> Self {
        Self::from_fn(self.cols, self.rows, |row, col| self.values[col * self.cols + row])
    }

    /// The same with zeros to the right and below.
    pub fn padded(&self, rows: usize, cols: usize) -> Self {
        let inside = |row, col| row < self.rows && col < self.cols;
        Self::from_fn(rows, cols, |row, col| if inside(row, col) { self.values[row * self.cols + col] } else { 0.0 })
    }

    /// The first `rows` rows and `cols` columns.
    pub fn corner(&self, rows: usize, cols: usize) -> Self {
        Self::from_fn(rows, cols, |row, col| self.values[row * self.cols + col])
    }

    /// What a row's bytes are compared with: the row as a tensor of its own and its place there, or, for a rule that
    /// draws random bits by position, the row in its place between rows of zeros.
    pub fn alone(&self, row: usize, rule: &dyn FormatRule) -> (Self, usize) {
        if !rule.code_dependence().position {
            return (self.row(row), 0);
        }
        let mut between_zeros = Grid { values: vec![0.0; self.values.len()], ..*self };
        between_zeros.values[row * self.cols..][..self.cols]
            .copy_from_slice(&self.values[row * self.cols..][..self.cols]);
        (between_zeros, row)
    }

    /// One row as a tensor.
    pub fn row(&self, row: usize) -> Self {
        Grid { values: self.values[row * self.cols..][..self.cols].to_vec(), rows: 1, cols: self.cols }
    }

    pub fn source(&self, dtype: SourceDtype) -> Result<Source<'_>, Failure> {
        self.named(dtype, Some(TENSOR))
    }

    /// The source under another name, or under none.
    pub fn named<'a>(&'a self, dtype: SourceDtype, name: Option<&'a str>) -> Result<Source<'a>, Failure> {
        Ok(Source::new(&self.values, self.rows, self.cols, dtype, name)?)
    }

    /// The two bytes of every value as BF16, as they lie in a checkpoint.
    pub fn bf16_bytes(&self) -> Vec<[u8; 2]> {
        self.values.iter().map(|&x| bf16::encode(x).to_le_bytes()).collect()
    }

    /// What a rule makes of it: a tensor of this shape, so that what looks into its parts may count on their lengths.
    pub fn quantize(&self, rule: &dyn FormatRule, spec: &QuantizeSpec) -> Result<QuantizedTensor, Failure> {
        let check = || {
            let tensor = rule.quantize(&self.source(SourceDtype::F32)?, spec)?;
            let (found, expected) = ((tensor.rows(), tensor.cols()), (self.rows, self.cols));
            Failure::unless(found == expected, || format!("it is quantized to the shape {found:?}"))?;
            let layout = rule.layout(self.rows, self.cols, spec)?;
            let found = tensor.layout();
            Failure::unless(*found == layout, || format!("it has the layout {found:?}, not {layout:?}"))?;
            Ok(tensor)
        };
        check().map_err(|failure: Failure| failure.at(format_args!("[{}, {}]", self.rows, self.cols)))
    }

    /// Some rows and columns of it.
    pub fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
        Self::from_fn(rows.len(), cols.len(), |row, col| self.values[(rows.start + row) * self.cols + cols.start + col])
    }
}

/// What a rule decodes a tensor to: one value per element.
pub(super) fn decoded(rule: &dyn FormatRule, tensor: &QuantizedTensor) -> Result<Vec<f32>, Failure> {
    let values = rule.dequantize(tensor)?;
    let (found, expected) = (values.len(), tensor.rows() * tensor.cols());
    Failure::unless(found == expected, || {
        format!("[{}, {}] decodes to {found} values, not {expected}", tensor.rows(), tensor.cols())
    })?;
    Ok(values)
}

/// Both operands, axes and scopes, non-finite values as hardware converts them.
pub(super) fn specs(format: &FormatId) -> Vec<QuantizeSpec> {
    let bases = [QuantizeSpec::activation(format.clone()), QuantizeSpec::weight(format.clone())];
    let mut specs = Vec::new();
    for base in bases {
        for axis in [Axis::Row, Axis::Column] {
            for scope in [ScaleScope::Row, ScaleScope::Tensor] {
                specs.push(base.clone().with_axis(axis).with_scope(scope).with_non_finite(NonFinite::Hardware));
            }
        }
    }
    specs
}

/// The smallest shape from `[rows, cols]` on that the format holds, longer along the block axis only: some rules refuse
/// half a byte, or a part of a block that they rotate.
pub(super) fn fitting(
    rule: &dyn FormatRule,
    spec: &QuantizeSpec,
    (rows, cols): (usize, usize),
) -> Result<(usize, usize), Failure> {
    let longer = |more| if spec.axis == Axis::Row { (rows, cols + more) } else { (rows + more, cols) };
    let fits = |&(rows, cols): &(usize, usize)| rule.layout(rows, cols, spec).is_ok();
    let none = || Failure::new(format!("no shape from [{rows}, {cols}] to 256 more along the block axis fits"));
    (0..=256).map(longer).find(fits).ok_or_else(none)
}

/// `operand-axis-scope`, for case names.
pub(super) fn spec_name(spec: &QuantizeSpec) -> String {
    let operand = if spec.operand == Operand::Activation { "activation" } else { "weight" };
    format!("{operand}-{}-{}", spec.axis, spec.scope)
}

/// SplitMix64 of a position: well-spread bits that depend on nothing else.
pub(super) fn mix(seed: u64, index: u64) -> u64 {
    let mut bits = seed.wrapping_mul(0xA076_1D64_78BD_642F).wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Between -1 and 1.
fn fraction(bits: u64) -> f32 {
    (bits as u32 as f64 / f64::from(u32::MAX) * 2.0 - 1.0) as f32
}
