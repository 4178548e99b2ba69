//! `prims.safetensors`: number formats, the chain of scales, scale layouts.

use miles_core::format::layout::ScaleLayout;
use miles_core::format::nvfp4::OuterScale;
use miles_core::format::{Fp8Block, SourceDtype};
use miles_core::number::{bf16, e2m1, e4m3, e8m0};

use crate::file::{Golden, assert_bytes, assert_f32};

#[test]
fn every_primitive_vector_is_reproduced() {
    let golden = Golden::open("prims.safetensors");
    let patterns: Vec<f32> = (0..=u16::MAX).map(bf16::decode).collect();
    let ties = golden.f32("f32.bits");
    let amax = golden.f32("chain.amax");
    let mut compared = 0;
    for (_, key) in golden.keys() {
        match key.as_str() {
            "f32.bits" | "chain.amax" => {}
            "e2m1_decode_f32" => floats(&golden, &key, (0..16).map(e2m1::decode)),
            "e4m3_decode_f32" => floats(&golden, &key, (0..=255).map(e4m3::decode)),
            "e8m0_decode_f32" => floats(&golden, &key, (0..=255).map(e8m0::decode)),
            "e8m0_recip_f32" => floats(&golden, &key, (0..=255).map(e8m0::decode_reciprocal)),
            "all_bf16.e2m1" => bytes(&golden, &key, &patterns, e2m1::encode),
            "all_bf16.e4m3" => bytes(&golden, &key, &patterns, e4m3::encode),
            "all_bf16.e8m0_ceil_abs" => bytes(&golden, &key, &patterns, e8m0::encode_ceil),
            "f32.e2m1" => bytes(&golden, &key, &ties, e2m1::encode),
            "f32.e4m3" => bytes(&golden, &key, &ties, e4m3::encode),
            "f32.e8m0_ceil_abs" => bytes(&golden, &key, &ties, e8m0::encode_ceil),
            "f32.bf16" => {
                let expected: Vec<f32> = golden.bits16(&key).into_iter().map(bf16::decode).collect();
                let found: Vec<f32> = ties.iter().map(|&x| bf16::decode(bf16::encode(x))).collect();
                assert_f32(&key, &found, &expected);
                let rounded: Vec<f32> = ties.iter().map(|&x| bf16::round(x)).collect();
                assert_f32(&key, &rounded, &expected);
            }
            "chain.s_enc" => chain(&golden, &key, &amax, |a| OuterScale::from_amax(a).encode()),
            "chain.s_enc_times_r6" => chain(&golden, &key, &amax, |a| OuterScale::from_amax(a).multiplier()),
            "chain.s_dec" => chain(&golden, &key, &amax, |a| OuterScale::from_amax(a).decode()),
            _ if key.starts_with("chain.fp8_scale_") => fp8_chain(&golden, &key, &amax),
            _ if key.starts_with("layout_") => layout(&golden, &key),
            _ => panic!("{key}: no test compares it"),
        }
        compared += 1;
    }
    assert_eq!(compared, 42);
}

#[test]
fn every_code_decodes_to_a_value_that_encodes_to_it() {
    for code in 0..=255_u8 {
        if e4m3::is_nan(code) {
            assert_eq!(e4m3::encode(e4m3::decode(code)), e4m3::NAN);
        } else {
            assert_eq!(e4m3::encode(e4m3::decode(code)), code);
        }
        assert_eq!(e8m0::encode_ceil(e8m0::decode(code)), code);
        let product = e8m0::decode(code) * e8m0::decode_reciprocal(code);
        assert!(product == 1.0 || code == e8m0::NAN, "{code}: {product}");
        assert_eq!(e2m1::decode_pair(code)[0].to_bits(), e2m1::decode(code & 0xF).to_bits());
        assert_eq!(e2m1::decode_pair(code)[1].to_bits(), e2m1::decode(code >> 4).to_bits());
    }
    for code in 0..16_u8 {
        assert_eq!(e2m1::encode(e2m1::decode(code)), code);
        assert_eq!(f32::from(e2m1::DECODE_DOUBLED[code as usize]), 2.0 * e2m1::decode(code));
    }
    for bits in 0..=u16::MAX {
        let value = bf16::decode(bits);
        assert!(bf16::is_exact(value));
        assert!(bf16::encode(value) == bits || value.is_nan(), "{bits:#06x}");
    }
}

