//! A product in stored form with its naive result: what the tests of [`super`] compare with.

use std::ops::Range;

use super::super::{Activations, linear};
use crate::kernel::Compute;
use crate::kernel::decode::{bf16, e2m1_doubled, e4m3, e8m0};
use crate::kernel::pack::PackedWeight;
use crate::kernel::testing::{assert_same_bits, bytes, computes, numbers, words};

/// One product: operands in stored form, and the naive result bit for bit.
pub struct Case {
    pub x: Operand,
    pub w: Operand,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

pub enum Operand {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Mxfp8 { codes: Vec<u8>, scales: Vec<u8> },
    Nvfp4 { codes: Vec<u8>, scales: Vec<u8>, outer: Vec<f32> },
    Fp8 { codes: Vec<u8>, scales: Vec<f32>, scale_rows: usize },
}

impl Operand {
    pub fn activations(&self, k: usize, rows: Range<usize>) -> Activations<'_> {
        let cut = |per_row: usize| rows.start * per_row..rows.end * per_row;
        match self {
            Operand::F32(values) => Activations::Values(&values[cut(k)]),
            Operand::Mxfp8 { codes, scales } => {
                Activations::Mxfp8 { codes: &codes[cut(k)], scales: &scales[cut(k.div_ceil(32))] }
            }
            Operand::Nvfp4 { codes, scales, outer } => Activations::Nvfp4 {
                codes: &codes[cut(k.div_ceil(2))],
                scales: &scales[cut(k.div_ceil(16))],
                token_scales: &outer[rows.clone()],
            },
            Operand::Fp8 { codes, scales, .. } => {
                Activations::Fp8Block { codes: &codes[cut(k)], scales: &scales[cut(k.div_ceil(128))] }
            }
            Operand::Bf16(_) => unreachable!("activations are values"),
        }
    }

    pub fn pack(&self, compute: &Compute, n: usize, k: usize) -> PackedWeight {
        match self {
            Operand::F32(values) => PackedWeight::from_f32(compute, values, n, k),
            Operand::Bf16(bits) => PackedWeight::from_bf16(compute, bits, n, k),
            Operand::Mxfp8 { codes, scales } => PackedWeight::from_mxfp8(compute, codes, scales, n, k),
            Operand::Nvfp4 { codes, scales, outer } => PackedWeight::from_nvfp4(compute, codes, scales, outer[0], n, k),
            Operand::Fp8 { codes, scales, scale_rows } => {
                PackedWeight::from_fp8_block(compute, codes, scales, *scale_rows, n, k)
            }
        }
    }

    /// The bare code value and the block scale of element `[row, i]`.
    fn parts(&self, row: usize, i: usize, k: usize) -> (f32, f32) {
        match self {
            Operand::F32(values) => (values[row * k + i], 1.0),
            Operand::Bf16(bits) => (bf16(bits[row * k + i]), 1.0),
            Operand::Mxfp8 { codes, scales } => (e4m3(codes[row * k + i]), e8m0(scales[row * k.div_ceil(32) + i / 32])),
            Operand::Nvfp4 { codes, scales, .. } => {
                let byte = codes[row * k.div_ceil(2) + i / 2];
                let code = if i.is_multiple_of(2) { byte } else { byte >> 4 };
                (f32::from(e2m1_doubled(code)) * 0.5, e4m3(scales[row * k.div_ceil(16) + i / 16]))
            }
            Operand::Fp8 { codes, scales, scale_rows } => {
                (e4m3(codes[row * k + i]), scales[row / scale_rows * k.div_ceil(128) + i / 128])
            }
        }
    }
}

impl Case {
    pub fn naive(&self) -> Vec<f32> {
        let mut out = Vec::new();
        for i in 0..self.m {
            for j in 0..self.n {
                out.push(self.element(i, j));
            }
        }
        out
    }

