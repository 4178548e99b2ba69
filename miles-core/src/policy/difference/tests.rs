use super::*;
use crate::format::{FormatId, QuantizedParts, ScaleScope, Source, SourceDtype};
use crate::tensor::Dtype;

const FORMATS: [fn() -> FormatId; 4] =
    [FormatId::nvfp4, FormatId::mxfp8, FormatId::fp8_block, FormatId::fp8_block_pow2];
const ROWS: usize = 130;
const COLS: usize = 160;

fn quantized(format: FormatId) -> QuantizedTensor {
    // No zero, so that every sign bit counts.
    let values: Vec<f32> = (0..ROWS * COLS).map(|index| (index % 97) as f32 / 8.0 - 6.0625).collect();
    let source = Source::new(&values, ROWS, COLS, SourceDtype::Bf16, Some("w")).unwrap();
    builtin_rule(&format).unwrap().quantize(&source, &QuantizeSpec::weight(format)).unwrap()
}

fn changed(tensor: &QuantizedTensor, change: impl FnOnce(&mut QuantizedParts)) -> PolicyTensor {
    let mut parts = tensor.to_parts();
    change(&mut parts);
    let rule = builtin_rule(tensor.format()).unwrap();
    PolicyTensor::Quantized(QuantizedTensor::from_parts(rule, None, parts).unwrap())
}

