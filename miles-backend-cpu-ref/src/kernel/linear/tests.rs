//! Every format against a naive loop bit for bit, and against double precision.

use super::*;
use crate::kernel::decode::{bf16, e2m1_doubled};
use crate::kernel::testing::{assert_close, assert_same_bits, bytes, computes, numbers, words};

/// One product: operands in stored form, and the naive result bit for bit.
struct Case {
    x: Operand,
    w: Operand,
    m: usize,
    n: usize,
    k: usize,
}

enum Operand {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Mxfp8 {
        codes: Vec<u8>,
        scales: Vec<u8>,
    },
    Nvfp4 {
        codes: Vec<u8>,
        scales: Vec<u8>,
        outer: Vec<f32>,
    },
    Fp8 {
        codes: Vec<u8>,
        scales: Vec<f32>,
        scale_rows: usize,
    },
}

impl Operand {
    fn activations(&self, k: usize, rows: Range<usize>) -> Activations<'_> {
        let cut = |per_row: usize| rows.start * per_row..rows.end * per_row;
        match self {
            Operand::F32(values) => Activations::Values(&values[cut(k)]),
            Operand::Mxfp8 { codes, scales } => Activations::Mxfp8 {
                codes: &codes[cut(k)],
                scales: &scales[cut(k.div_ceil(32))],
            },
            Operand::Nvfp4 {
                codes,
                scales,
                outer,
            } => Activations::Nvfp4 {
                codes: &codes[cut(k.div_ceil(2))],
                scales: &scales[cut(k.div_ceil(16))],
                token_scales: &outer[rows.clone()],
            },
            Operand::Fp8 { codes, scales, .. } => Activations::Fp8Block {
                codes: &codes[cut(k)],
                scales: &scales[cut(k.div_ceil(128))],
            },
            Operand::Bf16(_) => unreachable!("activations are values"),
        }
    }

    fn pack(&self, compute: &Compute, n: usize, k: usize) -> PackedWeight {
        match self {
            Operand::F32(values) => PackedWeight::from_f32(compute, values, n, k),
            Operand::Bf16(bits) => PackedWeight::from_bf16(compute, bits, n, k),
            Operand::Mxfp8 { codes, scales } => {
                PackedWeight::from_mxfp8(compute, codes, scales, n, k)
            }
            Operand::Nvfp4 {
                codes,
                scales,
                outer,
            } => PackedWeight::from_nvfp4(compute, codes, scales, outer[0], n, k),
            Operand::Fp8 {
                codes,
                scales,
                scale_rows,
            } => PackedWeight::from_fp8_block(compute, codes, scales, *scale_rows, n, k),
        }
    }

    /// The bare code value and the block scale of element `[row, i]`.
    fn parts(&self, row: usize, i: usize, k: usize) -> (f32, f32) {
        match self {
            Operand::F32(values) => (values[row * k + i], 1.0),
            Operand::Bf16(bits) => (bf16(bits[row * k + i]), 1.0),
            Operand::Mxfp8 { codes, scales } => (
                e4m3(codes[row * k + i]),
                e8m0(scales[row * k.div_ceil(32) + i / 32]),
            ),
            Operand::Nvfp4 { codes, scales, .. } => {
                let byte = codes[row * k.div_ceil(2) + i / 2];
                let code = if i.is_multiple_of(2) { byte } else { byte >> 4 };
                (
                    f32::from(e2m1_doubled(code)) * 0.5,
                    e4m3(scales[row * k.div_ceil(16) + i / 16]),
                )
            }
            Operand::Fp8 {
                codes,
                scales,
                scale_rows,
            } => (
                e4m3(codes[row * k + i]),
                scales[row / scale_rows * k.div_ceil(128) + i / 128],
            ),
        }
    }
}

