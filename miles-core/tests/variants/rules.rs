//! What every rule promises about shapes, neighbours and the column copy.

use miles_core::format::{Axis, BlockScales, FormatError, FormatId, Operand, QuantizeSpec, ScaleScope};

use crate::block_rules;
use crate::sample::{LENGTHS, assert_same_bits, quantize, specs, transposed, values};

#[test]
fn every_rule_takes_every_shape() {
    let mut quantized = 0;
    for rule in block_rules() {
        for spec in specs(&rule.id()) {
            for rows in [0, 1, 31, 33, 129] {
                for cols in LENGTHS.into_iter().chain([1021]) {
                    let x = values(rows * cols, (rows * 1000 + cols) as u32);
                    let tensor = quantize(&x, rows, cols, &spec);
                    let layout = *tensor.layout();
                    assert_eq!(tensor.codes().len(), layout.codes_bytes);
                    assert_eq!(tensor.scales().len(), layout.scale_rows * layout.scale_cols);
                    assert_eq!((tensor.outer().len(), tensor.amax().len()), (layout.outer_len, 0));
                    let decoded = tensor.dequantize_f32().unwrap();
                    assert_eq!(decoded.len(), rows * cols);
                    assert!(decoded.iter().all(|y| y.is_finite()), "{spec:?} [{rows}, {cols}]");
                    quantized += 1;
                }
            }
        }
    }
    assert_eq!(quantized, 20 * 8 * 5 * 17);
}

/// Each row of an activation has the bytes that it has alone.
#[test]
fn a_row_of_an_activation_does_not_depend_on_its_neighbours() {
    let (rows, cols) = (37, 203);
    let mut x = values(rows * cols, 3);
    x[5 * cols..6 * cols].fill(0.0);
    x[7 * cols..8 * cols].fill(f32::from_bits(3));
    for rule in block_rules() {
        let spec = QuantizeSpec::activation(rule.id());
        let together = quantize(&x, rows, cols, &spec);
        let alone: Vec<_> = x.chunks(cols).map(|row| quantize(row, 1, cols, &spec)).collect();
        let codes: Vec<u8> = alone.iter().flat_map(|row| row.codes().to_vec()).collect();
        assert_eq!(together.codes(), codes, "{}", rule.id());
        let scales = match together.scales() {
            BlockScales::U8(_) => {
                BlockScales::U8(alone.iter().flat_map(|row| row.scales().as_u8().unwrap().to_vec()).collect())
            }
            BlockScales::F32(_) => {
                BlockScales::F32(alone.iter().flat_map(|row| row.scales().as_f32().unwrap().to_vec()).collect())
            }
        };
        assert_eq!(*together.scales(), scales);
        let outer: Vec<f32> = alone.iter().flat_map(|row| row.outer().to_vec()).collect();
        assert_eq!(together.outer(), outer);
    }
}

/// Rows that change places take their codes and scales with them.
#[test]
fn permuted_rows_have_permuted_bytes() {
    let (rows, cols) = (33, 96);
    let x = values(rows * cols, 11);
    let order: Vec<usize> = (0..rows).map(|row| row * 7 % rows).collect();
    let moved: Vec<f32> = order.iter().flat_map(|&row| x[row * cols..][..cols].to_vec()).collect();
    for rule in block_rules() {
        let spec = QuantizeSpec::activation(rule.id());
        let (before, after) = (quantize(&x, rows, cols, &spec), quantize(&moved, rows, cols, &spec));
        let (before, after) = (before.dequantize_f32().unwrap(), after.dequantize_f32().unwrap());
        for (to, &from) in order.iter().enumerate() {
            assert_same_bits(&after[to * cols..][..cols], &before[from * cols..][..cols]);
        }
    }
}

