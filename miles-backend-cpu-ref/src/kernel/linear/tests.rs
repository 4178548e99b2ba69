//! Every format against a naive loop bit for bit, and against double precision.

use super::*;
use crate::kernel::testing::{assert_close, assert_same_bits, computes};
use case::{case, operand};

mod case;

const FORMATS: [&str; 9] =
    ["f32", "bf16", "mxfp8", "mxfp8 extreme", "nvfp4", "nvfp4 extreme", "fp8", "fp8 extreme", "fp8 rows"];

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
        (8, 20, 70),
        (32, 18, 64),
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
            linear(&compute, case.x.activations(case.k, 0..case.m), case.m, &w, &mut out);
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
        let scale = case.double_precision().iter().fold(1.0f64, |a, b| a.max(b.abs()));
        let want: Vec<f64> = case.double_precision().iter().map(|v| v / scale).collect();
        let got: Vec<f32> = case.naive().iter().map(|&v| (f64::from(v) / scale) as f32).collect();
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
    linear(compute, Activations::Values(&[0.0; 16]), 1, &w, &mut [0.0; 16]);
}