impl Case {
    fn naive(&self) -> Vec<f32> {
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
                let ((a, a_scale), (b, b_scale)) =
                    (self.x.parts(i, kk, self.k), self.w.parts(j, kk, self.k));
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
            (Operand::Nvfp4 { outer: token, .. }, Operand::Nvfp4 { outer, .. }) => {
                acc * outer[0] * token[i]
            }
            _ => acc,
        }
    }

    fn double_precision(&self) -> Vec<f64> {
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
                let sum: f64 = (0..self.k)
                    .map(|kk| value(&self.x, i, kk) * value(&self.w, j, kk))
                    .sum();
                sum * outer(&self.x, i) * outer(&self.w, 0)
            })
            .collect()
    }

    fn check(&self, what: &str) {
        let want = self.naive();
        for compute in computes() {
            let w = self.w.pack(&compute, self.n, self.k);
            let mut out = vec![f32::NAN; self.m * self.n];
            linear(
                &compute,
                self.x.activations(self.k, 0..self.m),
                self.m,
                &w,
                &mut out,
            );
            let what = format!(
                "{what} {}x{}x{} {} {}",
                self.m,
                self.n,
                self.k,
                compute.isa().name(),
                compute.threads()
            );
            assert_same_bits(&want, &out, &what);
            for row in 0..self.m {
                let mut alone = vec![f32::NAN; self.n];
                linear(
                    &compute,
                    self.x.activations(self.k, row..row + 1),
                    1,
                    &w,
                    &mut alone,
                );
                assert_same_bits(
                    &out[row * self.n..(row + 1) * self.n],
                    &alone,
                    &format!("{what} row {row} alone"),
                );
            }
        }
    }
}

/// E4M3 codes without NaN.
fn finite_codes(seed: u64, count: usize) -> Vec<u8> {
    bytes(seed, count)
        .into_iter()
        .map(|code| if e4m3(code).is_nan() { 0x3A } else { code })
        .collect()
}

fn near(seed: u64, count: usize, lowest: u8, spread: u64) -> Vec<u8> {
    words(seed, count)
        .map(|word| lowest + (word % spread) as u8)
        .collect()
}

fn operand(format: &str, seed: u64, rows: usize, k: usize, weight: bool) -> Operand {
    let fp4 = |scales| Operand::Nvfp4 {
        codes: bytes(seed, rows * k.div_ceil(2)),
        scales,
        outer: numbers(seed + 50, rows.max(1))
            .iter()
            .map(|x| x.abs() + 0.01)
            .collect(),
    };
    match format {
        "bf16" if weight => Operand::Bf16(
            numbers(seed, rows * k)
                .iter()
                .map(|x| (x.to_bits() >> 16) as u16)
                .collect(),
        ),
        "f32" | "bf16" => Operand::F32(numbers(seed, rows * k)),
        "mxfp8" => Operand::Mxfp8 {
            codes: finite_codes(seed, rows * k),
            scales: near(seed + 1, rows * k.div_ceil(32), 112, 12),
        },
        "mxfp8 extreme" => Operand::Mxfp8 {
            codes: bytes(seed, rows * k),
            scales: bytes(seed + 1, rows * k.div_ceil(32)),
        },
        "nvfp4" => fp4(near(seed + 1, rows * k.div_ceil(16), 0x20, 0x50)),
        "nvfp4 extreme" => fp4(bytes(seed + 1, rows * k.div_ceil(16))),
        _ => {
            let scale_rows = if weight && format != "fp8 rows" {
                128
            } else {
                1
            };
            let codes = if format == "fp8 extreme" {
                bytes(seed, rows * k)
            } else {
                finite_codes(seed, rows * k)
            };
            Operand::Fp8 {
                codes,
                scales: numbers(seed + 1, rows.div_ceil(scale_rows) * k.div_ceil(128)),
                scale_rows,
            }
        }
    }
}

fn case(format: &str, m: usize, n: usize, k: usize) -> Case {
    Case {
        x: operand(format, 11, m, k, false),
        w: operand(format, 23, n, k, true),
        m,
        n,
        k,
    }
}

