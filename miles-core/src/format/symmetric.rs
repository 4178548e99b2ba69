//! Symmetric formats: codes of any number format under one F32 scale per group, line or tensor.
//!
//! With `a` the largest magnitude that a scale covers and `R` half the range of the codes, every operation an IEEE
//! `f32` one:
//!
//! ```text
//! scale = min(a, f32::MAX) / R      2^-23 if that is 0
//! q_i   = convert(x_i / scale)      divided, not multiplied by a reciprocal
//! y_i   = q_i * scale
//! ```
//!
//! | format | codes | R | one scale for |
//! |---|---|---|---|
//! | `fp8-channel` | E4M3 | 448 | a line: an output channel of a weight, a token of an activation |
//! | `fp8-tensor` | E4M3 | 448 | what the spec's scope says: a line, a tensor, a group of tensors |
//! | `int8-channel` | INT8 | 127.5 | a line |
//! | `int4-group/32`, `/64`, `/128` | INT4 | 7.5 | 32, 64 or 128 elements of a line |
//!
//! This is the arithmetic of compressed-tensors (`calculate_qparams` and `_quantize`, symmetric, in F32), whose
//! checkpoints vLLM reads. R is half of the whole range (448 + 448, 127 + 128, 7 + 8), so the largest positive value of
//! an integer format saturates. vLLM's own kernels for activations differ: their scale is at least 1/(448 * 512), and
//! INT8 has R = 127. torchao derives the encode scale `448 / max(a, 1e-12)` and multiplies. compressed-tensors stores
//! INT4 as `q + 8`, eight to an `int32`; here a code is two's complement, so that zeros are zero bytes.
//!
//! With [`NonFinite::Hardware`](super::NonFinite) infinities take the end of the range and do not spread into the scale;
//! NaN becomes the NaN code of E4M3 and the integer 0. The column copy is the quantization of the transpose, stored
//! transposed. Lines of any length work: a last group may be short, and INT4 lines of odd length end in half a byte of
//! zeros. Where the matrix is cut along its lines, each shard of a line has a scale of its own.

mod grid;

use super::lines::{for_each_column, for_each_row, transpose};
use super::rule::{check_format, check_joint_widths};
use super::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind,
    ScaleScope, Source, TensorLayout, abs_max,
};
use crate::number::{e4m3, integer};
use grid::Grid;

/// The number format of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// E4M3, one byte.
    E4m3,
    /// INT8, one byte.
    Int8,
    /// INT4, two per byte, the even element in the low nibble.
    Int4,
}

/// What one scale covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// That many consecutive elements of a line.
    Group(usize),
    /// A line.
    Line,
    /// What the scope says, as an outer scale.
    Scope,
}

/// A symmetric rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Symmetric {
    name: &'static str,
    element: Element,
    extent: Extent,
}

impl Element {
    /// The scale that brings magnitudes up to `amax` into the range of the codes.
    #[inline]
    #[must_use]
    pub const fn scale(self, amax: f32) -> f32 {
        let half_range = match self {
            Self::E4m3 => e4m3::MAX,
            Self::Int8 => (integer::INT8_MAX - integer::INT8_MIN) / 2.0,
            Self::Int4 => (integer::INT4_MAX - integer::INT4_MIN) / 2.0,
        };
        let scale = amax.min(f32::MAX) / half_range;
        if scale == 0.0 { f32::EPSILON } else { scale }
    }

    /// Bytes of `count` codes.
    #[must_use]
    pub const fn bytes(self, count: usize) -> usize {
        match self {
            Self::E4m3 | Self::Int8 => count,
            Self::Int4 => count.div_ceil(2),
        }
    }

    /// Writes the codes of `values` under one scale.
    ///
    /// # Panics
    /// When `codes` has not exactly the bytes that `values` needs.
    pub fn encode(self, values: &[f32], scale: f32, codes: &mut [u8]) {
        assert_eq!(codes.len(), self.bytes(values.len()), "one code per value");
        let int4 = |x: &f32| integer::encode_int4(x / scale);
        match self {
            Self::E4m3 => codes.iter_mut().zip(values).for_each(|(code, &x)| *code = e4m3::encode(x / scale)),
            Self::Int8 => codes.iter_mut().zip(values).for_each(|(code, &x)| *code = integer::encode_int8(x / scale)),
            Self::Int4 => codes.iter_mut().zip(values.chunks(2)).for_each(|(byte, pair)| {
                *byte = int4(&pair[0]) | pair.get(1).map_or(0, int4) << 4;
            }),
        }
    }

