//! Sources and requests that are refused, and what the errors name.

use miles_core::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, MAX_EXTENT, Mxfp8, NonFinite, Nvfp4, Operand, Partition,
    QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleScope, Source, SourceDtype, builtin_rule, builtin_rules,
};

use crate::sample::formats;

#[test]
fn rejects_values_that_are_not_rows_times_cols() {
    let error = Source::new(&[0.0; 5], 2, 3, SourceDtype::F32, Some("w")).unwrap_err();
    assert_eq!(error, FormatError::SourceLength { tensor: "w".into(), rows: 2, cols: 3, found: 5 });
    assert_eq!(error.to_string(), "tensor w: 5 values cannot be [2, 3]");
    assert!(Source::new(&[], usize::MAX, 2, SourceDtype::F32, None).is_err());
}

#[test]
fn rejects_sizes_that_only_a_tensor_without_elements_can_claim() {
    let too_many = MAX_EXTENT + 1;
    for (rows, cols) in [(too_many, 0), (0, too_many), (usize::MAX, 0), (0, usize::MAX)] {
        let expected = FormatError::Extent { tensor: "w".into(), rows, cols, limit: MAX_EXTENT };
        assert_eq!(Source::new(&[], rows, cols, SourceDtype::F32, Some("w")).unwrap_err(), expected);
        for rule in builtin_rules() {
            for (axis, operand) in [(Axis::Row, Operand::Weight), (Axis::Column, Operand::Activation)] {
                let parts = QuantizedParts {
                    format: rule.id(),
                    operand,
                    axis,
                    scope: ScaleScope::Tensor,
                    partition: Partition::WHOLE,
                    rows,
                    cols,
                    codes: Vec::new(),
                    scales: BlockScales::U8(Vec::new()),
                    outer: vec![1.0],
                    amax: Vec::new(),
                };
                assert_eq!(QuantizedTensor::from_parts(rule, Some("w"), parts).unwrap_err(), expected);
            }
        }
    }
    assert!(Source::new(&[], MAX_EXTENT, 0, SourceDtype::F32, None).is_ok());
}

#[test]
fn rejects_non_finite_weights_by_tensor_row_column_and_block() {
    for (format, row_block, column_block) in
        [(FormatId::nvfp4(), 18, 2), (FormatId::mxfp8(), 9, 1), (FormatId::fp8_block(), 2, 0)]
    {
        let (rows, cols) = (40, 320);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; rows * cols];
            x[33 * cols + 300] = bad;
            x[39 * cols] = f32::NAN;
            let source = Source::new(&x, rows, cols, SourceDtype::F32, Some("layers.4.mlp.up_proj")).unwrap();
            for (axis, expected) in [(Axis::Row, row_block), (Axis::Column, column_block)] {
                let spec = QuantizeSpec::weight(format.clone()).with_axis(axis);
                let rule = builtin_rule(&format).unwrap();
                match rule.quantize(&source, &spec).unwrap_err() {
                    FormatError::NonFinite { tensor, row, column, block, value } => {
                        assert_eq!((tensor.as_str(), row, column), ("layers.4.mlp.up_proj", 33, 300));
                        assert_eq!(block, expected);
                        assert_eq!(value.to_bits(), bad.to_bits());
                    }
                    other => panic!("{other}"),
                }
                assert!(rule.quantize_joint(&[source], &spec).is_err());
                assert!(rule.quantize(&source, &spec.with_non_finite(NonFinite::Hardware)).is_ok());
            }
        }
    }
}

#[test]
fn rejects_odd_rows_in_nvfp4_only() {
    let x = [1.0; 6];
    let source = Source::new(&x, 2, 3, SourceDtype::F32, None).unwrap();
    let spec = QuantizeSpec::activation(FormatId::nvfp4());
    let error = Nvfp4::DEFAULT.quantize(&source, &spec).unwrap_err();
    assert_eq!(error, FormatError::OddLength { format: FormatId::nvfp4(), axis: Axis::Row, rows: 2, cols: 3 });
    assert!(Nvfp4::DEFAULT.quantize(&source, &spec.with_axis(Axis::Column)).is_ok());
    let spec = QuantizeSpec::activation(FormatId::mxfp8());
    assert!(Mxfp8.quantize(&source, &spec).is_ok());
}

