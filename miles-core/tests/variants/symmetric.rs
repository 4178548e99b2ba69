//! The arithmetic of the symmetric formats.

use miles_core::format::{
    Axis, FormatError, FormatRule, NonFinite, QuantizeSpec, ScaleScope, Source, SourceDtype, Symmetric,
};
use miles_core::number::e4m3;

use crate::sample::{quantize, values};

/// The nearest integer to an `f64`, ties to even, by comparison.
fn nearest(x: f64, smallest: i32, largest: i32) -> i32 {
    let below = x.floor();
    let tie = x - below;
    let up = tie > 0.5 || tie == 0.5 && below.rem_euclid(2.0) == 1.0;
    (below + f64::from(u8::from(up))).clamp(f64::from(smallest), f64::from(largest)) as i32
}

/// The specification in `f64`, rounded to `f32` after each operation. A quotient of two `f32` has no double rounding.
#[test]
fn integers_are_those_of_the_specification() {
    let cases = [
        (Symmetric::INT8_CHANNEL, 203, 127.5, -128, 127),
        (Symmetric::INT4_GROUP_32, 32, 7.5, -8, 7),
        (Symmetric::INT4_GROUP_64, 64, 7.5, -8, 7),
        (Symmetric::INT4_GROUP_128, 128, 7.5, -8, 7),
    ];
    let (rows, cols) = (50, 203);
    let x = values(rows * cols, 4);
    for (rule, group, half_range, smallest, largest) in cases {
        let tensor = quantize(&x, rows, cols, &QuantizeSpec::weight(rule.id()));
        let decoded = tensor.dequantize_f32().unwrap();
        let groups =
            x.chunks(cols).flat_map(|row| row.chunks(group)).zip(decoded.chunks(cols).flat_map(|r| r.chunks(group)));
        for ((values, decoded), &scale) in groups.zip(tensor.scales().as_f32().unwrap()) {
            let amax = values.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
            let expected = (f64::from(amax) / half_range) as f32;
            assert_eq!(scale, if expected == 0.0 { 2_f32.powi(-23) } else { expected });
            for (&x, &y) in values.iter().zip(decoded) {
                let quotient = (f64::from(x) / f64::from(scale)) as f32;
                let code = nearest(f64::from(quotient), smallest, largest);
                assert_eq!(y, (f64::from(code) * f64::from(scale)) as f32, "{} {x:e}", rule.id());
            }
        }
    }
}

#[test]
fn fp8_is_divided_by_the_scale() {
    let (rows, cols) = (50, 203);
    let x = values(rows * cols, 4);
    let tensor = quantize(&x, rows, cols, &QuantizeSpec::weight(Symmetric::FP8_CHANNEL.id()));
    let mut reciprocal_differs = 0;
    for ((row, codes), &scale) in x.chunks(cols).zip(tensor.codes().chunks(cols)).zip(tensor.scales().as_f32().unwrap())
    {
        let amax = row.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
        assert_eq!(scale, (f64::from(amax) / 448.0) as f32);
        for (&x, &code) in row.iter().zip(codes) {
            assert_eq!(code, e4m3::encode((f64::from(x) / f64::from(scale)) as f32));
            reciprocal_differs += usize::from(code != e4m3::encode(x * (1.0 / scale)));
        }
    }
    assert!(reciprocal_differs < 100, "{reciprocal_differs}");
}

#[test]
fn int4_pairs_are_packed_low_nibble_first_in_twos_complement() {
    // amax 7.5: scale 1. 7.5 saturates at 7, -7.5 is -8; an odd line ends in half a byte of zeros.
    let x = [7.5, -7.5, 1.0, -1.0, 2.5, -3.5, 0.0, -0.0, 7.0];
    let tensor = quantize(&x, 1, 9, &QuantizeSpec::weight(Symmetric::INT4_GROUP_32.id()));
    assert_eq!(tensor.scales().as_f32().unwrap(), [1.0]);
    assert_eq!(tensor.codes(), [0x87, 0xF1, 0xC2, 0x00, 0x07]);
    assert_eq!(tensor.dequantize_f32().unwrap(), [7.0, -8.0, 1.0, -1.0, 2.0, -4.0, 0.0, 0.0, 7.0]);
}