fn byte(a: &PolicyTensor, b: &PolicyTensor) -> ByteDifference {
    match tensor_difference(a, b) {
        Some(TensorDifference::Byte(byte)) => byte,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_changed_code_is_found_at_its_row_and_column_with_its_value_in_every_format() {
    for format in FORMATS.map(|format| format()) {
        let tensor = quantized(format.clone());
        let codes_per_byte = ROWS * COLS / tensor.codes().len();
        let values = tensor.dequantize_f32().unwrap();
        for (row, column) in [(0, 0), (0, 1), (1, 31), (77, 64), (129, 159)] {
            let index = row * COLS + column;
            let (offset, sign) =
                (index / codes_per_byte, if codes_per_byte == 2 && column % 2 == 0 { 0x08 } else { 0x80 });
            let other = changed(&tensor, |parts| parts.codes[offset] ^= sign);
            let found = byte(&PolicyTensor::Quantized(tensor.clone()), &other);
            assert_eq!((found.part, found.offset_bytes), (Part::Codes, offset), "{format}");
            assert_eq!((found.rows, found.columns), (row..row + 1, column..column + 1), "{format}");
            assert_eq!(found.codes[0].width_bits as usize, 8 / codes_per_byte);
            assert_eq!(found.codes[0].value, Some(values[index]), "{format}");
            assert_eq!(found.codes[1].value, Some(-values[index]), "{format}");
            assert_eq!(found.codes[0].bits ^ found.codes[1].bits, 1 << (found.codes[0].width_bits - 1));
            let [block_rows, block_cols] = match format.as_str() {
                "nvfp4" => [1, 16],
                "mxfp8" => [1, 32],
                _ => [128, 128],
            };
            assert_eq!(found.block, Some([row / block_rows, column / block_cols]), "{format}");
            assert_eq!(found.counts[0].differing_bytes, 1);
            assert_eq!(found.counts.iter().map(|count| count.differing_bytes).sum::<usize>(), 1);
        }
    }
}

#[test]
fn a_changed_block_scale_names_the_elements_that_it_decides() {
    let last_rows = [(FormatId::nvfp4(), 129..130, 144..160), (FormatId::mxfp8(), 129..130, 128..160)];
    let blocks = [(FormatId::fp8_block(), 128..130, 128..160), (FormatId::fp8_block_pow2(), 128..130, 128..160)];
    for (format, rows, columns) in last_rows.into_iter().chain(blocks) {
        let tensor = quantized(format.clone());
        let other = changed(&tensor, |parts| match &mut parts.scales {
            BlockScales::U8(scales) => *scales.last_mut().unwrap() ^= 1,
            BlockScales::F32(scales) => *scales.last_mut().unwrap() *= 2.0,
        });
        let found = byte(&PolicyTensor::Quantized(tensor.clone()), &other);
        assert_eq!((found.part, found.rows, found.columns), (Part::BlockScales, rows, columns), "{format}");
        assert_eq!(found.block, Some([tensor.scale_rows() - 1, tensor.scale_cols() - 1]), "{format}");
        let [a, b] = found.codes.map(|code| code.value.unwrap());
        assert!(a > 0.0 && b > 0.0 && a != b, "{format}: {a} {b}");
    }
}

#[test]
fn a_changed_outer_scale_covers_its_tensor_or_row() {
    let tensor = quantized(FormatId::nvfp4());
    let other = changed(&tensor, |parts| parts.outer[0] *= 2.0);
    let found = byte(&PolicyTensor::Quantized(tensor.clone()), &other);
    assert_eq!((found.part, found.rows, found.columns), (Part::OuterScales, 0..ROWS, 0..COLS));
    assert_eq!(found.codes[1].value, Some(tensor.outer()[0] * 2.0));
    let values = vec![1.0; ROWS * COLS];
    let source = Source::new(&values, ROWS, COLS, SourceDtype::Bf16, None).unwrap();
    let spec = QuantizeSpec::weight(FormatId::nvfp4()).with_scope(ScaleScope::Row);
    let by_row = builtin_rule(&FormatId::nvfp4()).unwrap().quantize(&source, &spec).unwrap();
    let other = changed(&by_row, |parts| parts.outer[7] *= 2.0);
    assert_eq!(byte(&PolicyTensor::Quantized(by_row.clone()), &other).rows, 7..8);
    let kinds = tensor_difference(&PolicyTensor::Quantized(tensor), &PolicyTensor::Quantized(by_row));
    assert!(matches!(kinds, Some(TensorDifference::Kind { .. })), "{kinds:?}");
}

#[test]
fn the_first_part_in_canonical_order_is_shown_and_all_are_counted() {
    let tensor = quantized(FormatId::nvfp4());
    let other = changed(&tensor, |parts| {
        parts.codes[9] ^= 0x18;
        parts.codes[8] ^= 0x80;
        parts.outer[0] *= 4.0;
    });
    let found = byte(&PolicyTensor::Quantized(tensor), &other);
    assert_eq!((found.part, found.offset_bytes, found.columns), (Part::Codes, 8, 17..18));
    let counts: Vec<_> = found.counts.iter().map(|count| (count.part, count.differing_bytes)).collect();
    assert_eq!(counts, [(Part::Codes, 2), (Part::BlockScales, 0), (Part::OuterScales, 1)]);
}

#[test]
fn dense_elements_have_a_row_a_column_and_bits() {
    let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let dense = |values: &[f32]| PolicyTensor::Dense(DenseTensor::from_f32(dtype, vec![3, 4], values).unwrap());
        assert_eq!(tensor_difference(&dense(&values), &dense(&values)), None);
        let mut other = values.clone();
        other[6] = -6.0;
        let found = byte(&dense(&values), &dense(&other));
        assert_eq!((found.part, found.rows, found.columns), (Part::Elements, 1..2, 2..3));
        assert_eq!(found.codes.map(|code| code.value), [Some(6.0), Some(-6.0)]);
        let sign = found.codes[0].bits ^ found.codes[1].bits;
        assert_eq!(sign, 1 << (found.codes[0].width_bits - 1));
    }
    let vector = |value| PolicyTensor::Dense(DenseTensor::from_f32(Dtype::F32, vec![3], &[0.0, 0.0, value]).unwrap());
    assert_eq!(byte(&vector(1.0), &vector(2.0)).columns, 2..3);
}

#[test]
fn tensors_of_two_kinds_are_described_and_not_compared_byte_by_byte() {
    let of = |format: fn() -> FormatId| PolicyTensor::Quantized(quantized(format()));
    let difference = tensor_difference(&of(FormatId::fp8_block), &of(FormatId::fp8_block_pow2)).unwrap();
    let text = difference.to_string();
    assert!(text.contains("fp8-block [130, 160]") && text.contains("fp8-block/power-of-two [130, 160]"), "{text}");
    let dense = PolicyTensor::Dense(DenseTensor::from_f32(Dtype::F32, vec![1], &[0.0]).unwrap());
    assert!(matches!(tensor_difference(&dense, &of(FormatId::mxfp8)), Some(TensorDifference::Kind { .. })));
}

#[test]
fn the_text_has_hexadecimal_codes_and_decoded_values() {
    let tensor = quantized(FormatId::mxfp8());
    let other = changed(&tensor, |parts| parts.codes[163] ^= 0x80);
    let text = byte(&PolicyTensor::Quantized(tensor.clone()), &other).to_string();
    let code = tensor.codes()[163];
    let value = tensor.dequantize_f32().unwrap()[163];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "codes, byte 163: row 1, column 3, block [1, 0]");
    assert_eq!(lines[1], format!("A: 0x{code:02x} ({value:?})"));
    assert_eq!(lines[2], format!("B: 0x{:02x} ({:?})", code ^ 0x80, -value));
    assert_eq!(lines[3], "codes: 1 of 20800 bytes differ");
}
