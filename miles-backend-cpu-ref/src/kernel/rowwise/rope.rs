//! Rotary position embedding with given cosine and sine tables.
//!
//! A pair (a, b) of one head turns by the angle of its row: `a' = fma(a, cos, -(b * sin))`, `b' = fma(b, cos, a * sin)`. The
//! gradient turns back: `da = fma(da', cos, db' * sin)`, `db = fma(db', cos, -(da' * sin))`.

use crate::kernel::Compute;
use crate::kernel::pack::check;

/// Which elements of the rotated part make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// i with i + half ("neox").
    HalfSplit,
    /// 2i with 2i + 1.
    Interleaved,
}

/// Where the rotated part of each head lies in a row `[heads, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// First rotated element of a head.
    pub offset: usize,
    /// Rotated elements of a head, even.
    pub rotary_dim: usize,
    /// The pairs.
    pub pairing: Pairing,
}

/// Rotates `rows` `[rows, heads, head_dim]` in place; `cos` and `sin` are `[rows, rotary_dim / 2]`.
///
/// # Panics
/// When a length differs from the shape.
pub fn rope(compute: &Compute, rotation: &Rotation, cos: &[f32], sin: &[f32], rows: &mut [f32]) {
    rotate::<false>(compute, rotation, cos, sin, rows);
}

/// Turns a gradient of [`rope`]'s output into one of its input, in place.
///
/// # Panics
/// When a length differs from the shape.
pub fn rope_backward(compute: &Compute, rotation: &Rotation, cos: &[f32], sin: &[f32], rows: &mut [f32]) {
    rotate::<true>(compute, rotation, cos, sin, rows);
}

fn rotate<const BACK: bool>(compute: &Compute, rotation: &Rotation, cos: &[f32], sin: &[f32], rows: &mut [f32]) {
    let Rotation { heads, head_dim, offset, rotary_dim, .. } = *rotation;
    assert!(rotary_dim.is_multiple_of(2) && offset + rotary_dim <= head_dim, "rotated part lies outside the head");
    let (cols, half) = (heads * head_dim, rotary_dim / 2);
    if cols == 0 || half == 0 {
        return;
    }
    let count = rows.len() / cols;
    check("rotated rows", rows.len(), count * cols);
    check("cosines", cos.len(), count * half);
    check("sines", sin.len(), count * half);
    let isa = compute.isa();
    compute.for_row_pieces(rows, cols, |first_row, piece| {
        for (i, row) in piece.chunks_exact_mut(cols).enumerate() {
            let at = (first_row + i) * half;
            let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
            isa.run(
                #[inline(always)]
                || {
                    for head in row.chunks_exact_mut(head_dim) {
                        rotate_head::<BACK>(&mut head[offset..offset + rotary_dim], cos, sin, rotation.pairing);
                    }
                },
            );
        }
    });
}

#[inline(always)]
fn rotate_head<const BACK: bool>(part: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    match pairing {
        Pairing::HalfSplit => {
            let (first, second) = part.split_at_mut(cos.len());
            for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = turn::<BACK>(*a, *b, cos, sin);
            }
        }
        Pairing::Interleaved => {
            for ((pair, &cos), &sin) in part.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = turn::<BACK>(pair[0], pair[1], cos, sin);
            }
        }
    }
}

#[inline(always)]
fn turn<const BACK: bool>(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    if BACK {
        (a.mul_add(cos, b * sin), b.mul_add(cos, -(a * sin)))
    } else {
        (a.mul_add(cos, -(b * sin)), b.mul_add(cos, a * sin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{assert_close, assert_same_bits, computes, numbers};

    const ROTATIONS: [Rotation; 3] = [
        Rotation { heads: 9, head_dim: 64, offset: 0, rotary_dim: 64, pairing: Pairing::HalfSplit },
        Rotation { heads: 2, head_dim: 13, offset: 3, rotary_dim: 10, pairing: Pairing::Interleaved },
        Rotation { heads: 3, head_dim: 12, offset: 0, rotary_dim: 6, pairing: Pairing::HalfSplit },
    ];

    #[test]
    fn rotation_follows_its_angles_and_the_gradient_turns_back() {
        for rotation in &ROTATIONS {
            let (rows, half) = (40, rotation.rotary_dim / 2);
            let cols = rotation.heads * rotation.head_dim;
            let start = numbers(1, rows * cols);
            let angles: Vec<f64> = numbers(2, rows * half).iter().map(|&v| f64::from(v) * 7.0).collect();
            let cos: Vec<f32> = angles.iter().map(|a| a.cos() as f32).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin() as f32).collect();
            let mut oracle: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
            for row in 0..rows {
                for head in 0..rotation.heads {
                    for i in 0..half {
                        let base = row * cols + head * rotation.head_dim + rotation.offset;
                        let (a, b) = match rotation.pairing {
                            Pairing::HalfSplit => (base + i, base + i + half),
                            Pairing::Interleaved => (base + 2 * i, base + 2 * i + 1),
                        };
                        let (s, c) = angles[row * half + i].sin_cos();
                        (oracle[a], oracle[b]) = (oracle[a] * c - oracle[b] * s, oracle[b] * c + oracle[a] * s);
                    }
                }
            }
            let mut want = start.clone();
            rope(&computes()[0], rotation, &cos, &sin, &mut want);
            assert_close(&oracle, &want, 1e-6, "oracle");
            for compute in computes() {
                let mut turned = start.clone();
                rope(&compute, rotation, &cos, &sin, &mut turned);
                assert_same_bits(&want, &turned, "batch");
                let mut alone = start[..cols].to_vec();
                rope(&compute, rotation, &cos[..half], &sin[..half], &mut alone);
                assert_same_bits(&want[..cols], &alone, "first row alone");
                rope_backward(&compute, rotation, &cos, &sin, &mut turned);
                let start: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
                assert_close(&start, &turned, 1e-6, "a rotation's gradient is its inverse");
            }
        }
    }
}