    /// The value of the code at `index`.
    #[inline]
    fn decode(self, codes: &[u8], index: usize) -> f32 {
        match self {
            Self::E4m3 => e4m3::decode(codes[index]),
            Self::Int8 => integer::decode_int8(codes[index]),
            Self::Int4 => integer::decode_int4(codes[index / 2] >> (index % 2 * 4)),
        }
    }
}

impl Symmetric {
    /// The format `fp8-channel`.
    pub const FP8_CHANNEL: Self = Self { name: "fp8-channel", element: Element::E4m3, extent: Extent::Line };
    /// The format `fp8-tensor`.
    pub const FP8_TENSOR: Self = Self { name: "fp8-tensor", element: Element::E4m3, extent: Extent::Scope };
    /// The format `int8-channel`.
    pub const INT8_CHANNEL: Self = Self { name: "int8-channel", element: Element::Int8, extent: Extent::Line };
    /// The format `int4-group/32`.
    pub const INT4_GROUP_32: Self = Self::int4_group("int4-group/32", 32);
    /// The format `int4-group/64`.
    pub const INT4_GROUP_64: Self = Self::int4_group("int4-group/64", 64);
    /// The format `int4-group/128`.
    pub const INT4_GROUP_128: Self = Self::int4_group("int4-group/128", 128);

    const fn int4_group(name: &'static str, group: usize) -> Self {
        Self { name, element: Element::Int4, extent: Extent::Group(group) }
    }

    /// The number format of codes.
    #[must_use]
    pub const fn element(&self) -> Element {
        self.element
    }

    /// What one scale covers.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Quantizes one whole line: its codes, and one scale per started group (one in all, unless the extent is a group).
    ///
    /// # Panics
    /// When `codes` or `scales` has not exactly the length that `values` needs.
    pub fn quantize_row(&self, values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        let group = match self.extent {
            Extent::Group(group) => group,
            Extent::Line | Extent::Scope => values.len().max(1),
        };
        assert_eq!(scales.len(), values.len().div_ceil(group), "one scale per group");
        assert_eq!(codes.len(), self.element.bytes(values.len()), "one code per value");
        let groups = values.chunks(group).zip(codes.chunks_mut(self.element.bytes(group)));
        for ((values, codes), scale) in groups.zip(scales) {
            *scale = self.element.scale(abs_max(values));
            self.element.encode(values, *scale, codes);
        }
    }

