//! Experts packed into one 3-D tensor per layer: which way round. Where one expert's matrix lies is a
//! [`Slab`](crate::names::Slab).
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
use crate::format::Orientation;

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
}
