//! Faults seen in other projects, which must not happen here.

use miles_core::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Mxfp8, NonFinite, Nvfp4, QuantizeSpec, QuantizedTensor,
    Source, SourceDtype,
};
use miles_core::number::{e4m3, e8m0};

use crate::sample::{assert_same_bits, formats, quantize, specs, values};

/// NVIDIA/Model-Optimizer 1633: an export wrote NaN scales for zero blocks.
#[test]
fn o1_zero_and_tiny_blocks_never_emit_nan_scales() {
    let mut zero_block = vec![1e4; 4 * 128];
    zero_block[128..256].fill(0.0);
    zero_block[300..340].fill(-0.0);
    let mut tiny_block = vec![1e4; 4 * 128];
    tiny_block[64..96].fill(1e-30);
    tiny_block[256..384].fill(1e-30);
    // Up to 2^117: above f32::MAX / 448 the NVFP4 decoding order overflows.
    let whole_range: Vec<f32> = (0..512).map(|i| f32::from_bits((i * 245 / 512) << 23)).collect();
    let largest = vec![f32::MAX; 512];
    let subnormal = vec![f32::from_bits(1); 512];
    for x in [zero_block, tiny_block, whole_range, largest, subnormal] {
        for format in formats() {
            for spec in specs(&format) {
                let tensor = quantize(&x, 4, 128, &spec);
                assert_scales_are_numbers(&tensor);
                let decoded = tensor.dequantize_f32().unwrap();
                assert!(x.iter().zip(&decoded).all(|(&x, &y)| !y.is_nan() && (x != 0.0 || y == 0.0)));
                if spec.axis == Axis::Row && x[128..256].iter().all(|&x| x == 0.0) {
                    let row_bytes = tensor.codes().len() / 4;
                    assert!(tensor.codes()[row_bytes..2 * row_bytes].iter().all(|&code| code == 0));
                }
            }
        }
    }
    let x = [f32::NAN, 1.0, f32::INFINITY, -1.0];
    let source = Source::new(&x, 2, 2, SourceDtype::Bf16, Some("experts.3.up")).unwrap();
    let spec = QuantizeSpec::weight(FormatId::nvfp4());
    let Err(FormatError::NonFinite { tensor, row, column, block, value }) = Nvfp4::DEFAULT.quantize(&source, &spec)
    else {
        panic!("a NaN weight is an error");
    };
    assert_eq!((tensor.as_str(), row, column, block), ("experts.3.up", 0, 0, 0));
    assert!(value.is_nan());
}

/// radixark/miles PR 1054: the serving side did not round scales to nearest. One rule here: halfway values go to the
/// even code for scales and codes alike.
#[test]
fn o2_scales_and_codes_round_ties_to_even() {
    // Outer scale 1: amax 2688 in block 0. Block 1 has amax * (1/6) halfway between the E4M3 values 16 and 18.
    let mut x = [0.0; 32];
    x[0] = 2688.0;
    x[16] = 102.0;
    let tensor = quantize(&x, 1, 32, &QuantizeSpec::activation(FormatId::nvfp4()));
    assert_eq!(tensor.outer(), [1.0]);
    assert_eq!(tensor.scales().as_u8().unwrap()[1], e4m3::encode(16.0));
    // Block scale 1 (amax 448): 17 is halfway between the codes 16 and 18, 19 between 18 and 20.
    let mut x = [0.0; 32];
    x[..3].copy_from_slice(&[448.0, 17.0, 19.0]);
    let tensor = quantize(&x, 1, 32, &QuantizeSpec::activation(FormatId::mxfp8()));
    assert_eq!(tensor.dequantize_f32().unwrap()[..3], [448.0, 16.0, 20.0]);
}

/// InternLM/xtuner 2044: the trainer quantized FP32 masters, the exporter their BF16 copies. A source says which it is
/// and is held to it.
#[test]
fn o3_a_source_that_is_not_what_its_dtype_says_is_refused() {
    let master = [1.0, 1.0 + f32::EPSILON];
    let error = Source::new(&master, 1, 2, SourceDtype::Bf16, Some("w")).unwrap_err();
    assert_eq!(error, FormatError::NotBf16 { tensor: "w".into(), row: 0, column: 1, value: 1.0 + f32::EPSILON });
    assert!(Source::new(&master, 1, 2, SourceDtype::F32, Some("w")).is_ok());
}