#[test]
fn an_odd_number_of_tokens_has_a_column_copy_padded_by_half_a_byte() {
    let spec = QuantizeSpec::activation(FormatId::nvfp4()).with_axis(Axis::Column);
    // Every odd remainder of a block, 15 included: its codes fill as many bytes as a whole block's.
    for rows in (1..50).step_by(2) {
        let x: Vec<f32> = (0..rows * 3).map(|i| i as f32 - 7.0).collect();
        let padded: Vec<f32> = x.iter().copied().chain([0.0; 3]).collect();
        let odd = Nvfp4::DEFAULT.quantize(&Source::new(&x, rows, 3, SourceDtype::F32, None).unwrap(), &spec).unwrap();
        let even = Nvfp4::DEFAULT
            .quantize(&Source::new(&padded, rows + 1, 3, SourceDtype::F32, None).unwrap(), &spec)
            .unwrap();
        assert_eq!((odd.codes(), odd.scales(), odd.outer()), (even.codes(), even.scales(), even.outer()), "{rows}");
        assert_eq!(
            Nvfp4::DEFAULT.dequantize(&odd).unwrap(),
            Nvfp4::DEFAULT.dequantize(&even).unwrap()[..rows * 3],
            "{rows}"
        );
    }
}

#[test]
fn rejects_the_spec_and_the_tensor_of_another_format() {
    let x = [1.0; 4];
    let source = Source::new(&x, 2, 2, SourceDtype::F32, None).unwrap();
    for format in formats() {
        let rule = builtin_rule(&format).unwrap();
        let tensor = rule.quantize(&source, &QuantizeSpec::weight(format.clone())).unwrap();
        for other in formats().into_iter().filter(|other| *other != format) {
            let mismatch = FormatError::FormatMismatch { rule: other.clone(), requested: format.clone() };
            let other_rule = builtin_rule(&other).unwrap();
            let spec = QuantizeSpec::weight(format.clone());
            assert_eq!(other_rule.quantize(&source, &spec).unwrap_err(), mismatch);
            assert_eq!(other_rule.dequantize(&tensor).unwrap_err(), mismatch);
        }
    }
}

#[test]
fn rejects_shapes_too_large_to_address() {
    for format in formats() {
        let spec = QuantizeSpec::weight(format.clone());
        let error = builtin_rule(&format).unwrap().layout(usize::MAX / 2, 8, &spec).unwrap_err();
        assert!(matches!(error, FormatError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn format_names_are_checked_and_compared_as_text() {
    assert_eq!(FormatId::new("nvfp4").unwrap(), FormatId::nvfp4());
    assert_eq!("my-fp6/v2".parse::<FormatId>().unwrap().as_str(), "my-fp6/v2");
    for bad in ["", "NVFP4", "fp 8", "bf16", "é"] {
        assert!(matches!(FormatId::new(bad), Err(FormatError::InvalidFormatId { .. })), "{bad:?}");
    }
    assert!(builtin_rule(&FormatId::new("fp6").unwrap()).is_none());
    for format in formats() {
        assert_eq!(builtin_rule(&format).unwrap().id(), format);
    }
}

#[test]
fn specs_survive_json() {
    let spec = QuantizeSpec::weight(FormatId::fp8_block()).with_axis(Axis::Column);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(
        json,
        r#"{"format":"fp8-block","operand":"weight","axis":"column","scope":"tensor","non_finite":"error"}"#
    );
    assert_eq!(serde_json::from_str::<QuantizeSpec>(&json).unwrap(), spec);
    assert!(serde_json::from_str::<FormatId>("\"bf16\"").is_err());
}