/// The definition, by search: the nearest value, the even code on a tie. Every 10007th `f32` pattern (a prime step).
/// Above 1024 the search stays at 1024, where `f64` still tells the distances apart.
#[test]
fn encoding_picks_the_nearest_value_over_the_whole_range() {
    let nearest = |x: f32, codes: std::ops::Range<u8>, decode: fn(u8) -> f32| {
        let distance = |code: u8| (f64::from(decode(code)) - f64::from(x.abs().min(1024.0))).abs();
        codes.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap()
    };
    for bits in (0..=0x7F80_0000_u32).step_by(10_007) {
        let x = f32::from_bits(bits);
        let by_search = nearest(x, 0..0x7F, e4m3::decode);
        assert_eq!(e4m3::encode(x), by_search, "{x:e}");
        assert_eq!(e4m3::encode(-x), by_search | 0x80, "{:e}", -x);
        let by_search = nearest(x, 0..8, e2m1::decode);
        assert_eq!(e2m1::encode(x), by_search, "{x:e}");
        assert_eq!(e2m1::encode(-x), by_search | 0x8, "{:e}", -x);
    }
}

#[test]
fn is_exact_tells_bf16_values_from_others() {
    assert!(bf16::is_exact(1.0) && bf16::is_exact(-0.0) && bf16::is_exact(f32::INFINITY));
    assert!(!bf16::is_exact(1.0 + f32::EPSILON) && !bf16::is_exact(f32::MAX) && bf16::is_exact(f32::NAN));
}

fn floats(golden: &Golden, key: &str, found: impl Iterator<Item = f32>) {
    assert_f32(key, &found.collect::<Vec<_>>(), &golden.f32(key));
}

fn bytes(golden: &Golden, key: &str, inputs: &[f32], encode: impl Fn(f32) -> u8) {
    assert_bytes(key, &inputs.iter().map(|&x| encode(x)).collect::<Vec<_>>(), &golden.bytes(key));
}

fn chain(golden: &Golden, key: &str, amax: &[f32], scale: impl Fn(f32) -> f32) {
    floats(golden, key, amax.iter().map(|&a| scale(a)));
}

/// `chain.fp8_scale[_inv]_p{0,1}_bf{0,1}`: power-of-two scales or not, BF16 input or F32.
fn fp8_chain(golden: &Golden, key: &str, amax: &[f32]) {
    let rule = if key.contains("_p1_") { Fp8Block::POW2_SCALES } else { Fp8Block::FP32_SCALES };
    let dtype = if key.ends_with("_bf1") { SourceDtype::Bf16 } else { SourceDtype::F32 };
    let scale = |a| rule.encode_scale(a, dtype);
    if key.contains("_inv_") {
        chain(golden, key, amax, |a| 1.0 / scale(a));
    } else {
        chain(golden, key, amax, scale);
    }
}

fn layout(golden: &Golden, key: &str) {
    let (shape, name) = key.strip_prefix("layout_").unwrap().split_once('.').unwrap();
    let (rows, blocks) = shape.split_once('x').map(|(r, b)| (r.parse().unwrap(), b.parse().unwrap())).unwrap();
    let layout = match name {
        "linear" => ScaleLayout::Linear,
        "sw128x4" => ScaleLayout::Tile128x4,
        "sw8x4" => ScaleLayout::Tile8x4,
        _ => panic!("{key}: unknown layout"),
    };
    let linear = golden.bytes(&format!("layout_{shape}.linear"));
    let expected = golden.bytes(key);
    assert_bytes(key, &layout.swizzle(&linear, rows, blocks).unwrap(), &expected);
    assert_bytes(key, &layout.unswizzle(&expected, rows, blocks).unwrap(), &linear);
}