/// NVIDIA/TransformerEngine 2966: a grouped linear refused token counts that are no multiple of 32.
#[test]
fn o4_any_token_count_has_the_bytes_of_its_single_rows() {
    let cols = 192;
    for format in formats() {
        let spec = QuantizeSpec::activation(format.clone());
        for (expert, tokens) in [0, 1, 31, 33, 64].into_iter().enumerate() {
            let x = values(tokens * cols, expert as u32);
            let together = quantize(&x, tokens, cols, &spec);
            let alone: Vec<QuantizedTensor> = x.chunks(cols).map(|row| quantize(row, 1, cols, &spec)).collect();
            let codes: Vec<u8> = alone.iter().flat_map(|t| t.codes().to_vec()).collect();
            assert_eq!(together.codes(), codes);
            match together.scales() {
                BlockScales::U8(scales) => {
                    let single: Vec<u8> = alone.iter().flat_map(|t| t.scales().as_u8().unwrap().to_vec()).collect();
                    assert_eq!(*scales, single);
                }
                BlockScales::F32(scales) => {
                    let single: Vec<f32> = alone.iter().flat_map(|t| t.scales().as_f32().unwrap().to_vec()).collect();
                    assert_eq!(*scales, single);
                }
            }
            let outer: Vec<f32> = alone.iter().flat_map(|t| t.outer().to_vec()).collect();
            assert_eq!(together.outer(), outer);
        }
    }
}

/// The same for the copy whose blocks run over tokens: padding to 32 tokens changes no real row.
#[test]
fn o4_column_blocks_of_any_token_count_equal_zero_padded_ones() {
    let cols = 48;
    for tokens in [0_usize, 1, 31, 33, 64] {
        let x = values(tokens * cols, tokens as u32);
        let mut padded = x.clone();
        padded.resize(tokens.next_multiple_of(32) * cols, 0.0);
        let spec = QuantizeSpec::activation(FormatId::mxfp8()).with_axis(Axis::Column);
        let short = quantize(&x, tokens, cols, &spec);
        let full = quantize(&padded, tokens.next_multiple_of(32), cols, &spec);
        assert_eq!(short.codes(), &full.codes()[..tokens * cols]);
        assert_eq!(short.scales(), full.scales());
    }
}

/// vllm 54974: gate and up carried different outer scales. Quantized as a pair they share one, which is that of their
/// concatenation.
#[test]
fn o5_gate_and_up_share_the_outer_scale_of_their_concatenation() {
    let cols = 64;
    let (gate, mut up) = (values(3 * cols, 1), values(5 * cols, 2));
    up[7] = 1e4;
    let both: Vec<f32> = gate.iter().chain(&up).copied().collect();
    let source = |x, rows, name| Source::new(x, rows, cols, SourceDtype::F32, Some(name)).unwrap();
    for spec in specs(&FormatId::nvfp4()).into_iter().filter(|spec| spec.axis == Axis::Row) {
        let pair = Nvfp4::DEFAULT.quantize_joint(&[source(&gate, 3, "gate"), source(&up, 5, "up")], &spec).unwrap();
        let fused = quantize(&both, 8, cols, &spec);
        let (gate_values, up_values) = (pair[0].dequantize_f32().unwrap(), pair[1].dequantize_f32().unwrap());
        assert_same_bits(&[gate_values, up_values].concat(), &fused.dequantize_f32().unwrap());
        assert_eq!([pair[0].codes(), pair[1].codes()].concat(), fused.codes());
    }
    let narrow = Source::new(&gate, 6, 32, SourceDtype::F32, Some("narrow")).unwrap();
    let spec = QuantizeSpec::weight(FormatId::nvfp4());
    let error = Nvfp4::DEFAULT.quantize_joint(&[source(&gate, 3, "gate"), narrow], &spec).unwrap_err();
    let expected = FormatError::JointWidth { tensor: "narrow".into(), first: "gate".into(), expected: 64, found: 32 };
    assert_eq!(error, expected);
    assert!(Mxfp8.quantize_joint(&[], &QuantizeSpec::weight(FormatId::mxfp8())).unwrap().is_empty());
}

#[test]
fn hardware_rule_never_emits_nan_scales_either() {
    let mut x = values(64 * 64, 11);
    x[5] = f32::NAN;
    x[70] = f32::INFINITY;
    x[64 * 10..64 * 12].fill(f32::NAN);
    x[64 * 12..64 * 14].fill(f32::NEG_INFINITY);
    for format in formats() {
        for spec in specs(&format) {
            assert_eq!(spec.non_finite, NonFinite::Hardware);
            assert_scales_are_numbers(&quantize(&x, 64, 64, &spec));
        }
    }
    let source = Source::new(&x, 64, 64, SourceDtype::F32, None).unwrap();
    assert_eq!(source.count_non_finite(), 2 + 256);
}

fn assert_scales_are_numbers(tensor: &QuantizedTensor) {
    match tensor.scales() {
        BlockScales::U8(scales) if *tensor.format() == FormatId::mxfp8() => {
            assert!(scales.iter().all(|&scale| scale != e8m0::NAN));
        }
        BlockScales::U8(scales) => assert!(scales.iter().all(|&scale| scale <= 0x7E)),
        BlockScales::F32(scales) => {
            assert!(scales.iter().all(|scale| scale.is_finite() && *scale > 0.0))
        }
    }
    assert!(tensor.outer().iter().all(|outer| outer.is_finite()));
}
