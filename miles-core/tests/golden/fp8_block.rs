//! `blockfp8.safetensors`.

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
