//! [`ExpertStack`]: the expert matrices of one layer as a quantizer sees them, however they are stored.
//!
//! Checkpoints and trainers keep experts as separate matrices or stacked in 3-D tensors, in two orientations, with gate
//! and up apart or packed. What a matrix is quantized to must not depend on that, so this is the one place that takes a
//! stack apart and decides which matrices share an outer scale:
//!
//! | scope | quantized together |
//! |---|---|
//! | `Block`, `Row` | nothing: each matrix alone, with scales per block or row |
//! | `Expert` | nothing: each matrix alone |
//! | `Group` | the projections of one expert (gate and up) |
//! | `Tensor` | all experts of one projection |
//!
//! A *projection* is gate, up or down: one matrix `[out, in]` per expert. With `Tensor`, gate and up have an outer scale
//! each even where one stored tensor packs both.
//!
//! ```text
//!               one projection        gate and up, halves       gate and up, interleaved
//! direct        [experts, out, in]    [experts, 2 out, in]      rows gate 0, up 0, gate 1, up 1, ..
//! transposed    [experts, in, out]    [experts, in, 2 out]      columns likewise
//! ```

use std::borrow::Cow;

use super::{FormatError, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype, SourceValues};

/// Which of the two stored dimensions of an expert's matrix is the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// `[experts, out, in]`.
    Direct,
    /// `[experts, in, out]`.
    Transposed,
}

/// The projections that a stacked tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// One.
    Single,
    /// Gate in the first half of the output dimension, up in the second.
    GateUpHalves,
    /// Gate in the even places of the output dimension, up in the odd ones.
    GateUpInterleaved,
}

/// A 3-D tensor that holds a matrix per expert.
#[derive(Clone, Copy, Debug)]
pub struct StackedTensor<'a> {
    values: SourceValues<'a>,
    experts: usize,
    /// Rows and columns of one expert's stored matrix, all projections included, output first.
    stored: [usize; 2],
    dtype: SourceDtype,
    orientation: Orientation,
    packing: Packing,
    name: Option<&'a str>,
}

/// The matrices of all experts of a layer that one product reads side by side: gate and up, or down alone.
#[derive(Clone, Debug)]
pub struct ExpertStack<'a> {
    /// By projection, then expert.
    places: Vec<Vec<Place<'a>>>,
}

/// The values of one expert's matrix of one projection, `[out, in]`.
#[derive(Clone, Debug)]
pub struct ExpertMatrix<'a> {
    values: MatrixValues<'a>,
    rows: usize,
    cols: usize,
    dtype: SourceDtype,
    name: Cow<'a, str>,
}

#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Apart(Source<'a>),
    Stacked { tensor: StackedTensor<'a>, expert: usize, part: usize },
}

