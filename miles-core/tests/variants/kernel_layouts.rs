//! Scales in the layouts of kernels: inverses, padding, and that nothing canonical depends on them.

use miles_core::format::layout::{
    DeepGemmScales, GemmScales, ScaleLayout, canonical_scales, exponent_bytes, exponent_values, repeat_tile_rows,
    swizzled_scales,
};
use miles_core::format::{
    BlockScales, FormatError, FormatId, FormatRule, Fp8Block, QuantizeSpec, QuantizedTensor, builtin_rule,
};

use crate::block_rules;
use crate::sample::{quantize, specs, transposed, values};

const SHAPES: [(usize, usize); 9] = [(0, 0), (0, 3), (3, 0), (1, 1), (7, 5), (8, 4), (127, 3), (128, 8), (131, 17)];
const LAYOUTS: [ScaleLayout; 4] =
    [ScaleLayout::Linear, ScaleLayout::PaddedLinear, ScaleLayout::Tile128x4, ScaleLayout::Tile8x4];

/// Every rule with one-byte scales, both axes: out and back through dirty padding, and the digest is the same.
#[test]
fn canonical_bytes_and_digest_never_depend_on_a_layout() {
    let mut laid_out = 0;
    let rules = block_rules().into_iter().chain(builtin_rule(&FormatId::nvfp4()));
    for rule in rules {
        for spec in specs(&rule.id()) {
            let tensor = quantize(&values(66 * 130, 4), 66, 130, &spec);
            for layout in LAYOUTS {
                let mut buffer = match swizzled_scales(&tensor, layout) {
                    Ok(buffer) => buffer,
                    Err(error) => {
                        assert!(tensor.scales().as_f32().is_some());
                        assert!(matches!(error, FormatError::LayoutOfF32 { .. }), "{error}");
                        continue;
                    }
                };
                let (rows, blocks) = match tensor.scale_rows() {
                    3 => (tensor.scale_cols(), 3),
                    rows => (rows, tensor.scale_cols()),
                };
                assert_eq!(buffer.len(), layout.buffer_bytes(rows, blocks));
                let mut real = vec![false; buffer.len()];
                for i in 0..rows * blocks {
                    real[layout.offset(i / blocks, i % blocks, blocks)] = true;
                }
                assert_eq!(real.iter().filter(|&&real| real).count(), rows * blocks, "offsets are distinct");
                for (byte, real) in buffer.iter_mut().zip(real) {
                    assert!(real || *byte == 0, "padding is zero");
                    *byte = if real { *byte } else { 0xFF };
                }
                let scales = canonical_scales(&tensor, layout, &buffer).unwrap();
                assert_eq!(scales, tensor.scales().as_u8().unwrap());
                let mut parts = tensor.to_parts();
                parts.scales = BlockScales::U8(scales);
                let again = QuantizedTensor::from_parts(rule, None, parts).unwrap();
                assert_eq!((again.digest(), again.canonical_bytes()), (tensor.digest(), tensor.canonical_bytes()));
                laid_out += 1;
            }
        }
    }
    assert_eq!(laid_out, 7 * 8 * 4);
}

/// A kernel wants one row of scales per line; a column copy of `mxfp8` has them the other way round.
#[test]
fn the_scales_of_an_mxfp8_column_copy_are_transposed() {
    let x = values(70 * 40, 2);
    let spec = QuantizeSpec::activation(FormatId::mxfp8());
    let column = quantize(&x, 70, 40, &spec.clone().with_axis(miles_core::format::Axis::Column));
    let row = quantize(&transposed(&x, 70, 40), 40, 70, &spec);
    for layout in LAYOUTS {
        assert_eq!(swizzled_scales(&column, layout).unwrap(), swizzled_scales(&row, layout).unwrap());
    }
    let error = canonical_scales(&column, ScaleLayout::Tile8x4, &[0; 3]).unwrap_err();
    assert!(matches!(error, FormatError::ScaleBufferLength { rows: 40, blocks: 3, .. }), "{error}");
}

#[test]
fn padded_linear_is_the_documented_allocation() {
    let found = ScaleLayout::PaddedLinear.swizzle(&[1, 2, 3, 4, 5, 6], 2, 3).unwrap();
    assert_eq!(found.len(), 128 * 4);
    assert_eq!(found[..8], [1, 2, 3, 0, 4, 5, 6, 0]);
    assert!(found[8..].iter().all(|&byte| byte == 0));
}