    /// The definition of the module, one multiplication after another.
    fn element(&self, i: usize, j: usize) -> f32 {
        let block = match self.w {
            Operand::Nvfp4 { .. } => 16,
            Operand::Fp8 { .. } => 128,
            _ => usize::MAX,
        };
        let mut acc = 0.0f32;
        let mut start = 0;
        while start < self.k {
            let end = self.k.min(start.saturating_add(block));
            let mut partial = 0.0f32;
            for kk in start..end {
                let ((a, a_scale), (b, b_scale)) = (self.x.parts(i, kk, self.k), self.w.parts(j, kk, self.k));
                if block == usize::MAX {
                    acc = (a * a_scale).mul_add(b * b_scale, acc);
                } else {
                    partial = a.mul_add(b, partial);
                }
            }
            if block != usize::MAX {
                let scale = self.x.parts(i, start, self.k).1 * self.w.parts(j, start, self.k).1;
                acc = partial.mul_add(scale, acc);
            }
            start = end;
        }
        match (&self.x, &self.w) {
            (Operand::Nvfp4 { outer: token, .. }, Operand::Nvfp4 { outer, .. }) => acc * outer[0] * token[i],
            _ => acc,
        }
    }

    pub fn double_precision(&self) -> Vec<f64> {
        let outer = |operand: &Operand, row: usize| match operand {
            Operand::Nvfp4 { outer, .. } => f64::from(outer[row % outer.len()]),
            _ => 1.0,
        };
        let value = |operand: &Operand, row, kk| {
            let (code, scale) = operand.parts(row, kk, self.k);
            f64::from(code) * f64::from(scale)
        };
        (0..self.m * self.n)
            .map(|at| {
                let (i, j) = (at / self.n, at % self.n);
                let sum: f64 = (0..self.k).map(|kk| value(&self.x, i, kk) * value(&self.w, j, kk)).sum();
                sum * outer(&self.x, i) * outer(&self.w, 0)
            })
            .collect()
    }

    pub fn check(&self, what: &str) {
        let want = self.naive();
        for compute in computes() {
            let w = self.w.pack(&compute, self.n, self.k);
            let mut out = vec![f32::NAN; self.m * self.n];
            linear(&compute, self.x.activations(self.k, 0..self.m), self.m, &w, &mut out);
            let what =
                format!("{what} {}x{}x{} {} {}", self.m, self.n, self.k, compute.isa().name(), compute.threads());
            assert_same_bits(&want, &out, &what);
            for row in 0..self.m {
                let mut alone = vec![f32::NAN; self.n];
                linear(&compute, self.x.activations(self.k, row..row + 1), 1, &w, &mut alone);
                assert_same_bits(&out[row * self.n..(row + 1) * self.n], &alone, &format!("{what} row {row} alone"));
            }
        }
    }
}

/// E4M3 codes without NaN.
fn finite_codes(seed: u64, count: usize) -> Vec<u8> {
    bytes(seed, count).into_iter().map(|code| if e4m3(code).is_nan() { 0x3A } else { code }).collect()
}

fn near(seed: u64, count: usize, lowest: u8, spread: u64) -> Vec<u8> {
    words(seed, count).map(|word| lowest + (word % spread) as u8).collect()
}

pub fn operand(format: &str, seed: u64, rows: usize, k: usize, weight: bool) -> Operand {
    let fp4 = |scales| Operand::Nvfp4 {
        codes: bytes(seed, rows * k.div_ceil(2)),
        scales,
        outer: numbers(seed + 50, rows.max(1)).iter().map(|x| x.abs() + 0.01).collect(),
    };
    match format {
        "bf16" if weight => Operand::Bf16(numbers(seed, rows * k).iter().map(|x| (x.to_bits() >> 16) as u16).collect()),
        "f32" | "bf16" => Operand::F32(numbers(seed, rows * k)),
        "mxfp8" => Operand::Mxfp8 {
            codes: finite_codes(seed, rows * k),
            scales: near(seed + 1, rows * k.div_ceil(32), 112, 12),
        },
        "mxfp8 extreme" => {
            Operand::Mxfp8 { codes: bytes(seed, rows * k), scales: bytes(seed + 1, rows * k.div_ceil(32)) }
        }
        "nvfp4" => fp4(near(seed + 1, rows * k.div_ceil(16), 0x20, 0x50)),
        "nvfp4 extreme" => fp4(bytes(seed + 1, rows * k.div_ceil(16))),
        _ => {
            let scale_rows = if weight && format != "fp8 rows" { 128 } else { 1 };
            let codes = if format == "fp8 extreme" { bytes(seed, rows * k) } else { finite_codes(seed, rows * k) };
            Operand::Fp8 { codes, scales: numbers(seed + 1, rows.div_ceil(scale_rows) * k.div_ceil(128)), scale_rows }
        }
    }
}

pub fn case(format: &str, m: usize, n: usize, k: usize) -> Case {
    Case { x: operand(format, 11, m, k, false), w: operand(format, 23, n, k, true), m, n, k }
}
