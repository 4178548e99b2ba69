//! The variants of MXFP8.

use miles_core::format::mxfp8::{ScaleRounding, Tile};
use miles_core::format::{Axis, FormatError, FormatRule, Mxfp8, NonFinite, QuantizeSpec, Source, SourceDtype};
use miles_core::number::{e4m3, e8m0};

use crate::sample::{quantize, transposed, values};

/// The scale rules by their definitions in `f64`, for every BF16 magnitude and for `f32` around every threshold.
#[test]
fn every_bf16_amax_has_the_scale_of_the_definition() {
    let mut amaxes: Vec<f32> = (0..0x7F80_u32).map(|bits| f32::from_bits(bits << 16)).collect();
    for exponent in 0..255_u32 {
        for mantissa in [0, 1, 0x60_0000, 0x60_0001, 0x78_0000, 0x77_FFFF, 0x7F_FFFF] {
            amaxes.push(f32::from_bits(exponent << 23 | mantissa));
        }
    }
    for amax in amaxes {
        let floor_log2 = |x: f64| if x < 2_f64.powi(-126) { -127 } else { x.log2().floor() as i32 };
        let exact = f64::from(amax);
        // `log2` may round up to a power of two that is not reached.
        let floor = floor_log2(exact) - i32::from(exact >= 2_f64.powi(-126) && 2_f64.powi(floor_log2(exact)) > exact);
        let of_exponent = |exponent: i32| (exponent - 8 + 127).max(0) as u8;
        assert_eq!(ScaleRounding::OcpFloor.block_scale(amax), of_exponent(floor), "{amax:e}");
        let carries = exact >= 2_f64.powi(-126) && exact / 2_f64.powi(floor) >= 1.9375;
        // A subnormal amax from 1.9375 * 2^-127 on counts as 2^-126: still scale 0.
        let even = if floor + i32::from(carries) == 128 { 255 } else { of_exponent(floor + i32::from(carries)) };
        assert_eq!(ScaleRounding::Even.block_scale(amax), even, "{amax:e}");
        let up = ScaleRounding::Up.block_scale(amax);
        assert!(exact / 448.0 <= f64::from(e8m0::decode(up)) * (1.0 + 1e-6), "{amax:e}");
        assert!(up == 0 || f64::from(e8m0::decode(up - 1)) < exact / 448.0 * (1.0 + 1e-6), "{amax:e}");
    }
    for rounding in [ScaleRounding::OcpFloor, ScaleRounding::Even] {
        assert_eq!(rounding.block_scale(f32::INFINITY), e8m0::NAN);
    }
    assert_eq!(ScaleRounding::Up.block_scale(f32::INFINITY), 254);
}

/// `even` has no scale for the top of the range, nor either variant for an infinity: an error that names the block.
#[test]
fn a_block_without_a_scale_is_an_error_by_name() {
    let cases = [
        (Mxfp8::EVEN, f32::from_bits(0x7F78_0000)),
        (Mxfp8::EVEN, f32::INFINITY),
        (Mxfp8::OCP_FLOOR, f32::NEG_INFINITY),
    ];
    for (rule, value) in cases {
        let mut x = vec![1.0; 3 * 96];
        x[96 + 70] = value;
        let source = Source::new(&x, 3, 96, SourceDtype::F32, Some("w")).unwrap();
        let spec = QuantizeSpec::activation(rule.id()).with_non_finite(NonFinite::Hardware);
        let expected = FormatError::NanScale { tensor: "w".into(), row: 1, block: 2, byte: 0xFF };
        assert_eq!(rule.quantize(&source, &spec).unwrap_err(), expected, "{}", rule.id());
    }
    let largest = f32::from_bits(0x7F77_FFFF);
    let source = [largest; 32];
    let source = Source::new(&source, 1, 32, SourceDtype::F32, None).unwrap();
    assert!(Mxfp8::EVEN.quantize(&source, &QuantizeSpec::weight(Mxfp8::EVEN.id())).is_ok());
    // NaN elements do not reach the scale.
    let mut x = [1.0; 32];
    x[3] = f32::NAN;
    let source = Source::new(&x, 1, 32, SourceDtype::F32, None).unwrap();
    let tensor = Mxfp8::OCP_FLOOR.quantize(&source, &QuantizeSpec::activation(Mxfp8::OCP_FLOOR.id())).unwrap();
    assert_eq!((tensor.scales().as_u8().unwrap(), tensor.codes()[3]), (&[119][..], e4m3::NAN));
}

/// Every element of a tile under the tile's one scale; the copies of both axes have the same codes.
#[test]
fn tiles_have_one_scale_and_the_same_codes_on_both_axes() {
    for rounding in [ScaleRounding::Up, ScaleRounding::OcpFloor, ScaleRounding::Even] {
        let rule = Mxfp8 { scale_rounding: rounding, tile: Tile::Square };
        for (rows, cols) in [(1, 1), (32, 32), (33, 65), (70, 31), (0, 5), (5, 0)] {
            let x = values(rows * cols, 3);
            let spec = QuantizeSpec::weight(rule.id());
            let (row, column) =
                (quantize(&x, rows, cols, &spec), quantize(&x, rows, cols, &spec.clone().with_axis(Axis::Column)));
            let turned = quantize(&transposed(&x, rows, cols), cols, rows, &spec);
            assert_eq!(row.codes(), column.codes());
            for i in 0..rows * cols {
                let (r, c) = (i / cols, i % cols);
                assert_eq!(row.codes()[i], turned.codes()[c * rows + r]);
                let amax = (r / 32 * 32..rows.min(r / 32 * 32 + 32))
                    .flat_map(|r| x[r * cols..][c / 32 * 32..cols.min(c / 32 * 32 + 32)].to_vec())
                    .fold(0.0_f32, |a, x| a.max(x.abs()));
                let scale = rounding.block_scale(amax);
                assert_eq!(row.scales().as_u8().unwrap()[r * row.scale_cols() + c / 32], scale);
                assert_eq!(column.scales().as_u8().unwrap()[r / 32 * cols + c], scale);
                assert_eq!(row.codes()[i], e4m3::encode(x[i] * e8m0::decode_reciprocal(scale)));
            }
        }
        // An activation has 1x32 blocks, whatever a weight has.
        let x = values(40 * 64, 1);
        let plain = Mxfp8 { scale_rounding: rounding, tile: Tile::Line };
        let (tiled, plain) = (
            quantize(&x, 40, 64, &QuantizeSpec::activation(rule.id())),
            quantize(&x, 40, 64, &QuantizeSpec::activation(plain.id())),
        );
        assert_eq!((tiled.codes(), tiled.scales()), (plain.codes(), plain.scales()));
    }
}