const FORMATS: [&str; 9] = [
    "f32",
    "bf16",
    "mxfp8",
    "mxfp8 extreme",
    "nvfp4",
    "nvfp4 extreme",
    "fp8",
    "fp8 extreme",
    "fp8 rows",
];

#[test]
fn every_format_equals_its_naive_loop_bit_for_bit() {
    let shapes = [
        (1, 1, 1),
        (1, 17, 31),
        (1, 200, 33),
        (2, 33, 16),
        (2, 70, 129),
        (3, 15, 130),
        (4, 16, 127),
        (5, 40, 64),
        (6, 31, 257),
        (7, 18, 65),
        (33, 35, 300),
    ];
    for format in FORMATS {
        for (m, n, k) in shapes {
            case(format, m, n, k).check(format);
        }
    }
}

#[test]
fn empty_dimensions_give_zeros_or_nothing() {
    for format in FORMATS {
        for (m, n, k) in [(0, 5, 8), (3, 0, 8), (2, 5, 0), (9, 5, 0)] {
            case(format, m, n, k).check(format);
        }
    }
}

#[test]
fn large_products_use_every_block_and_keep_the_bits() {
    for format in ["bf16", "mxfp8", "nvfp4", "fp8"] {
        let case = case(format, 203, 50, 530);
        let want = case.naive();
        for compute in computes() {
            let w = case.w.pack(&compute, case.n, case.k);
            let mut out = vec![f32::NAN; case.m * case.n];
            linear(
                &compute,
                case.x.activations(case.k, 0..case.m),
                case.m,
                &w,
                &mut out,
            );
            assert_same_bits(&want, &out, format);
        }
    }
}

#[test]
fn a_row_does_not_see_its_batch() {
    let (n, k) = (130, 200);
    let compute = &computes()[2];
    for format in FORMATS {
        let all = case(format, 33, n, k);
        let w = all.w.pack(compute, n, k);
        let mut alone = vec![0.0; n];
        linear(compute, all.x.activations(k, 0..1), 1, &w, &mut alone);
        for m in [2, 7, 33] {
            let mut out = vec![0.0; m * n];
            linear(compute, all.x.activations(k, 0..m), m, &w, &mut out);
            assert_same_bits(&alone, &out[..n], format);
        }
    }
}

#[test]
fn products_agree_with_double_precision() {
    for format in ["f32", "bf16", "mxfp8", "nvfp4", "fp8", "fp8 rows"] {
        let case = case(format, 9, 40, 300);
        let scale = case
            .double_precision()
            .iter()
            .fold(1.0f64, |a, b| a.max(b.abs()));
        let want: Vec<f64> = case.double_precision().iter().map(|v| v / scale).collect();
        let got: Vec<f32> = case
            .naive()
            .iter()
            .map(|&v| (f64::from(v) / scale) as f32)
            .collect();
        assert_close(&want, &got, 1e-5, format);
    }
}

#[test]
fn memory_is_codes_and_scales() {
    let compute = &computes()[1];
    let (n, k) = (576, 1536);
    let size = |format| operand(format, 1, n, k, true).pack(compute, n, k).bytes();
    assert_eq!(size("bf16"), 2 * n * k);
    assert_eq!(size("mxfp8"), n * k + n * k / 32 + n / 16);
    assert_eq!(size("nvfp4"), n * k / 2 + n * k / 16 + 4);
    assert_eq!(size("fp8"), n * k + 4 * n * k / 128 + n / 16);
}

#[test]
#[should_panic(expected = "no common product")]
fn formats_without_a_common_product_are_refused() {
    let compute = &computes()[1];
    let w = operand("nvfp4", 1, 16, 16, true).pack(compute, 16, 16);
    linear(
        compute,
        Activations::Values(&[0.0; 16]),
        1,
        &w,
        &mut [0.0; 16],
    );
}
