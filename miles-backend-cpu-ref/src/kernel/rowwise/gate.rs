//! SwiGLU: `out = silu(gate) * up`.
//!
//! Backward with `s = sigmoid(gate)`: `dup = dout * (gate * s)` and
//! `dgate = (dout * up) * (s * fma(gate, 1 - s, 1))`.

use crate::kernel::Compute;
use crate::kernel::math::{sigmoid, silu};
use crate::kernel::pack::check;

/// `out[i] = silu(gate[i]) * up[i]`.
///
/// # Panics
/// When the lengths differ.
pub fn swiglu(compute: &Compute, gate: &[f32], up: &[f32], out: &mut [f32]) {
    check("gate", gate.len(), out.len());
    check("up", up.len(), out.len());
    let isa = compute.isa();
    compute.for_row_pieces(out, 1, |first, piece| {
        let (gate, up) = (&gate[first..], &up[first..]);
        isa.run(
            #[inline(always)]
            || {
                for ((out, &gate), &up) in piece.iter_mut().zip(gate).zip(up) {
                    *out = silu(gate) * up;
                }
            },
        );
    });
}

/// Gradients of [`swiglu`], overwriting `dgate` and `dup`.
///
/// # Panics
/// When the lengths differ.
pub fn swiglu_backward(compute: &Compute, dout: &[f32], gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    check("output gradient", dout.len(), gate.len());
    check("up", up.len(), gate.len());
    check("gate gradient", dgate.len(), gate.len());
    check("up gradient", dup.len(), gate.len());
    let isa = compute.isa();
    compute.for_row_pieces(dgate, 1, |first, piece| {
        let (dout, gate, up) = (&dout[first..], &gate[first..], &up[first..]);
        isa.run(
            #[inline(always)]
            || {
                for (((dgate, &dout), &gate), &up) in piece.iter_mut().zip(dout).zip(gate).zip(up) {
                    let s = sigmoid(gate);
                    *dgate = (dout * up) * (s * gate.mul_add(1.0 - s, 1.0));
                }
            },
        );
    });
    compute.for_row_pieces(dup, 1, |first, piece| {
        let (dout, gate) = (&dout[first..], &gate[first..]);
        isa.run(
            #[inline(always)]
            || {
                for ((dup, &dout), &gate) in piece.iter_mut().zip(dout).zip(gate) {
                    *dup = dout * silu(gate);
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{assert_close, assert_same_bits, computes, numbers};

    fn run(compute: &Compute, dout: &[f32], gate: &[f32], up: &[f32]) -> [Vec<f32>; 3] {
        let (mut out, mut dgate, mut dup) = (gate.to_vec(), gate.to_vec(), gate.to_vec());
        swiglu(compute, gate, up, &mut out);
        swiglu_backward(compute, dout, gate, up, &mut dgate, &mut dup);
        [out, dgate, dup]
    }

    #[test]
    fn gate_agrees_with_double_precision_and_keeps_bits() {
        for n in [0, 1, 7, 17, 40_000] {
            let gate: Vec<f32> = numbers(1, n).iter().map(|v| v * 12.0).collect();
            let (up, dout) = (numbers(2, n), numbers(3, n));
            let want = run(&computes()[0], &dout, &gate, &up);
            let mut oracle = [Vec::new(), Vec::new(), Vec::new()];
            for i in 0..n {
                let (g, u, d) = (f64::from(gate[i]), f64::from(up[i]), f64::from(dout[i]));
                let s = 1.0 / (1.0 + (-g).exp());
                oracle[0].push(g * s * u);
                oracle[1].push(d * u * s * (1.0 + g * (1.0 - s)));
                oracle[2].push(d * g * s);
            }
            for (oracle, got) in oracle.iter().zip(&want) {
                assert_close(oracle, got, 1e-6, "gate");
            }
            for compute in computes() {
                for (want, got) in want.iter().zip(&run(&compute, &dout, &gate, &up)) {
                    assert_same_bits(want, got, "gate");
                }
            }
        }
    }
}