#[test]
fn zeros_have_a_finite_scale_and_zero_codes() {
    for rule in [Symmetric::FP8_CHANNEL, Symmetric::FP8_TENSOR, Symmetric::INT8_CHANNEL, Symmetric::INT4_GROUP_64] {
        let tensor = quantize(&[0.0; 200], 2, 100, &QuantizeSpec::weight(rule.id()));
        let scales = [tensor.scales().as_f32().unwrap(), tensor.outer()].concat();
        assert!(!scales.is_empty() && scales.iter().all(|&scale| scale == f32::EPSILON));
        assert!(tensor.codes().iter().all(|&code| code == 0));
        assert_eq!(tensor.dequantize_f32().unwrap(), [0.0; 200]);
    }
}

#[test]
fn infinities_take_the_end_of_the_range_and_nan_the_documented_code() {
    let x = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0];
    let expected = [
        (Symmetric::FP8_CHANNEL, vec![0x7E, 0xFE, 0x7F, 0x00]),
        (Symmetric::FP8_TENSOR, vec![0x7E, 0xFE, 0x7F, 0x00]),
        (Symmetric::INT8_CHANNEL, vec![127, 0x80, 0, 0]),
        (Symmetric::INT4_GROUP_32, vec![0x87, 0x00]),
    ];
    let source = Source::new(&x, 1, 4, SourceDtype::F32, Some("w")).unwrap();
    for (rule, codes) in expected {
        let spec = QuantizeSpec::weight(rule.id());
        let tensor = rule.quantize(&source, &spec.clone().with_non_finite(NonFinite::Hardware)).unwrap();
        assert_eq!(tensor.codes(), codes, "{}", rule.id());
        let scales = [tensor.scales().as_f32().unwrap(), tensor.outer()].concat();
        assert!(scales.iter().all(|scale| scale.is_finite()));
        let error = rule.quantize(&source, &spec).unwrap_err();
        assert!(matches!(error, FormatError::NonFinite { row: 0, column: 0, .. }), "{error}");
    }
}

/// One scale for gate and up where the scope says so, that of their concatenation.
#[test]
fn fp8_tensor_shares_its_scale_within_a_group() {
    let cols = 96;
    let (gate, mut up) = (values(3 * cols, 1), values(5 * cols, 2));
    up[7] = 1e6;
    let both: Vec<f32> = gate.iter().chain(&up).copied().collect();
    let source = |x, rows| Source::new(x, rows, cols, SourceDtype::F32, None).unwrap();
    let rule = Symmetric::FP8_TENSOR;
    for scope in [ScaleScope::Tensor, ScaleScope::Group, ScaleScope::Expert] {
        let spec = QuantizeSpec::weight(rule.id()).with_scope(scope);
        let pair = rule.quantize_joint(&[source(&gate, 3), source(&up, 5)], &spec).unwrap();
        let fused = rule.quantize(&source(&both, 8), &spec).unwrap();
        assert_eq!([pair[0].codes(), pair[1].codes()].concat(), fused.codes());
        assert!(pair.iter().all(|tensor| tensor.outer() == fused.outer() && tensor.outer().len() == 1));
        assert_ne!(rule.quantize(&source(&gate, 3), &spec).unwrap().outer(), fused.outer());
    }
    let spec = QuantizeSpec::weight(rule.id()).with_scope(ScaleScope::Row);
    let pair = rule.quantize_joint(&[source(&gate, 3), source(&up, 5)], &spec).unwrap();
    assert_eq!((pair[0].outer().len(), pair[1].outer().len()), (3, 5));
    let narrow = Source::new(&gate, 6, cols / 2, SourceDtype::F32, Some("narrow")).unwrap();
    let error = rule.quantize_joint(&[source(&gate, 3), narrow], &spec).unwrap_err();
    assert!(matches!(error, FormatError::JointWidth { .. }), "{error}");
}

/// With one scale per row, per-tensor FP8 is per-channel FP8 with the scales in another place.
#[test]
fn fp8_tensor_per_row_has_the_numbers_of_fp8_channel() {
    let x = values(40 * 50, 8);
    for axis in [Axis::Row, Axis::Column] {
        let per_row = QuantizeSpec::activation(Symmetric::FP8_TENSOR.id()).with_axis(axis);
        let per_channel = QuantizeSpec::activation(Symmetric::FP8_CHANNEL.id()).with_axis(axis);
        let (tensor, channel) = (quantize(&x, 40, 50, &per_row), quantize(&x, 40, 50, &per_channel));
        assert_eq!(tensor.codes(), channel.codes());
        assert_eq!(tensor.outer(), channel.scales().as_f32().unwrap());
    }
}