#[test]
fn a_column_copy_is_the_row_copy_of_the_transpose() {
    let (rows, cols) = (67, 130);
    let x = values(rows * cols, 5);
    let turned = transposed(&x, rows, cols);
    for rule in block_rules() {
        for spec in specs(&rule.id()).into_iter().filter(|spec| spec.axis == Axis::Column) {
            let column = quantize(&x, rows, cols, &spec);
            let row = quantize(&turned, cols, rows, &spec.clone().with_axis(Axis::Row));
            let values = transposed(&row.dequantize_f32().unwrap(), cols, rows);
            assert_same_bits(&column.dequantize_f32().unwrap(), &values);
            if rule.id().family() == "mxfp8" {
                let codes: Vec<u8> = (0..rows * cols).map(|i| row.codes()[i % cols * rows + i / cols]).collect();
                assert_eq!(column.codes(), codes);
            } else {
                assert_eq!((column.codes(), column.scales(), column.outer()), (row.codes(), row.scales(), row.outer()));
            }
        }
    }
}

/// No finite source gives a scale that is not a finite positive number: zero blocks beside large ones, subnormal
/// blocks, the largest values, every binade.
#[test]
fn finite_sources_never_give_bad_scales() {
    let mut zero_block = vec![1e4; 512];
    zero_block[128..256].fill(0.0);
    zero_block[300..340].fill(-0.0);
    let mut tiny_block = vec![1e4; 512];
    tiny_block[64..96].fill(1e-30);
    tiny_block[256..384].fill(1e-30);
    let binades: Vec<f32> = (0..512).map(|i| f32::from_bits((i * 253 / 512) << 23)).collect();
    let inputs = [zero_block, tiny_block, binades, vec![f32::MAX; 512], vec![f32::from_bits(1); 512], vec![0.0; 512]];
    for (number, x) in inputs.iter().enumerate() {
        for rule in block_rules() {
            for spec in specs(&rule.id()) {
                let source =
                    miles_core::format::Source::new(x, 4, 128, miles_core::format::SourceDtype::F32, None).unwrap();
                let tensor = match rule.quantize(&source, &spec) {
                    Ok(tensor) => tensor,
                    Err(error) => {
                        // The one finite amax without a scale: `even` rounds it to 2^128.
                        assert!(rule.id().as_str().starts_with("mxfp8/even") && number == 3, "{spec:?}: {error}");
                        assert!(matches!(error, FormatError::NanScale { byte: 0xFF, .. }));
                        continue;
                    }
                };
                match tensor.scales() {
                    BlockScales::U8(scales) => assert!(scales.iter().all(|&scale| scale <= 247)),
                    BlockScales::F32(scales) => assert!(scales.iter().all(|s| s.is_finite() && *s > 0.0), "{spec:?}"),
                }
                assert!(tensor.outer().iter().all(|s| s.is_finite() && *s > 0.0));
                let decoded = tensor.dequantize_f32().unwrap();
                assert!(x.iter().zip(&decoded).all(|(&x, &y)| !y.is_nan() && (x != 0.0 || y == 0.0)));
            }
        }
    }
}

#[test]
fn a_rule_refuses_another_formats_spec_and_a_scope_it_has_no_scale_for() {
    for rule in block_rules() {
        let other = QuantizeSpec::weight(FormatId::new("another").unwrap());
        assert!(matches!(rule.layout(1, 1, &other), Err(FormatError::FormatMismatch { .. })));
        let spec = QuantizeSpec::weight(rule.id()).with_scope(ScaleScope::Block);
        assert_eq!(rule.layout(1, 1, &spec).is_err(), rule.id().as_str() == "fp8-tensor");
        let huge = rule.layout(usize::MAX, 3, &QuantizeSpec::weight(rule.id()));
        assert!(matches!(huge, Err(FormatError::TooLarge { .. })), "{}: {huge:?}", rule.id());
    }
}

/// The variants of a family differ where it matters, and only the id differs where it does not.
#[test]
fn every_rule_has_a_name_and_bytes_of_its_own() {
    let x = values(64 * 256, 9);
    let mut digests: Vec<_> = block_rules()
        .iter()
        .map(|rule| quantize(&x, 64, 256, &QuantizeSpec::weight(rule.id())))
        .inspect(|tensor| assert_eq!(tensor.operand(), Operand::Weight))
        .map(|tensor| tensor.digest())
        .collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), block_rules().len());
}
