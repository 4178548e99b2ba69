//! Every length around a block border: sizes of the parts, and padding that never shows.

use miles_core::format::{Axis, FormatId, FormatRule, Fp8Block, QuantizeSpec, ScaleScope, SourceDtype, mxfp8, nvfp4};

use crate::sample::{LENGTHS, assert_same_bits, fits, formats, is_tiled, lines, quantize, specs, values};

#[test]
fn every_shape_has_parts_of_the_declared_sizes_and_decodes() {
    let mut quantized = 0;
    for format in formats() {
        for spec in specs(&format) {
            for rows in [0, 1, 2, 17, 33, 129] {
                for cols in LENGTHS {
                    if !fits(&spec, rows, cols) {
                        continue;
                    }
                    let x = values(rows * cols, (rows * 1000 + cols) as u32);
                    let tensor = quantize(&x, rows, cols, &spec);
                    let layout = *tensor.layout();
                    assert_eq!((tensor.rows(), tensor.cols()), (rows, cols));
                    assert_eq!(tensor.codes().len(), layout.codes_bytes);
                    assert_eq!(tensor.scales().len(), tensor.scale_rows() * tensor.scale_cols());
                    assert_eq!(tensor.dequantize_f32().unwrap().len(), rows * cols);
                    assert_eq!(tensor.dequantize_bf16().unwrap().len(), rows * cols);
                    quantized += 1;
                }
            }
        }
    }
    // Three formats take every shape; NVFP4 those with an even number of columns (or rows).
    assert_eq!(quantized, 3 * 8 * 6 * 16 + 4 * 6 * 7 + 4 * 2 * 16);
}

/// A short last block has the bytes of the same block padded with zeros.
#[test]
fn a_short_last_block_equals_a_zero_padded_one() {
    for format in formats() {
        for spec in specs(&format).into_iter().filter(|spec| !is_tiled(spec)) {
            for length in LENGTHS.into_iter().filter(|length| length % 2 == 0) {
                let (count, padded_length) = (3, length.next_multiple_of(128));
                let line_values = values(count * length, length as u32);
                let mut padded_lines = vec![0.0; count * padded_length];
                for line in 0..count {
                    padded_lines[line * padded_length..][..length]
                        .copy_from_slice(&line_values[line * length..][..length]);
                }
                let (short, padded) = match spec.axis {
                    Axis::Row => (
                        quantize(&line_values, count, length, &spec),
                        quantize(&padded_lines, count, padded_length, &spec),
                    ),
                    Axis::Column => (
                        quantize(&crate::sample::transposed(&line_values, count, length), length, count, &spec),
                        quantize(
                            &crate::sample::transposed(&padded_lines, count, padded_length),
                            padded_length,
                            count,
                            &spec,
                        ),
                    ),
                };
                let (short_values, padded_values) = (short.dequantize_f32().unwrap(), padded.dequantize_f32().unwrap());
                let (rows, cols) = (short.rows(), short.cols());
                for row in 0..rows {
                    assert_same_bits(
                        &short_values[row * cols..][..cols],
                        &padded_values[row * padded.cols()..][..cols],
                    );
                }
                assert_eq!(short.amax(), padded.amax());
                assert_eq!(short.outer(), padded.outer());
            }
        }
    }
}

#[test]
fn row_entry_points_write_the_bytes_of_the_whole_tensor() {
    for cols in LENGTHS {
        let rows = 3;
        let x = values(rows * cols, 7);
        let row = |r: usize| &x[r * cols..][..cols];

        let whole = quantize(&x, rows, cols, &QuantizeSpec::activation(FormatId::mxfp8()));
        let blocks = cols.div_ceil(mxfp8::BLOCK);
        let (mut codes, mut scales) = (vec![0xAA; rows * cols], vec![0xAA; rows * blocks]);
        for r in 0..rows {
            mxfp8::quantize_row(row(r), &mut codes[r * cols..][..cols], &mut scales[r * blocks..][..blocks]);
        }
        assert_eq!((whole.codes(), whole.scales().as_u8().unwrap()), (&codes[..], &scales[..]));

        for rule in [Fp8Block::FP32_SCALES, Fp8Block::POW2_SCALES] {
            let whole = quantize(&x, rows, cols, &QuantizeSpec::activation(rule.id()));
            let blocks = cols.div_ceil(128);
            let (mut codes, mut scales) = (vec![0xAA; rows * cols], vec![f32::NAN; rows * blocks]);
            for r in 0..rows {
                let (row_codes, row_scales) = (&mut codes[r * cols..][..cols], &mut scales[r * blocks..][..blocks]);
                rule.quantize_row(row(r), SourceDtype::F32, row_codes, row_scales);
            }
            assert_eq!((whole.codes(), whole.scales().as_f32().unwrap()), (&codes[..], &scales[..]));
        }

        if cols % 2 == 0 {
            let whole = quantize(&x, rows, cols, &QuantizeSpec::activation(FormatId::nvfp4()));
            let blocks = cols.div_ceil(nvfp4::BLOCK);
            let (mut codes, mut scales) = (vec![0xAA; rows * cols / 2], vec![0xAA; rows * blocks]);
            for r in 0..rows {
                let row_codes = &mut codes[r * cols / 2..][..cols / 2];
                let outer = nvfp4::quantize_row(row(r), row_codes, &mut scales[r * blocks..][..blocks]);
                assert_eq!(outer.row_decode(), whole.outer()[r]);
                assert_eq!(outer.amax(), whole.amax()[r]);
            }
            assert_eq!((whole.codes(), whole.scales().as_u8().unwrap()), (&codes[..], &scales[..]));
        }
    }
}

#[test]
fn outer_scales_are_one_per_line_or_one() {
    for spec in specs(&FormatId::nvfp4()) {
        let (rows, cols) = (6, 34);
        let tensor = quantize(&values(rows * cols, 3), rows, cols, &spec);
        let expected = match spec.scope {
            ScaleScope::Row => lines(&spec, rows, cols).0,
            _ => 1,
        };
        assert_eq!((tensor.outer().len(), tensor.amax().len()), (expected, expected));
    }
}

#[test]
fn zeros_decode_to_zeros_and_export_the_documented_outer_scale() {
    for format in formats() {
        for spec in specs(&format) {
            let tensor = quantize(&[0.0; 128], 4, 32, &spec);
            assert!(tensor.codes().iter().all(|&code| code == 0));
            assert_same_bits(&tensor.dequantize_f32().unwrap(), &[0.0; 128]);
            if format == FormatId::nvfp4() {
                let expected = if spec.scope == ScaleScope::Row { 0.0 } else { f32::from_bits(0x0020_0000) };
                assert!(tensor.outer().iter().all(|&outer| outer == expected));
            }
        }
    }
}