    fn grid(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Grid {
        Grid::new(self.extent, (rows, cols), spec.axis, spec.scope, spec.partition)
    }

    /// Largest magnitudes of everything that has a scale of its own.
    fn maxima(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Vec<f32> {
        let grid = self.grid(source.rows(), source.cols(), spec);
        let mut maxima = vec![0.0_f32; grid.scales()];
        for_each_line(source, spec.axis, |line, values| {
            for (segment, values) in values.chunks(grid.segment()).enumerate() {
                let largest = &mut maxima[grid.index(line, segment)];
                *largest = largest.max(abs_max(values));
            }
        });
        maxima
    }

    fn quantize_with(
        &self,
        source: &Source<'_>,
        spec: &QuantizeSpec,
        maxima: &[f32],
    ) -> Result<QuantizedTensor, FormatError> {
        let grid = self.grid(source.rows(), source.cols(), spec);
        let scales: Vec<f32> = maxima.iter().map(|&amax| self.element.scale(amax)).collect();
        let line_bytes = self.element.bytes(grid.length());
        let mut codes = vec![0; grid.lines() * line_bytes];
        for_each_line(source, spec.axis, |line, values| {
            let codes = codes[line * line_bytes..][..line_bytes].chunks_mut(self.element.bytes(grid.segment()));
            for (segment, (values, codes)) in values.chunks(grid.segment()).zip(codes).enumerate() {
                self.element.encode(values, scales[grid.index(line, segment)], codes);
            }
        });
        let (scales, outer) = match self.extent {
            Extent::Scope => (Vec::new(), scales),
            Extent::Group(_) | Extent::Line => (scales, Vec::new()),
        };
        let parts = QuantizedParts { outer, ..QuantizedParts::new(source, spec, codes, BlockScales::F32(scales)) };
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    /// Refuses what [`FormatRule::quantize`] refuses, before any work is done.
    fn check(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<(), FormatError> {
        self.layout(source.rows(), source.cols(), spec)?;
        let segment = self.grid(source.rows(), source.cols(), spec).segment();
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            Axis::Row => column / segment,
            Axis::Column => row / segment,
        })
    }
}

impl FormatRule for Symmetric {
    fn id(&self) -> FormatId {
        FormatId::builtin(self.name)
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        check_format(&format, &spec.format)?;
        let block = match self.extent {
            Extent::Group(group) => group,
            Extent::Line | Extent::Scope => 1,
        };
        let block = if spec.axis == Axis::Row { (1, block) } else { (block, 1) };
        spec.partition.check(&format, (rows, cols), block)?;
        let grid = self.grid(rows, cols, spec);
        let Some(codes_bytes) = grid.lines().checked_mul(self.element.bytes(grid.length())) else {
            return Err(FormatError::TooLarge { format, rows, cols });
        };
        let (scale_rows, scale_cols, outer_len) = match self.extent {
            Extent::Group(_) | Extent::Line => (grid.lines(), grid.segments(), 0),
            Extent::Scope if spec.scope == ScaleScope::Block => {
                let why = "its only scale is an outer one";
                return Err(FormatError::Scope { format, scope: spec.scope, why });
            }
            Extent::Scope => (0, 0, grid.scales()),
        };
        Ok(TensorLayout { codes_bytes, scale_kind: ScaleKind::F32, scale_rows, scale_cols, outer_len, amax_len: 0 })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        self.check(source, spec)?;
        self.quantize_with(source, spec, &self.maxima(source, spec))
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        if self.extent != Extent::Scope || spec.scope == ScaleScope::Row {
            return sources.iter().map(|source| self.quantize(source, spec)).collect();
        }
        sources.iter().try_for_each(|source| self.check(source, spec))?;
        let mut shared: Vec<f32> = Vec::new();
        for maxima in sources.iter().map(|source| self.maxima(source, spec)) {
            shared.resize(maxima.len(), 0.0);
            shared.iter_mut().zip(maxima).for_each(|(shared, amax)| *shared = shared.max(amax));
        }
        sources.iter().map(|source| self.quantize_with(source, spec, &shared)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        check_format(&self.id(), tensor.format())?;
        let shape = (tensor.rows(), tensor.cols());
        let grid = Grid::new(self.extent, shape, tensor.axis(), tensor.scope(), tensor.partition());
        let scales = match self.extent {
            Extent::Scope => tensor.outer(),
            Extent::Group(_) | Extent::Line => tensor.scales().as_f32().unwrap_or_default(),
        };
        let line_bytes = self.element.bytes(grid.length());
        let mut values = Vec::with_capacity(grid.lines() * grid.length());
        for (line, codes) in tensor.codes().chunks_exact(line_bytes.max(1)).enumerate() {
            let scale = |at: usize| scales[grid.index(line, at / grid.segment())];
            values.extend((0..grid.length()).map(|at| self.element.decode(codes, at) * scale(at)));
        }
        Ok(match tensor.axis() {
            Axis::Row => values,
            Axis::Column => transpose(&values, grid.lines(), grid.length()),
        })
    }
}

pub(super) const RULES: &[&dyn FormatRule] = &[
    &Symmetric::FP8_CHANNEL,
    &Symmetric::FP8_TENSOR,
    &Symmetric::INT8_CHANNEL,
    &Symmetric::INT4_GROUP_32,
    &Symmetric::INT4_GROUP_64,
    &Symmetric::INT4_GROUP_128,
];

fn for_each_line(source: &Source<'_>, axis: Axis, visit: impl FnMut(usize, &[f32])) {
    let values = source.values();
    match axis {
        Axis::Row => for_each_row(&values, source.cols(), visit),
        Axis::Column => for_each_column(&values, source.rows(), source.cols(), visit),
    }
}
