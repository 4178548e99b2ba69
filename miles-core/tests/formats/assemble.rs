//! Building tensors from parts, as a checkpoint reader does.

use miles_core::format::{
    BlockScales, FormatError, FormatId, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind, builtin_rule,
};
use miles_core::number::{e2m1, e4m3};

use crate::sample::{assert_same_bits, formats, quantize, specs, values};

fn assemble(parts: QuantizedParts) -> Result<QuantizedTensor, FormatError> {
    let rule = builtin_rule(&parts.format).unwrap();
    QuantizedTensor::from_parts(rule, Some("w"), parts)
}

#[test]
fn parts_reassemble_to_the_same_tensor() {
    for format in formats() {
        for spec in specs(&format) {
            let tensor = quantize(&values(6 * 38, 1), 6, 38, &spec);
            let again = assemble(tensor.to_parts()).unwrap();
            assert_eq!(again, tensor);
            assert_eq!(again.digest(), tensor.digest());
            let amax_bytes = size_of_val(tensor.amax());
            assert_eq!(again.canonical_bytes().len(), 56 + tensor.size_bytes() - amax_bytes);
        }
    }
}

#[test]
fn rejects_nan_scales_by_row_and_block() {
    let nvfp4 = quantize(&values(4 * 64, 1), 4, 64, &QuantizeSpec::weight(FormatId::nvfp4()));
    for byte in [0x7F, 0xFF] {
        let mut parts = nvfp4.to_parts();
        set_scale(&mut parts, 2 * 4 + 3, byte);
        let expected = FormatError::NanScale { tensor: "w".into(), row: 2, block: 3, byte };
        assert_eq!(assemble(parts).unwrap_err(), expected);
    }
    let mxfp8 = quantize(&values(4 * 64, 1), 4, 64, &QuantizeSpec::weight(FormatId::mxfp8()));
    let mut parts = mxfp8.to_parts();
    set_scale(&mut parts, 3, 0xFF);
    let expected = FormatError::NanScale { tensor: "w".into(), row: 1, block: 1, byte: 0xFF };
    assert_eq!(assemble(parts).unwrap_err(), expected);
    let mut parts = mxfp8.to_parts();
    set_scale(&mut parts, 3, 0x7F);
    assert!(assemble(parts).is_ok(), "0x7F is 2^0 in E8M0");

    let fp8 = quantize(&values(4 * 256, 1), 4, 256, &QuantizeSpec::activation(FormatId::fp8_block()));
    let mut parts = fp8.to_parts();
    parts.scales = BlockScales::F32(vec![1.0, 1.0, 1.0, 1.0, 1.0, f32::INFINITY, 1.0, 1.0]);
    let expected = FormatError::NonFiniteScale { tensor: "w".into(), row: 2, block: 1, value: f32::INFINITY };
    assert_eq!(assemble(parts).unwrap_err(), expected);
}

#[test]
fn rejects_parts_of_the_wrong_size_or_storage() {
    for format in formats() {
        let tensor = quantize(&values(4 * 64, 1), 4, 64, &QuantizeSpec::weight(format));
        let mut parts = tensor.to_parts();
        parts.codes.pop();
        let error = assemble(parts).unwrap_err();
        assert!(matches!(error, FormatError::PartLength { part: "codes", .. }), "{error}");
        let mut parts = tensor.to_parts();
        match &mut parts.scales {
            BlockScales::U8(scales) => scales.push(0),
            BlockScales::F32(scales) => scales.push(0.0),
        }
        let error = assemble(parts).unwrap_err();
        assert!(matches!(error, FormatError::PartLength { part: "scales", .. }), "{error}");
        let mut parts = tensor.to_parts();
        parts.outer.push(1.0);
        let error = assemble(parts).unwrap_err();
        assert!(matches!(error, FormatError::PartLength { part: "outer", .. }), "{error}");
        let mut parts = tensor.to_parts();
        parts.amax.extend([1.0, 1.0]);
        let error = assemble(parts).unwrap_err();
        assert!(matches!(error, FormatError::PartLength { part: "amax", .. }), "{error}");
    }
    let mut parts = quantize(&values(64, 1), 1, 64, &QuantizeSpec::weight(FormatId::mxfp8())).to_parts();
    parts.scales = BlockScales::F32(vec![1.0; 2]);
    let expected = FormatError::ScaleStorage {
        tensor: "w".into(),
        format: FormatId::mxfp8(),
        expected: ScaleKind::E8m0,
        found: "F32",
    };
    assert_eq!(assemble(parts).unwrap_err(), expected);
}

#[test]
fn rejects_impossible_outer_scales_and_amax() {
    let tensor = quantize(&values(4 * 32, 1), 4, 32, &QuantizeSpec::activation(FormatId::nvfp4()));
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let mut parts = tensor.to_parts();
        parts.outer[2] = bad;
        let error = assemble(parts).unwrap_err();
        assert!(matches!(error, FormatError::BadOuter { part: "outer", index: 2, .. }), "{error}");
    }
    let mut parts = tensor.to_parts();
    parts.amax[1] = f32::NAN;
    let error = assemble(parts).unwrap_err();
    assert!(matches!(error, FormatError::BadOuter { part: "amax", index: 1, .. }), "{error}");
}

/// A foreign NVFP4 tensor has a decode scale and no amax: it decodes as (code * scale) * decode scale.
#[test]
fn nvfp4_without_amax_decodes_by_its_outer_scale() {
    let tensor = quantize(&values(4 * 32, 1), 4, 32, &QuantizeSpec::weight(FormatId::nvfp4()));
    let mut parts = tensor.to_parts();
    parts.amax.clear();
    let foreign = assemble(parts).unwrap();
    let scales = tensor.scales().as_u8().unwrap();
    let expected: Vec<f32> = (0..128)
        .map(|i| {
            let code = tensor.codes()[i / 2] >> (4 * (i % 2));
            e2m1::decode(code) * e4m3::decode(scales[i / 16]) * tensor.outer()[0]
        })
        .collect();
    assert_same_bits(&foreign.dequantize_f32().unwrap(), &expected);
    assert_eq!(foreign.digest(), tensor.digest());
}

fn set_scale(parts: &mut QuantizedParts, index: usize, byte: u8) {
    match &mut parts.scales {
        BlockScales::U8(scales) => scales[index] = byte,
        BlockScales::F32(_) => panic!("byte scales expected"),
    }
}
