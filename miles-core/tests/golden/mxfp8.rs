//! `mxfp8.safetensors`.

use miles_core::format::layout::ScaleLayout;
use miles_core::format::{Axis, FormatId, FormatRule, Mxfp8, QuantizeSpec};

use crate::file::{Golden, assert_bf16, assert_bytes};

#[test]
fn every_mxfp8_vector_is_reproduced() {
    let golden = Golden::open("mxfp8.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let (mut compared, mut variants) = (0, 0);
    for (case, field) in golden.keys() {
        let key = format!("{case}/{field}");
        let (prefix, part) = field.split_once('.').unwrap();
        let axis = match prefix {
            "row" => Axis::Row,
            "col" => Axis::Column,
            "w2d" => {
                variants += 1;
                continue;
            }
            _ => panic!("{key}: unknown copy"),
        };
        let input = inputs.input(&format!("{case}/input"));
        let spec = QuantizeSpec::activation(FormatId::mxfp8()).with_axis(axis);
        let tensor = Mxfp8.quantize(&input.source(&case), &spec).unwrap();
        let scales = tensor.scales().as_u8().unwrap();
        match part {
            "codes" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "scales" => assert_bytes(&key, scales, &golden.bytes(&key)),
            "dq_bf16" => assert_bf16(&key, &tensor.dequantize_bf16().unwrap(), &golden.bits16(&key)),
            "scales_128x4" => {
                let (rows, blocks) = (tensor.scale_rows(), tensor.scale_cols());
                let (matrix, rows, blocks) = match axis {
                    Axis::Row => (scales.to_vec(), rows, blocks),
                    Axis::Column => {
                        let turned = (0..rows * blocks).map(|i| scales[i % rows * blocks + i / rows]);
                        (turned.collect(), blocks, rows)
                    }
                };
                let found = ScaleLayout::Tile128x4.swizzle(&matrix, rows, blocks).unwrap();
                assert_bytes(&key, &found, &golden.bytes(&key));
            }
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!((compared, variants), (163, 4));
}