#[derive(Clone, Debug)]
enum MatrixValues<'a> {
    F32(Cow<'a, [f32]>),
    Bf16(Cow<'a, [[u8; 2]]>),
}

impl<'a> StackedTensor<'a> {
    /// Describes `values` as a stack of `shape`, which is the stored one: `[experts, out, in]` or `[experts, in, out]`
    /// by `orientation`, with both projections in `out` where `packing` packs two. `name` is used in errors.
    ///
    /// # Errors
    /// [`FormatError::StackShape`] when `shape` has another number of values, or an odd output dimension is to hold gate
    /// and up.
    pub fn new(
        values: SourceValues<'a>,
        shape: [usize; 3],
        dtype: SourceDtype,
        (orientation, packing): (Orientation, Packing),
        name: Option<&'a str>,
    ) -> Result<Self, FormatError> {
        let [experts, first, second] = shape;
        let found = match values {
            SourceValues::F32(values) => values.len(),
            SourceValues::Bf16(values) => values.len(),
        };
        let refused = |why| FormatError::StackShape { tensor: name.unwrap_or("<unnamed>").to_owned(), shape, why };
        let expected = experts.checked_mul(first).and_then(|product| product.checked_mul(second));
        if expected != Some(found) {
            return Err(refused("it has another number of values"));
        }
        let stored = match orientation {
            Orientation::Direct => [first, second],
            Orientation::Transposed => [second, first],
        };
        if packing != Packing::Single && stored[0] % 2 != 0 {
            return Err(refused("an odd output dimension cannot hold gate and up"));
        }
        Ok(Self { values, experts, stored, dtype, orientation, packing, name })
    }

    fn projections(&self) -> usize {
        if self.packing == Packing::Single { 1 } else { 2 }
    }

    fn matrix(&self, expert: usize, part: usize) -> ExpertMatrix<'a> {
        let values = match self.values {
            SourceValues::F32(values) => MatrixValues::F32(self.cut(values, expert, part)),
            SourceValues::Bf16(values) => MatrixValues::Bf16(self.cut(values, expert, part)),
        };
        let [rows, cols] = [self.stored[0] / self.projections(), self.stored[1]];
        let name = format!("{} (expert {expert}, projection {part})", self.name.unwrap_or("<unnamed>"));
        ExpertMatrix { values, rows, cols, dtype: self.dtype, name: Cow::Owned(name) }
    }

    /// The elements of one matrix, row-major `[out, in]`; borrowed where they lie like that already.
    fn cut<T: Copy>(&self, values: &'a [T], expert: usize, part: usize) -> Cow<'a, [T]> {
        let [out, cols] = self.stored;
        let rows = out / self.projections();
        let values = &values[expert * out * cols..][..out * cols];
        let stored_row = |row| match self.packing {
            Packing::Single | Packing::GateUpHalves => part * rows + row,
            Packing::GateUpInterleaved => 2 * row + part,
        };
        match (self.orientation, self.packing) {
            // No row is walked, however many are claimed.
            _ if values.is_empty() => Cow::Borrowed(values),
            (Orientation::Direct, Packing::Single | Packing::GateUpHalves) => {
                Cow::Borrowed(&values[part * rows * cols..][..rows * cols])
            }
            (Orientation::Direct, Packing::GateUpInterleaved) => {
                (0..rows).flat_map(|row| &values[stored_row(row) * cols..][..cols]).copied().collect()
            }
            (Orientation::Transposed, _) => {
                (0..rows).flat_map(|row| (0..cols).map(move |col| values[col * out + stored_row(row)])).collect()
            }
        }
    }
}

impl<'a> ExpertStack<'a> {
    /// Matrices stored apart: for each projection one `[out, in]` source per expert.
    ///
    /// # Errors
    /// [`FormatError::ExpertCount`] when the projections have different numbers of experts.
    pub fn apart(projections: &[&[Source<'a>]]) -> Result<Self, FormatError> {
        let places = projections.iter().map(|experts| experts.iter().copied().map(Place::Apart).collect()).collect();
        Self::new(places)
    }

    /// Matrices in stacked tensors, in the order of their projections: `[gate_up]`, `[gate, up]` or `[down]`.
    ///
    /// # Errors
    /// As [`apart`](Self::apart).
    pub fn stacked(tensors: &[StackedTensor<'a>]) -> Result<Self, FormatError> {
        let parts = tensors.iter().flat_map(|tensor| (0..tensor.projections()).map(move |part| (*tensor, part)));
        let places = parts
            .map(|(tensor, part)| {
                (0..tensor.experts).map(|expert| Place::Stacked { tensor, expert, part }).collect::<Vec<_>>()
            })
            .collect();
        Self::new(places)
    }

    fn new(places: Vec<Vec<Place<'a>>>) -> Result<Self, FormatError> {
        let expected = places.first().map_or(0, Vec::len);
        match places.iter().position(|experts| experts.len() != expected) {
            None => Ok(Self { places }),
            Some(projection) => Err(FormatError::ExpertCount { projection, expected, found: places[projection].len() }),
        }
    }

    /// Number of experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.places.first().map_or(0, Vec::len)
    }

    /// Number of projections.
    #[must_use]
    pub fn projections(&self) -> usize {
        self.places.len()
    }

    /// One expert's matrix of one projection.
    ///
    /// # Panics
    /// When there is no such projection or expert.
    #[must_use]
    pub fn matrix(&self, projection: usize, expert: usize) -> ExpertMatrix<'a> {
        match &self.places[projection][expert] {
            Place::Apart(source) => ExpertMatrix {
                values: match source.storage() {
                    SourceValues::F32(values) => MatrixValues::F32(Cow::Borrowed(values)),
                    SourceValues::Bf16(values) => MatrixValues::Bf16(Cow::Borrowed(values)),
                },
                rows: source.rows(),
                cols: source.cols(),
                dtype: source.dtype(),
                name: Cow::Borrowed(source.name().unwrap_or("<unnamed>")),
            },
            Place::Stacked { tensor, expert, part } => tensor.matrix(*expert, *part),
        }
    }

    /// Quantizes every matrix, by projection, then expert. `quantize` is called with the matrices that share an outer
    /// scale by `spec.scope`, as [`FormatRule::quantize_joint`](super::FormatRule::quantize_joint) or a backend's
    /// quantizer takes them.
    ///
    /// # Errors
    /// What `quantize` says; [`FormatError::JointResults`] when it returns another number of tensors than it was given.
    pub fn quantize<E: From<FormatError>>(
        &self,
        spec: &QuantizeSpec,
        mut quantize: impl FnMut(&[Source<'_>], &QuantizeSpec) -> Result<Vec<QuantizedTensor>, E>,
    ) -> Result<Vec<Vec<QuantizedTensor>>, E> {
        let (projections, experts) = (self.projections(), self.experts());
        let mut made: Vec<Vec<Option<QuantizedTensor>>> = vec![vec![None; experts]; projections];
        for group in self.groups(spec.scope) {
            let matrices: Vec<_> = group.iter().map(|&(projection, expert)| self.matrix(projection, expert)).collect();
            let sources = matrices.iter().map(ExpertMatrix::source).collect::<Result<Vec<_>, FormatError>>()?;
            let tensors = quantize(&sources, spec)?;
            if tensors.len() != group.len() {
                return Err(FormatError::JointResults { expected: group.len(), found: tensors.len() }.into());
            }
            for (&(projection, expert), tensor) in group.iter().zip(tensors) {
                made[projection][expert] = Some(tensor);
            }
        }
        Ok(made.into_iter().map(|experts| experts.into_iter().flatten().collect()).collect())
    }

    /// The (projection, expert) pairs that are quantized together; every pair is in one group.
    fn groups(&self, scope: ScaleScope) -> Vec<Vec<(usize, usize)>> {
        let (projections, experts) = (0..self.projections(), 0..self.experts());
        match scope {
            ScaleScope::Block | ScaleScope::Row | ScaleScope::Expert => projections
                .flat_map(|projection| experts.clone().map(move |expert| vec![(projection, expert)]))
                .collect(),
            ScaleScope::Group => {
                experts.map(|expert| projections.clone().map(|projection| (projection, expert)).collect()).collect()
            }
            ScaleScope::Tensor if self.experts() == 0 => Vec::new(),
            ScaleScope::Tensor => {
                projections.map(|projection| experts.clone().map(|expert| (projection, expert)).collect()).collect()
            }
        }
    }
}

impl ExpertMatrix<'_> {
    /// The matrix as something to quantize.
    ///
    /// # Errors
    /// [`FormatError::NotBf16`] when F32 values declared as BF16 have more precision than that.
    pub fn source(&self) -> Result<Source<'_>, FormatError> {
        match &self.values {
            MatrixValues::F32(values) => Source::new(values, self.rows, self.cols, self.dtype, Some(&self.name)),
            MatrixValues::Bf16(values) => Source::bf16(values, self.rows, self.cols, Some(&self.name)),
        }
    }
}
