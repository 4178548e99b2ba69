//! `mxfp8.safetensors`, and the `mx_*` part of `variants.safetensors`.

use miles_core::format::layout::{ScaleLayout, canonical_scales, swizzled_scales};
use miles_core::format::{Axis, FormatError, FormatRule, Mxfp8, QuantizeSpec};

use crate::file::{Golden, assert_bf16, assert_bytes};

#[test]
fn every_mxfp8_vector_is_reproduced() {
    let golden = Golden::open("mxfp8.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let mut compared = 0;
    for (case, field) in golden.keys() {
        let key = format!("{case}/{field}");
        let (prefix, part) = field.split_once('.').unwrap();
        let (rule, base, axis) = match prefix {
            "row" => (Mxfp8::DEFAULT, QuantizeSpec::activation(Mxfp8::DEFAULT.id()), Axis::Row),
            "col" => (Mxfp8::DEFAULT, QuantizeSpec::activation(Mxfp8::DEFAULT.id()), Axis::Column),
            "w2d" => (Mxfp8::TILES, QuantizeSpec::weight(Mxfp8::TILES.id()), Axis::Row),
            _ => panic!("{key}: unknown copy"),
        };
        let input = inputs.input(&format!("{case}/input"));
        let tensor = rule.quantize(&input.source(&case), &base.with_axis(axis)).unwrap();
        let scales = tensor.scales().as_u8().unwrap();
        match part {
            "codes" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "scales" => assert_bytes(&key, scales, &golden.bytes(&key)),
            "dq_bf16" => assert_bf16(&key, &tensor.dequantize_bf16().unwrap(), &golden.bits16(&key)),
            "scales_128x4" => {
                let buffer = golden.bytes(&key);
                assert_bytes(&key, &swizzled_scales(&tensor, ScaleLayout::Tile128x4).unwrap(), &buffer);
                let back = canonical_scales(&tensor, ScaleLayout::Tile128x4, &buffer).unwrap();
                assert_bytes(&key, &back, scales);
            }
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 167);
}

/// The functions over rows, because one input has blocks whose amax `even` rounds to 2^128: their golden scale is the
/// NaN byte, which a tensor never holds.
#[test]
fn every_variant_of_the_scale_rounding_is_reproduced() {
    let golden = Golden::open("variants.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let (mut compared, mut refused) = (0, 0);
    for (case, field) in golden.keys() {
        let rule = match field.split_once('.') {
            Some(("mx_floor", _)) => Mxfp8::OCP_FLOOR,
            Some(("mx_even", _)) => Mxfp8::EVEN,
            _ => continue,
        };
        let key = format!("{case}/{field}");
        let input = inputs.input(&format!("{case}/input"));
        let blocks = input.cols.div_ceil(32);
        let (mut codes, mut scales) = (vec![0xAA; input.rows * input.cols], vec![0xAA; input.rows * blocks]);
        for (row, values) in input.values.chunks(input.cols).enumerate() {
            let (codes, scales) = (&mut codes[row * input.cols..][..input.cols], &mut scales[row * blocks..][..blocks]);
            rule.quantize_row(values, codes, scales);
        }
        let found = if field.ends_with("codes") { &codes } else { &scales };
        assert_bytes(&key, found, &golden.bytes(&key));
        let spec = QuantizeSpec::activation(rule.id());
        match rule.quantize(&input.source(&case), &spec) {
            Ok(tensor) => {
                assert_eq!((tensor.codes(), tensor.scales().as_u8().unwrap()), (&codes[..], &scales[..]), "{key}");
            }
            Err(error) => {
                let place = scales.iter().position(|&scale| scale == 0xFF).unwrap();
                let (row, block) = (place / blocks, place % blocks);
                assert_eq!(error, FormatError::NanScale { tensor: case.clone(), row, block, byte: 0xFF });
                refused += 1;
            }
        }
        compared += 1;
    }
    assert_eq!((compared, refused), (44, 2));
}
