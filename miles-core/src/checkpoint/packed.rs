//! Experts packed into one 3-D tensor per layer, and where one expert's matrix lies in it.
//!
//! ```text
//!                  direct (transformers 5)   transposed
//! gate_up_proj     [E, 2 I, H]               [E, H, 2 I]     gate first, then up
//! down_proj        [E, H, I]                 [E, I, H]
//! ```
//!
//! The shape says which it is, unless `2 I == H` (or `I == H`). Then the other tensor of the layer decides, and if that
//! is undecided too, the layout is direct.

use super::error::CheckpointError;
use super::header::TensorInfo;
pub(super) use crate::format::Orientation;

/// One matrix within a packed tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slab {
    /// Expert.
    pub(super) expert: usize,
    /// Rows and columns of one expert's part, as stored.
    stored: [usize; 2],
    /// First row (direct) or column (transposed) of the matrix in that part.
    first: usize,
    orientation: Orientation,
}

/// The three matrices of an expert, as parts of the packed tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matrix {
    Gate,
    Up,
    Down,
}

/// The orientations of a layer's two packed tensors.
///
/// `experts`, `inner` and `hidden` are the sizes that the configuration implies.
pub(super) fn orientations(
    gate_up: (&TensorInfo, &std::path::Path),
    down: (&TensorInfo, &std::path::Path),
    [experts, inner, hidden]: [usize; 3],
) -> Result<[Orientation; 2], CheckpointError> {
    let gate_up = orientation(gate_up, [experts, 2 * inner, hidden])?;
    let down = orientation(down, [experts, hidden, inner])?;
    let default = gate_up.or(down).unwrap_or(Orientation::Direct);
    Ok([gate_up.unwrap_or(default), down.unwrap_or(default)])
}

/// `None` when the shape fits both.
fn orientation(
    (tensor, path): (&TensorInfo, &std::path::Path),
    [experts, rows, cols]: [usize; 3],
) -> Result<Option<Orientation>, CheckpointError> {
    let direct = tensor.shape == [experts, rows, cols];
    let transposed = tensor.shape == [experts, cols, rows];
    match (direct, transposed) {
        (true, true) => Ok(None),
        (true, false) => Ok(Some(Orientation::Direct)),
        (false, true) => Ok(Some(Orientation::Transposed)),
        (false, false) => Err(CheckpointError::WrongShape {
            path: path.to_owned(),
            tensor: tensor.name.clone(),
            expected: vec![experts, rows, cols],
            found: tensor.shape.clone(),
        }),
    }
}

impl Slab {
    /// Where one expert's matrix of `inner x hidden` (or `hidden x inner` for down) lies.
    pub(super) fn new(expert: usize, matrix: Matrix, orientation: Orientation, [inner, hidden]: [usize; 2]) -> Self {
        let (rows, cols) = if matrix == Matrix::Down { (hidden, inner) } else { (2 * inner, hidden) };
        let stored = match orientation {
            Orientation::Direct => [rows, cols],
            Orientation::Transposed => [cols, rows],
        };
        let first = if matrix == Matrix::Up { inner } else { 0 };
        Slab { expert, stored, first, orientation }
    }

    /// The stored bytes that hold the matrix of `shape`: offset and length.
    pub(super) fn range(&self, shape: [usize; 2], element_bytes: usize) -> (u64, usize) {
        let [rows, cols] = self.stored;
        let start = self.expert as u64 * (rows * cols) as u64;
        let (skipped, elements) = match self.orientation {
            Orientation::Direct => (self.first * cols, shape[0] * shape[1]),
            Orientation::Transposed => (0, rows * cols),
        };
        ((start + skipped as u64) * element_bytes as u64, elements * element_bytes)
    }

    /// The matrix of `shape`, row-major, from the bytes of [`Slab::range`].
    pub(super) fn matrix(&self, bytes: Vec<u8>, [rows, cols]: [usize; 2], element_bytes: usize) -> Vec<u8> {
        // Without elements, no row is walked, however many are claimed.
        if self.orientation == Orientation::Direct || bytes.is_empty() {
            return bytes;
        }
        let width = self.stored[1];
        let mut matrix = Vec::with_capacity(rows * cols * element_bytes);
        for row in 0..rows {
            for col in 0..cols {
                let at = (col * width + self.first + row) * element_bytes;
                matrix.extend_from_slice(&bytes[at..at + element_bytes]);
            }
        }
        matrix
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;

    fn info(shape: &[usize]) -> TensorInfo {
        TensorInfo { name: "t".into(), dtype: safetensors::Dtype::U8, shape: shape.to_vec(), start: 0, bytes: 0 }
    }

    fn found(gate_up: &[usize], down: &[usize], sizes: [usize; 3]) -> Result<[Orientation; 2], CheckpointError> {
        let path = Path::new("f");
        orientations((&info(gate_up), path), (&info(down), path), sizes)
    }

    #[test]
    fn shape_decides_then_the_other_tensor_then_direct() {
        use Orientation::{Direct, Transposed};
        assert_eq!(found(&[2, 6, 4], &[2, 4, 3], [2, 3, 4]).unwrap(), [Direct, Direct]);
        assert_eq!(found(&[2, 4, 6], &[2, 3, 4], [2, 3, 4]).unwrap(), [Transposed, Transposed]);
        assert_eq!(found(&[2, 4, 6], &[2, 4, 3], [2, 3, 4]).unwrap(), [Transposed, Direct]);
        assert_eq!(found(&[2, 4, 4], &[2, 2, 4], [2, 2, 4]).unwrap(), [Transposed, Transposed]);
        assert_eq!(found(&[2, 4, 4], &[2, 4, 2], [2, 2, 4]).unwrap(), [Direct, Direct]);
        assert_eq!(found(&[2, 3, 6], &[2, 3, 3], [2, 3, 3]).unwrap(), [Transposed, Transposed]);
        assert!(matches!(found(&[2, 5, 4], &[2, 4, 3], [2, 3, 4]), Err(CheckpointError::WrongShape { .. })));
    }

    #[test]
    fn both_orientations_give_the_same_matrix() {
        let (inner, hidden) = (3, 4);
        // Two experts; element (e, r, c) of the direct layout is unique.
        let direct: Vec<u8> = (0..2 * 6 * 4).collect();
        let transposed: Vec<u8> =
            (0..2).flat_map(|e| (0..4).flat_map(move |c| (0..6).map(move |r| e * 24 + r * 4 + c))).collect();
        for (matrix, shape) in [(Matrix::Gate, [3, 4]), (Matrix::Up, [3, 4])] {
            let read = |bytes: &[u8], orientation| {
                let slab = Slab::new(1, matrix, orientation, [inner, hidden]);
                let (start, length) = slab.range(shape, 1);
                slab.matrix(bytes[start as usize..start as usize + length].to_vec(), shape, 1)
            };
            let expected = read(&direct, Orientation::Direct);
            assert_eq!(expected[0], if matrix == Matrix::Gate { 24 } else { 36 });
            assert_eq!(read(&transposed, Orientation::Transposed), expected);
        }
    }
}
