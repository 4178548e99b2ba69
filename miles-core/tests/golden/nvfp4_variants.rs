//! The NVFP4 variants of `variants.safetensors`: scale rules, rotation, stochastic rounding.

use miles_core::format::nvfp4::Hadamard;
use miles_core::format::{Axis, FormatId, Nvfp4, QuantizeSpec, Source, SourceDtype, builtin_rule};
use miles_core::number::{bf16, e2m1};

use crate::file::{Golden, assert_bytes};
use crate::nvfp4::quantize;

#[test]
fn every_scale_rule_vector_is_reproduced() {
    let golden = Golden::open("variants.safetensors");
    let inputs = Golden::open("inputs.safetensors");
    let mut compared = 0;
    for (case, field) in golden.keys().iter().filter(|(_, field)| field.starts_with("nv_")) {
        let key = format!("{case}/{field}");
        let (variant, part) = field.split_once('.').unwrap();
        let (scope, name) = match variant.strip_prefix("nv_4o6_") {
            Some(choice) => {
                let (scope, choice) = choice.split_once('_').unwrap();
                (scope, format!("nvfp4/four-over-six-{}", choice.replace('_', "-")))
            }
            None if variant == "nv_te213" => ("ten", "nvfp4/te-2.13".to_owned()),
            None => panic!("{key}: unknown variant"),
        };
        let rule = Nvfp4::of(&FormatId::new(&name).unwrap()).unwrap();
        let tensor = quantize(&rule, &inputs.input(&format!("{case}/input")), case, scope);
        match part {
            "codes" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "scales" => assert_bytes(&key, tensor.scales().as_u8().unwrap(), &golden.bytes(&key)),
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 11 * 9 * 2);
}

/// The rotated values are bytes of the quantizer too: quantized without a rotation they give the codes and scales that the
/// rotating variant makes of the input, and each lies where the variant's codes decode to.
#[test]
fn every_rotation_vector_is_reproduced() {
    let golden = Golden::open("variants.safetensors");
    let input = golden.input("rht_signed/input");
    let mut compared = 0;
    for (case, field) in golden.keys().iter().filter(|(case, _)| case.starts_with("rht_")) {
        let key = format!("{case}/{field}");
        let hadamard = if case == "rht_signed" { Hadamard::Signed } else { Hadamard::Plain };
        let rule = Nvfp4::DEFAULT.with_hadamard(Some(hadamard)).unwrap();
        let tensor = quantize(&rule, &input, case, "ten");
        let output = golden.input(&format!("{case}/output"));
        match field.as_str() {
            "ten.codes" => assert_bytes(&key, tensor.codes(), &golden.bytes(&key)),
            "ten.scales" => assert_bytes(&key, tensor.scales().as_u8().unwrap(), &golden.bytes(&key)),
            "output" => {
                let mut rotated = input.values.clone();
                hadamard.forward(&mut rotated);
                let bits =
                    |values: &[f32]| values.iter().flat_map(|&x| bf16::encode(x).to_le_bytes()).collect::<Vec<_>>();
                assert_bytes(&key, &bits(&rotated), &bits(&output.values));
                let plain = quantize(&Nvfp4::DEFAULT, &output, case, "ten");
                assert_bytes(&key, plain.codes(), tensor.codes());
                assert_eq!(plain.amax(), tensor.amax());
                assert_eq!(rule.dequantize_operand(&tensor).unwrap(), plain.dequantize_f32().unwrap());
            }
            "input" => continue,
            "sign" => {
                let mut first = [0.0; 16];
                let signs = golden.f32(&key);
                for (k, sign) in signs.iter().enumerate() {
                    let mut unit = [0.0; 16];
                    unit[k] = 4.0;
                    Hadamard::Signed.forward(&mut unit);
                    first[k] = unit[0];
                    assert_eq!(first[k], *sign, "{key}");
                }
            }
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 7);
}

#[test]
fn every_stochastic_rounding_vector_is_reproduced() {
    let golden = Golden::open("variants.safetensors");
    let fields: Vec<String> =
        golden.keys().into_iter().filter(|(case, _)| case == "sr_e2m1").map(|(_, field)| field).collect();
    assert_eq!(fields, ["code", "rbits8", "x"]);
    let (x, random) = (golden.f32("sr_e2m1/x"), golden.bytes("sr_e2m1/rbits8"));
    let codes: Vec<u8> = x.iter().zip(&random).map(|(&x, &random)| e2m1::encode_stochastic(x, random)).collect();
    assert_eq!(codes.len(), 2023);
    assert_bytes("sr_e2m1/code", &codes, &golden.bytes("sr_e2m1/code"));
}

/// The gate/up pairs under every listed variant: the pair has the outer scale of its concatenation.
#[test]
fn gate_up_pairs_share_an_outer_scale_in_every_variant() {
    let golden = Golden::open("variants.safetensors");
    for case in ["gateup0", "gateup1", "gateup2", "gateup3"] {
        let (gate, up) = (golden.input(&format!("{case}/gate.input")), golden.input(&format!("{case}/up.input")));
        let both = [gate.values.clone(), up.values.clone()].concat();
        let both = Source::new(&both, gate.rows + up.rows, gate.cols, SourceDtype::Bf16, None).unwrap();
        for name in ["te-2.13", "four-over-six-mse-256", "hadamard", "stochastic", "16x16", "decode-scale-order"] {
            let rule = builtin_rule(&FormatId::new(&format!("nvfp4/{name}")).unwrap()).unwrap();
            let spec = QuantizeSpec::weight(rule.id()).with_axis(Axis::Row);
            let pair = rule.quantize_joint(&[gate.source("gate"), up.source("up")], &spec).unwrap();
            let fused = rule.quantize(&both, &spec).unwrap();
            assert!(pair.iter().all(|tensor| tensor.outer() == fused.outer() && tensor.amax() == fused.amax()));
            if name != "16x16" || gate.rows % 16 == 0 {
                assert_bytes(name, &[pair[0].codes(), pair[1].codes()].concat(), fused.codes());
            }
        }
    }
}
