//! The Hadamard rotation that spreads an outlier over its block before quantization.
//!
//! Each 16 consecutive values along the line (the reduction axis) are multiplied by `diag(sign) * H / 4`, H the 16x16
//! Sylvester matrix: `H[k][j]` is -1 where `k & j` has an odd number of set bits. The order is fixed:
//!
//! ```text
//! forward   y_j = bf16(4 * sum over k = 0..15, from +0, of H[k][j] * sign_k * (x_k / 16))
//! inverse   x_k = sign_k * 4 * sum over j = 0..15, from +0, of H[j][k] * (y_j / 16)        not rounded to BF16
//! ```
//!
//! every addition rounded to `f32`. Dividing first keeps partial sums from overflowing (and is exact but for `f32`
//! subnormals); a result beyond BF16 of finite values becomes the largest BF16 value, so that finite values stay finite. Other producers add in other orders and can differ by one
//! BF16 step where a sum is not exact; where it is exact they agree.
//!
//! H / 4 is orthogonal, so a product whose two operands are both rotated along the reduction axis is the product of the
//! operands themselves, up to the rounding of the rotated values; the operand's own values ("operand domain") are what a
//! matrix multiplication reads. A product of one rotated and one plain operand means nothing.

use super::BLOCK;
use crate::number::bf16;

/// The signs of the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hadamard {
    /// `+ + + - + - - - - - - + - + - -`: TransformerEngine's.
    Signed,
    /// All positive.
    Plain,
}

impl Hadamard {
    /// Rotates each whole block of 16 values; a part of a block at the end is left as it is.
    pub fn forward(self, line: &mut [f32]) {
        let signs = self.signs();
        for block in line.as_chunks_mut::<BLOCK>().0 {
            let finite = block.iter().all(|x| x.is_finite());
            let mut signed = *block;
            signed.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
            *block = sums(&signed).map(|sum| {
                let rounded = bf16::round(sum);
                if finite { rounded.clamp(-LARGEST_BF16, LARGEST_BF16) } else { rounded }
            });
        }
    }

    /// Rotates each whole block of 16 values back.
    pub fn inverse(self, line: &mut [f32]) {
        let signs = self.signs();
        for block in line.as_chunks_mut::<BLOCK>().0 {
            let rotated = sums(block);
            for ((x, sum), sign) in block.iter_mut().zip(rotated).zip(signs) {
                // A subtraction, because the product of a zero sum and -1 would be -0.
                *x = if sign < 0.0 { 0.0 - sum } else { sum };
            }
        }
    }

    const fn signs(self) -> [f32; BLOCK] {
        match self {
            Self::Signed => [1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0],
            Self::Plain => [1.0; BLOCK],
        }
    }
}

static MATRIX: [[f32; BLOCK]; BLOCK] = matrix();
const LARGEST_BF16: f32 = f32::from_bits(0x7F7F_0000);

/// H / 4 times `values`, each sum in ascending order of values.
fn sums(values: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut sums = [0.0; BLOCK];
    for (&value, row) in values.iter().zip(&MATRIX) {
        let sixteenth = value / BLOCK as f32;
        for (sum, sign) in sums.iter_mut().zip(row) {
            *sum += sixteenth * sign;
        }
    }
    sums.map(|sum| sum * 4.0)
}

const fn matrix() -> [[f32; BLOCK]; BLOCK] {
    let mut matrix = [[1.0; BLOCK]; BLOCK];
    let mut at = 0;
    while at < BLOCK * BLOCK {
        let (row, column) = (at / BLOCK, at % BLOCK);
        if (row & column).count_ones() % 2 == 1 {
            matrix[row][column] = -1.0;
        }
        at += 1;
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sums_come_back_exactly() {
        let block: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 - 7.0) * 4.0);
        for rotation in [Hadamard::Signed, Hadamard::Plain] {
            let mut line = block;
            rotation.forward(&mut line);
            assert_ne!(line, block);
            rotation.inverse(&mut line);
            assert_eq!(line, block);
        }
    }

    #[test]
    fn zeros_stay_positive_zeros_and_finite_values_stay_finite() {
        for rotation in [Hadamard::Signed, Hadamard::Plain] {
            let mut line = [-0.0; 2 * BLOCK];
            rotation.forward(&mut line);
            rotation.inverse(&mut line);
            assert!(line.iter().all(|x| x.to_bits() == 0));
            let mut line = rotation.signs().map(|sign| sign * 2.0_f32.powi(127));
            rotation.forward(&mut line);
            assert_eq!(line[0], LARGEST_BF16);
            assert!(line[1..].iter().all(|&x| x == 0.0));
        }
    }
}
