//! The arithmetics of block FP8, each operation redone in `f64` and rounded (exact: no operation here has double
//! rounding from `f64`).

use miles_core::format::{FormatRule, Fp8Block, NonFinite, QuantizeSpec, Source, SourceDtype};
use miles_core::number::e4m3;

use crate::sample::{quantize, values};

const RECIPROCAL: f32 = f32::from_bits(0x3B12_4925);

fn divide(a: f32, b: f32) -> f32 {
    (f64::from(a) / f64::from(b)) as f32
}

fn multiply(a: f32, b: f32) -> f32 {
    (f64::from(a) * f64::from(b)) as f32
}

fn power_of_two_up(x: f32) -> f32 {
    (-126..=127).map(|exponent| 2_f32.powi(exponent)).find(|&power| power >= x).unwrap()
}

/// Stored scale of an amax, and the value that is converted to E4M3.
type Oracle = (fn(f32) -> f32, fn(f32, f32) -> f32);

fn oracles() -> [(Fp8Block, Oracle); 6] {
    let by_reciprocal: fn(f32, f32) -> f32 = |x, scale| multiply(x, divide(1.0, scale));
    [
        (Fp8Block::DEEPGEMM, (|a| divide(a.max(1e-4), 448.0), by_reciprocal)),
        (Fp8Block::DEEPGEMM_UE8M0, (|a| power_of_two_up(divide(a.max(1e-4), 448.0)), by_reciprocal)),
        (Fp8Block::SGLANG, (|a| divide(a.max(1e-10), 448.0), by_reciprocal)),
        (Fp8Block::SGLANG_DIVIDE, (|a| divide(a.max(1e-10), 448.0), divide)),
        (Fp8Block::DEEPSEEK, (|a| multiply(a.max(1e-4), RECIPROCAL), divide)),
        (Fp8Block::DEEPSEEK_UE8M0, (|a| power_of_two_up(multiply(a.max(1e-4), RECIPROCAL)), divide)),
    ]
}

#[test]
fn every_arithmetic_is_that_of_its_definition() {
    let (rows, cols) = (67, 300);
    let mut x = values(rows * cols, 21);
    x[..cols].fill(0.0);
    x[cols..2 * cols].iter_mut().for_each(|x| *x *= 1e-9);
    for (rule, (scale_of, scaled)) in oracles() {
        let tensor = quantize(&x, rows, cols, &QuantizeSpec::activation(rule.id()));
        let blocks =
            x.chunks(cols).zip(tensor.codes().chunks(cols)).flat_map(|(x, c)| x.chunks(128).zip(c.chunks(128)));
        for ((values, codes), &scale) in blocks.zip(tensor.scales().as_f32().unwrap()) {
            let amax = values.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
            assert_eq!(scale, scale_of(amax), "{} {amax:e}", rule.id());
            for (&x, &code) in values.iter().zip(codes) {
                assert_eq!(code, e4m3::encode(scaled(x, scale)), "{} {x:e}", rule.id());
            }
        }
        let weight = quantize(&x, rows, cols, &QuantizeSpec::weight(rule.id()));
        for (tile, &scale) in weight.scales().as_f32().unwrap().iter().enumerate() {
            let of_tile = |row: &[f32]| row.chunks(128).nth(tile).unwrap().to_vec();
            let amax = x.chunks(cols).flat_map(of_tile).fold(0.0_f32, |a, x| a.max(x.abs()));
            assert_eq!(scale, scale_of(amax), "{}", rule.id());
            for (row, codes) in x.chunks(cols).zip(weight.codes().chunks(cols)) {
                let pairs = row.chunks(128).nth(tile).unwrap().iter().zip(codes.chunks(128).nth(tile).unwrap());
                pairs.for_each(|(&x, &code)| assert_eq!(code, e4m3::encode(scaled(x, scale))));
            }
        }
    }
}

/// Every BF16 magnitude as an amax.
#[test]
fn every_bf16_amax_has_the_scale_of_the_definition() {
    for amax in (0..0x7F80_u32).map(|bits| f32::from_bits(bits << 16)) {
        for (rule, (scale_of, _)) in oracles() {
            assert_eq!(rule.arithmetic().tile_scale(amax, SourceDtype::Bf16).decode, scale_of(amax), "{}", rule.id());
        }
    }
}

#[test]
fn infinities_saturate_and_leave_the_scale_finite() {
    let mut x = vec![1.0; 128];
    (x[0], x[1], x[2]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
    let source = Source::new(&x, 1, 128, SourceDtype::F32, None).unwrap();
    for (rule, (scale_of, _)) in oracles() {
        let spec = QuantizeSpec::activation(rule.id()).with_non_finite(NonFinite::Hardware);
        let tensor = rule.quantize(&source, &spec).unwrap();
        assert_eq!(tensor.scales().as_f32().unwrap(), [scale_of(f32::MAX)]);
        assert_eq!(tensor.codes()[..4], [0x7E, 0xFE, 0x7F, 0x00], "{}", rule.id());
    }
}
