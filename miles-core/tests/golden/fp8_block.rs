//! `blockfp8.safetensors`, and the `fp8_*` part of `variants.safetensors`.

use miles_core::format::layout::GemmScales;
use miles_core::format::{Axis, FormatRule, Fp8Block, NonFinite, QuantizeSpec};

use crate::file::{Golden, assert_bf16, assert_bytes, assert_f32};

#[test]
fn every_block_fp8_vector_is_reproduced() {
    let golden = Golden::open("blockfp8.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let mut compared = 0;
    for (case, field) in golden.keys() {
        let key = format!("{case}/{field}");
        let (prefix, part) = field.split_once('.').unwrap();
        let (operand, rounding) = prefix.split_once('_').unwrap();
        let rule = match rounding {
            "f32" => Fp8Block::FP32_SCALES,
            "p2" => Fp8Block::POW2_SCALES,
            _ => panic!("{key}: unknown rounding"),
        };
        let (spec, gemm) = match operand {
            "act" => (QuantizeSpec::activation(rule.id()), GemmScales::Block1x128),
            "wt" => (QuantizeSpec::weight(rule.id()), GemmScales::Tile128x128),
            _ => panic!("{key}: unknown operand"),
        };
        let axis = if part.ends_with("_t") { Axis::Column } else { Axis::Row };
        let spec = spec.with_axis(axis).with_non_finite(NonFinite::Hardware);
        let input = inputs.input(&format!("{case}/input"));
        let tensor = rule.quantize(&input.source(&case), &spec).unwrap();
        let scales = tensor.scales().as_f32().unwrap();
        match part {
            "codes" | "codes_t" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "scale_inv" | "scale_inv_t" => assert_f32(&key, scales, &golden.f32(&key)),
            "dq_bf16" => assert_bf16(&key, &tensor.dequantize_bf16().unwrap(), &golden.bits16(&key)),
            "scale_inv_gemm" => {
                let (rows, blocks) = (tensor.scale_rows(), tensor.scale_cols());
                let buffer = golden.f32(&key);
                assert_f32(&key, &gemm.arrange(scales, rows, blocks).unwrap(), &buffer);
                assert_f32(&key, &gemm.compact(&buffer, rows, blocks).unwrap(), scales);
            }
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 387);
}

#[test]
fn every_named_arithmetic_is_reproduced() {
    let golden = Golden::open("variants.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let mut compared = 0;
    for (case, field) in golden.keys() {
        let Some((variant, part)) = field.strip_prefix("fp8_").and_then(|rest| rest.split_once('.')) else { continue };
        let key = format!("{case}/{field}");
        let rule = match variant {
            "dg_act_f32" | "dg_wt_f32" => Fp8Block::DEEPGEMM,
            "dg_act_ue8m0" | "dg_wt_ue8m0" => Fp8Block::DEEPGEMM_UE8M0,
            "sgl_act" | "sgl_wt" => Fp8Block::SGLANG,
            "div_act" | "div_wt" => Fp8Block::SGLANG_DIVIDE,
            _ => panic!("{key}: unknown arithmetic"),
        };
        let spec = match variant.contains("_act") {
            true => QuantizeSpec::activation(rule.id()),
            false => QuantizeSpec::weight(rule.id()).with_non_finite(NonFinite::Hardware),
        };
        let input = inputs.input(&format!("{case}/input"));
        let tensor = rule.quantize(&input.source(&case), &spec).unwrap();
        match part {
            "codes" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "scale" => assert_f32(&key, tensor.scales().as_f32().unwrap(), &golden.f32(&key)),
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 176);
}