#[test]
fn deepgemm_layouts_round_trip_with_dirty_padding() {
    for layout in [DeepGemmScales::Sm90, DeepGemmScales::Sm100] {
        for (rows, blocks) in SHAPES {
            let scales: Vec<f32> = (0..rows * blocks).map(|i| 2_f32.powi(i as i32 % 200 - 100)).collect();
            let words = layout.arrange(&scales, rows, blocks).unwrap();
            assert_eq!(words.len(), layout.buffer_len(rows, blocks));
            let dirty = dirty_padding(layout, &words, rows, blocks);
            assert_eq!(layout.compact(&dirty, rows, blocks).unwrap(), scales);
            let error = layout.compact(&vec![0; words.len() + 1], rows, blocks).unwrap_err();
            assert!(matches!(error, FormatError::ScaleBufferLength { .. }), "{error}");
        }
    }
}

/// All ones wherever no scale stands: rows beyond the last, and blocks beyond the last within a word.
fn dirty_padding(layout: DeepGemmScales, words: &[u32], rows: usize, blocks: usize) -> Vec<u32> {
    let padded_rows = rows.next_multiple_of(4).max(1);
    let dirty = |(index, &word): (usize, &u32)| {
        let (block, row) = (index / padded_rows, index % padded_rows);
        match layout {
            _ if row >= rows => u32::MAX,
            DeepGemmScales::Sm90 => word,
            DeepGemmScales::Sm100 => match blocks - block * 4 {
                real @ 1..=3 => word | u32::MAX << (8 * real),
                _ => word,
            },
        }
    };
    words.iter().enumerate().map(dirty).collect()
}

#[test]
fn deepgemm_layouts_have_the_documented_places() {
    // [rows 2, blocks 5]
    let scales = [1.0, 2.0, 4.0, 8.0, 16.0, 0.5, 0.25, 0.125, 1.0, 2.0];
    let words = DeepGemmScales::Sm100.arrange(&scales, 2, 5).unwrap();
    assert_eq!(words, [0x8281_807F, 0x7F7C_7D7E, 0, 0, 0x83, 0x80, 0, 0]);
    let words = DeepGemmScales::Sm90.arrange(&scales, 2, 5).unwrap();
    assert_eq!(words[..4], [1.0_f32.to_bits(), 0.5_f32.to_bits(), 0, 0]);
    assert_eq!(words[16..], [16.0_f32.to_bits(), 2.0_f32.to_bits(), 0, 0]);
    let cublas: Vec<u32> = GemmScales::Block1x128.arrange(&scales, 2, 5).unwrap().iter().map(|s| s.to_bits()).collect();
    assert_eq!(words, cublas);
    let mut uneven = scales;
    uneven[7] = 3.0;
    let error = DeepGemmScales::Sm100.arrange(&uneven, 2, 5).unwrap_err();
    assert_eq!(error, FormatError::NotAPowerOfTwo { row: 1, block: 2, value: 3.0 });
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(exponent_bytes(&[bad], 1).is_err(), "{bad}");
    }
}

/// A quantized weight of `deepgemm-ue8m0` in the layout of its kernel, and back.
#[test]
fn tile_scales_are_repeated_for_every_row() {
    let (rows, cols) = (300, 520);
    let spec = QuantizeSpec::weight(Fp8Block::DEEPGEMM_UE8M0.id());
    let weight = quantize(&values(rows * cols, 1), rows, cols, &spec);
    let scales = weight.scales().as_f32().unwrap();
    let per_row = repeat_tile_rows(scales, rows, 5).unwrap();
    assert_eq!(per_row.len(), rows * 5);
    for row in 0..rows {
        assert_eq!(per_row[row * 5..][..5], scales[row / 128 * 5..][..5]);
    }
    let words = DeepGemmScales::Sm100.arrange(&per_row, rows, 5).unwrap();
    assert_eq!(words.len(), 2 * 300);
    assert_eq!(DeepGemmScales::Sm100.compact(&words, rows, 5).unwrap(), per_row);
    assert_eq!(exponent_values(&exponent_bytes(scales, 5).unwrap()), scales);
    assert!(repeat_tile_rows(scales, 600, 5).is_err());
}
