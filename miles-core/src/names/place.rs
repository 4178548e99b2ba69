//! [`Place`] and [`Slab`]: where one parameter lies among the stored tensors.

use std::ops::Range;

use crate::format::{Orientation, Packing};

/// Where one parameter is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The stored tensor, as an index into those that the inventory was made from.
    pub tensor: usize,
    /// The part of it that is the parameter; `None`: all of it.
    pub slab: Option<Slab>,
    /// Stored tensors with its scales, in the order in which they are stored.
    pub scales: Vec<usize>,
}

/// One matrix (or vector, as a matrix of one row) within a packed tensor: element `(row, col)` is the stored element
/// `first + row * strides[0] + col * strides[1]`, counted from the start of the tensor.
///
/// ```text
///              stored                  gate, element (r, c) of expert e
/// halves       direct     [E, 2 I, H]  e 2 I H +     r H +   c      up: + I H
///              transposed [E, H, 2 I]  e 2 I H +     r   + 2 I c    up: + I
/// interleaved  direct     [E, 2 I, H]  e 2 I H + 2   r H +   c      up: + H
///              transposed [E, H, 2 I]  e 2 I H + 2   r   + 2 I c    up: + 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    first: usize,
    strides: [usize; 2],
    shape: [usize; 2],
}

impl Slab {
    /// The `[rows, cols]` matrix of one expert. `projection` counts within the packing: gate is 0 and up is 1.
    ///
    /// The stored tensor has as many elements as all its matrices together; that many fit in `usize`.
    #[must_use]
    pub fn new(
        expert: usize,
        projection: usize,
        (orientation, packing): (Orientation, Packing),
        [rows, cols]: [usize; 2],
    ) -> Self {
        let (outputs, step, offset) = match packing {
            Packing::Single => (rows, 1, 0),
            Packing::GateUpHalves => (2 * rows, 1, projection * rows),
            Packing::GateUpInterleaved => (2 * rows, 2, projection),
        };
        let [output_stride, input_stride] = match orientation {
            Orientation::Direct => [cols, 1],
            Orientation::Transposed => [1, outputs],
        };
        let first = expert * outputs * cols + offset * output_stride;
        Slab { first, strides: [step * output_stride, input_stride], shape: [rows, cols] }
    }

    /// The bias of `values` elements of one expert in `[experts, all values]`.
    #[must_use]
    pub fn bias(expert: usize, projection: usize, packing: Packing, values: usize) -> Self {
        // A bias is the one column of a matrix with the same outputs.
        let column = Slab::new(expert, projection, (Orientation::Direct, packing), [values, 1]);
        Slab { strides: [0, column.strides[0]], shape: [1, values], ..column }
    }

    /// Rows and columns.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The stored elements from the first to the last of the matrix; others may lie between them.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        let [rows, cols] = self.shape;
        if rows == 0 || cols == 0 {
            return self.first..self.first;
        }
        let last = self.first + (rows - 1) * self.strides[0] + (cols - 1) * self.strides[1];
        self.first..last + 1
    }

    /// Whether the span holds nothing but the matrix, row by row.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let [rows, cols] = self.shape;
        (cols < 2 || self.strides[1] == 1) && (rows < 2 || self.strides[0] == cols)
    }

    /// The matrix, row-major, from the bytes of its [`span`](Self::span).
    #[must_use]
    pub fn gather(&self, span: &[u8], element_bytes: usize) -> Vec<u8> {
        let [rows, cols] = self.shape;
        if self.is_contiguous() {
            return span[..rows * cols * element_bytes].to_vec();
        }
        let mut matrix = Vec::with_capacity(rows * cols * element_bytes);
        for row in 0..rows {
            for col in 0..cols {
                let at = (row * self.strides[0] + col * self.strides[1]) * element_bytes;
                matrix.extend_from_slice(&span[at..at + element_bytes]);
            }
        }
        matrix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element `(expert, projection, row, col)` of a stack of 2 experts has its own value.
    fn value(expert: usize, projection: usize, row: usize, col: usize) -> u8 {
        (expert * 100 + projection * 50 + row * 10 + col) as u8
    }

    fn stored(orientation: Orientation, packing: Packing, [rows, cols]: [usize; 2]) -> Vec<u8> {
        let outputs = if packing == Packing::Single { rows } else { 2 * rows };
        let of = |expert, output: usize, input| match packing {
            Packing::Single => value(expert, 0, output, input),
            Packing::GateUpHalves => value(expert, output / rows, output % rows, input),
            Packing::GateUpInterleaved => value(expert, output % 2, output / 2, input),
        };
        let mut bytes = Vec::new();
        for expert in 0..2 {
            match orientation {
                Orientation::Direct => (0..outputs).for_each(|o| bytes.extend((0..cols).map(|i| of(expert, o, i)))),
                Orientation::Transposed => (0..cols).for_each(|i| bytes.extend((0..outputs).map(|o| of(expert, o, i)))),
            }
        }
        bytes
    }

    #[test]
    fn every_packing_and_orientation_gives_the_same_matrices() {
        let [rows, cols] = [3, 4];
        for orientation in [Orientation::Direct, Orientation::Transposed] {
            for packing in [Packing::Single, Packing::GateUpHalves, Packing::GateUpInterleaved] {
                let bytes = stored(orientation, packing, [rows, cols]);
                for (expert, projection) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                    if packing == Packing::Single && projection == 1 {
                        continue;
                    }
                    let slab = Slab::new(expert, projection, (orientation, packing), [rows, cols]);
                    let expected: Vec<u8> = (0..rows)
                        .flat_map(|row| (0..cols).map(move |col| value(expert, projection, row, col)))
                        .collect();
                    assert_eq!(slab.gather(&bytes[slab.span()], 1), expected, "{orientation:?} {packing:?}");
                    let in_one_piece = orientation == Orientation::Direct && packing != Packing::GateUpInterleaved;
                    assert_eq!(slab.is_contiguous(), in_one_piece);
                }
            }
        }
    }

    #[test]
    fn biases_lie_as_their_outputs_do() {
        let bytes: Vec<u8> = (0..12).collect();
        let read = |expert, projection, packing, values| {
            let slab = Slab::bias(expert, projection, packing, values);
            slab.gather(&bytes[slab.span()], 1)
        };
        assert_eq!(read(1, 0, Packing::Single, 6), [6, 7, 8, 9, 10, 11]);
        assert_eq!(read(1, 1, Packing::GateUpHalves, 3), [9, 10, 11]);
        assert_eq!(read(1, 0, Packing::GateUpInterleaved, 3), [6, 8, 10]);
        assert_eq!(read(0, 1, Packing::GateUpInterleaved, 3), [1, 3, 5]);
    }
}
