//! `nvfp4.safetensors`, and the joint gate/up pairs of `variants.safetensors`.

use half::bf16;
use miles_core::format::layout::ScaleLayout;
use miles_core::format::nvfp4::{Rounding, Tile, dequantize_without_outer};
use miles_core::format::{Axis, FormatId, FormatRule, NonFinite, Nvfp4, QuantizeSpec, QuantizedTensor, ScaleScope};

use crate::file::{Golden, Input, assert_bf16, assert_bytes, assert_f32};

#[test]
fn every_nvfp4_vector_is_reproduced() {
    let golden = Golden::open("nvfp4.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let mut compared = 0;
    for (case, field) in golden.keys() {
        let key = format!("{case}/{field}");
        let (prefix, part) = field.split_once('.').unwrap();
        let rule = match (prefix, part) {
            ("w2d", _) => Nvfp4::DEFAULT.with_tile(Tile::Square).unwrap(),
            (_, "codes_pyref") => Nvfp4::DEFAULT.with_rounding(Rounding::PositiveZero).unwrap(),
            _ => Nvfp4::DEFAULT,
        };
        let tensor = quantize(&rule, &inputs.input(&format!("{case}/input")), &case, prefix);
        let scales = tensor.scales().as_u8().unwrap();
        let (rows, blocks) = (tensor.scale_rows(), tensor.scale_cols());
        match part {
            "codes" | "codes_pyref" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "scales" => assert_bytes(&key, scales, &golden.bytes(&key)),
            "amax" => assert_f32(&key, tensor.amax(), &golden.f32(&key)),
            "token_scale" | "scale_2" => assert_f32(&key, tensor.outer(), &golden.f32(&key)),
            "dq_bf16" => assert_bf16(&key, &tensor.dequantize_bf16().unwrap(), &golden.bits16(&key)),
            "prod_bf16" => {
                let products = dequantize_without_outer(&tensor).unwrap();
                let exact: Vec<bf16> = products.iter().map(|&x| bf16::from_f32(x)).collect();
                assert!(products.iter().zip(&exact).all(|(&x, y)| x == y.to_f32()), "{key}: not exact");
                assert_bf16(&key, &exact, &golden.bits16(&key));
            }
            "scales_128x4" | "scales_8x4" => {
                let layout = if part == "scales_8x4" { ScaleLayout::Tile8x4 } else { ScaleLayout::Tile128x4 };
                let buffer = golden.bytes(&key);
                assert_bytes(&key, &layout.swizzle(scales, rows, blocks).unwrap(), &buffer);
                assert_bytes(&key, &layout.unswizzle(&buffer, rows, blocks).unwrap(), scales);
            }
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 570);
}

#[test]
fn every_joint_gate_up_vector_is_reproduced() {
    let golden = Golden::open("variants.safetensors");
    let mut compared = 0;
    for (case, field) in golden.keys().iter().filter(|(case, _)| case.starts_with("gateup")) {
        let (gate, up) = (golden.input(&format!("{case}/gate.input")), golden.input(&format!("{case}/up.input")));
        let spec = QuantizeSpec::weight(FormatId::nvfp4());
        let pair = Nvfp4::DEFAULT.quantize_joint(&[gate.source("gate"), up.source("up")], &spec).unwrap();
        let key = format!("{case}/{field}");
        match field.as_str() {
            "gate.input" | "up.input" => continue,
            "gate.codes" => assert_bytes(&key, pair[0].codes(), &golden.bytes(&key)),
            "up.codes" => assert_bytes(&key, pair[1].codes(), &golden.bytes(&key)),
            "gate.scales" => assert_bytes(&key, pair[0].scales().as_u8().unwrap(), &golden.bytes(&key)),
            "up.scales" => assert_bytes(&key, pair[1].scales().as_u8().unwrap(), &golden.bytes(&key)),
            "scale_2" => pair.iter().for_each(|t| assert_f32(&key, t.outer(), &golden.f32(&key))),
            "amax" => pair.iter().for_each(|t| assert_f32(&key, t.amax(), &golden.f32(&key))),
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 24);
}

/// The copy of an input that the first part of a field's name stands for.
pub fn quantize(rule: &Nvfp4, input: &Input, case: &str, prefix: &str) -> QuantizedTensor {
    let (axis, scope) = match prefix {
        "row" => (Axis::Row, ScaleScope::Row),
        "ten" | "w2d" => (Axis::Row, ScaleScope::Tensor),
        "col" => (Axis::Column, ScaleScope::Row),
        "tencol" => (Axis::Column, ScaleScope::Tensor),
        _ => panic!("{case}/{prefix}: unknown copy"),
    };
    let spec = QuantizeSpec::weight(rule.id()).with_axis(axis).with_scope(scope).with_non_finite(NonFinite::Hardware);
    rule.quantize(&input.source(case), &spec).unwrap()
}
