//! Properties over random values, all bit patterns included.

use miles_core::format::{Axis, BlockScales, FormatId, QuantizeSpec, ScaleScope};
use proptest::prelude::*;

use crate::sample::{formats, quantize, specs, transposed};

/// Any finite `f32`, subnormal and extreme ones as often as others.
fn finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}

/// `[rows, cols]` of values within a few binades, or of any.
fn matrix() -> impl Strategy<Value = (Vec<f32>, usize, usize)> {
    (1_usize..5, 1_usize..80).prop_flat_map(|(half_rows, half_cols)| {
        let (rows, cols) = (2 * half_rows, 2 * half_cols);
        let value = prop_oneof![-4.0_f32..4.0, finite(), Just(0.0), Just(-0.0)];
        (prop::collection::vec(value, rows * cols), Just(rows), Just(cols))
    })
}

/// Bits to compare: all NaN are one (NVFP4 decodes 0 times an overflowed scale to NaN).
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_row_does_not_depend_on_its_neighbours((x, rows, cols) in matrix(), other in finite(), pick: usize) {
        let pick = pick % rows;
        let mut changed = vec![other; rows * cols];
        changed[pick * cols..][..cols].copy_from_slice(&x[pick * cols..][..cols]);
        for format in formats() {
            let spec = QuantizeSpec::activation(format);
            let (before, after) = (quantize(&x, rows, cols, &spec), quantize(&changed, rows, cols, &spec));
            let code_bytes = before.codes().len() / rows;
            let codes = pick * code_bytes..(pick + 1) * code_bytes;
            prop_assert_eq!(&before.codes()[codes.clone()], &after.codes()[codes]);
            let scales = pick * before.scale_cols()..(pick + 1) * before.scale_cols();
            match (before.scales(), after.scales()) {
                (BlockScales::U8(a), BlockScales::U8(b)) => prop_assert_eq!(&a[scales.clone()], &b[scales]),
                (BlockScales::F32(a), BlockScales::F32(b)) => prop_assert_eq!(&a[scales.clone()], &b[scales]),
                _ => prop_assert!(false, "storage of scales depends on values"),
            }
            prop_assert_eq!(before.outer().get(pick), after.outer().get(pick));
        }
    }

    #[test]
    fn finite_values_never_give_nan_scales_or_nan_codes((x, rows, cols) in matrix()) {
        for format in formats() {
            for spec in specs(&format) {
                let tensor = quantize(&x, rows, cols, &spec);
                match tensor.scales() {
                    BlockScales::U8(scales) if format == FormatId::mxfp8() => {
                        prop_assert!(scales.iter().all(|&scale| scale <= 247));
                    }
                    BlockScales::U8(scales) => prop_assert!(scales.iter().all(|&scale| scale <= 0x7E)),
                    BlockScales::F32(scales) => prop_assert!(scales.iter().all(|s| s.is_finite() && *s > 0.0)),
                }
                if format != FormatId::nvfp4() {
                    prop_assert!(tensor.codes().iter().all(|&code| code & 0x7F != 0x7F));
                }
            }
        }
    }

    #[test]
    fn a_column_copy_is_the_row_copy_of_the_transpose((x, rows, cols) in matrix()) {
        let turned = transposed(&x, rows, cols);
        for format in formats().into_iter().filter(|format| *format != FormatId::mxfp8()) {
            for spec in specs(&format).into_iter().filter(|spec| spec.axis == Axis::Column) {
                let column = quantize(&x, rows, cols, &spec);
                let row = quantize(&turned, cols, rows, &spec.clone().with_axis(Axis::Row));
                prop_assert_eq!(column.codes(), row.codes());
                prop_assert_eq!(column.scales(), row.scales());
                prop_assert_eq!(column.outer(), row.outer());
                prop_assert_eq!(column.amax(), row.amax());
                let values = transposed(&row.dequantize_f32().unwrap(), cols, rows);
                prop_assert_eq!(bits(&column.dequantize_f32().unwrap()), bits(&values));
            }
        }
    }

    #[test]
    fn the_mxfp8_column_copy_is_the_transposed_row_copy_of_the_transpose((x, rows, cols) in matrix()) {
        let spec = QuantizeSpec::activation(FormatId::mxfp8());
        let column = quantize(&x, rows, cols, &spec.clone().with_axis(Axis::Column));
        let row = quantize(&transposed(&x, rows, cols), cols, rows, &spec);
        for i in 0..rows * cols {
            prop_assert_eq!(column.codes()[i], row.codes()[i % cols * rows + i / cols]);
        }
        let values = transposed(&row.dequantize_f32().unwrap(), cols, rows);
        prop_assert_eq!(bits(&column.dequantize_f32().unwrap()), bits(&values));
    }

    #[test]
    fn decoding_stays_near_the_source(x in prop::collection::vec(-4.0_f32..4.0, 256)) {
        for (format, relative) in [(FormatId::mxfp8(), 1.0 / 8.0), (FormatId::fp8_block(), 1.0 / 14.0)] {
            let largest = x.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            let decoded = quantize(&x, 2, 128, &QuantizeSpec::activation(format)).dequantize_f32().unwrap();
            for (&value, &found) in x.iter().zip(&decoded) {
                prop_assert!((value - found).abs() <= value.abs() * relative + largest * 1e-4);
            }
        }
        let spec = QuantizeSpec::activation(FormatId::nvfp4()).with_scope(ScaleScope::Tensor);
        let decoded = quantize(&x, 2, 128, &spec).dequantize_f32().unwrap();
        for (block, found) in x.chunks(16).zip(decoded.chunks(16)) {
            let largest = block.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            for (&value, &found) in block.iter().zip(found) {
                prop_assert!((value - found).abs() <= largest * 0.2 + 1e-3, "{} {}", value, found);
            }
        }
    }
}
