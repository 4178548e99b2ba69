//! Every pattern of the small number formats against their definitions in `f64`.

use miles_core::format::nvfp4::dequantize_without_outer;
use miles_core::format::{
    Axis, BlockScales, FormatId, FormatRule, Mxfp8, Operand, Partition, QuantizedParts, QuantizedTensor, ScaleScope,
    builtin_rule,
};
use miles_core::number::{bf16, e2m1, e4m3, e8m0, integer};

/// A float with `mantissa` bits of mantissa and the given exponent bias; no infinities.
fn float(code: u8, mantissa: u32, exponent_bits: u32, bias: i32) -> f64 {
    let sign = if code >> (mantissa + exponent_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(code >> mantissa) & ((1 << exponent_bits) - 1);
    let fraction = f64::from(u32::from(code) & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2_f64.powi(exponent - bias),
    };
    sign * magnitude
}

fn e4m3_value(code: u8) -> f64 {
    if code & 0x7F == 0x7F { f64::NAN } else { float(code, 3, 4, 7) }
}

fn e2m1_value(code: u8) -> f64 {
    float(code, 1, 2, 1)
}

fn e8m0_value(code: u8) -> f64 {
    if code == 0xFF { f64::NAN } else { 2_f64.powi(i32::from(code) - 127) }
}

fn every_bf16() -> impl Iterator<Item = f32> {
    (0..=u16::MAX).map(bf16::decode)
}

/// The magnitude code nearest to `x`, the even one on a tie, by search over all of them.
fn nearest(x: f64, codes: std::ops::Range<u8>, value: fn(u8) -> f64) -> u8 {
    // Beyond the range the distance to the largest code stays the smallest; the cap keeps `f64` exact.
    let x = x.abs().min(1e6);
    let distance = |code: u8| (value(code) - x).abs();
    codes.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap()
}

#[test]
fn every_bf16_pattern_has_the_nearest_code_of_every_element_format() {
    for x in every_bf16() {
        let exact = f64::from(x);
        let sign = u8::from(x.is_sign_negative());
        if x.is_nan() {
            assert_eq!((e4m3::encode(x), e2m1::encode(x)), (0x7F, 0x7));
            assert_eq!((integer::encode_int8(x), integer::encode_int4(x)), (0, 0));
            continue;
        }
        // Below half the smallest subnormal `f64` distances of BF16's smallest values still tell apart.
        assert_eq!(e4m3::encode(x), nearest(exact, 0..0x7F, e4m3_value) | sign << 7, "{x:e}");
        assert_eq!(e2m1::encode(x), nearest(exact, 0..8, e2m1_value) | sign << 3, "{x:e}");
        let int8 = (-128..=127_i32).min_by(|&a, &b| nearer_integer(exact, a, b)).unwrap();
        assert_eq!(integer::encode_int8(x), int8 as u8, "{x:e}");
        let int4 = (-8..=7_i32).min_by(|&a, &b| nearer_integer(exact, a, b)).unwrap();
        assert_eq!(integer::encode_int4(x), int4 as u8 & 0xF, "{x:e}");
    }
}

fn nearer_integer(x: f64, a: i32, b: i32) -> std::cmp::Ordering {
    let x = x.clamp(-1e6, 1e6);
    let distance = |code: i32| (f64::from(code) - x).abs();
    distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))
}

#[test]
fn every_bf16_pattern_has_the_code_of_every_scale_format() {
    for x in every_bf16() {
        let magnitude = f64::from(x).abs();
        let up = match magnitude {
            nan if nan.is_nan() => 0xFF,
            infinity if infinity.is_infinite() => 0xFE,
            finite => (0..=254_u8).find(|&code| e8m0_value(code) >= finite).unwrap_or(254),
        };
        assert_eq!(e8m0::encode_ceil(x), up, "{x:e}");
    }
    // The scale of NVFP4 is E4M3 of a positive number: covered by the element test above.
}

#[test]
fn every_code_has_the_value_of_its_definition() {
    let same = |found: f32, expected: f64| assert!(f64::from(found) == expected || found.is_nan() && expected.is_nan());
    for code in 0..=255_u8 {
        same(e4m3::decode(code), e4m3_value(code));
        same(e8m0::decode(code), e8m0_value(code));
        same(integer::decode_int8(code), f64::from(code as i8));
        same(integer::decode_int4(code), f64::from(((code << 4) as i8) >> 4));
        let [low, high] = e2m1::decode_pair(code);
        same(low, e2m1_value(code & 0xF));
        same(high, e2m1_value(code >> 4));
    }
}

fn parts(format: FormatId, rows: usize, cols: usize, codes: Vec<u8>, scales: Vec<u8>) -> QuantizedParts {
    QuantizedParts {
        format,
        operand: Operand::Activation,
        axis: Axis::Row,
        scope: ScaleScope::Tensor,
        partition: Partition::WHOLE,
        rows,
        cols,
        codes,
        scales: BlockScales::U8(scales),
        outer: Vec::new(),
        amax: Vec::new(),
    }
}

/// All 256 pairs of E2M1 codes under all E4M3 scales that are numbers, through the tensor: exact, and exact in BF16.
#[test]
fn every_nvfp4_product_is_exact() {
    let scales: Vec<u8> = (0..=255).filter(|&byte| !e4m3::is_nan(byte)).collect();
    let (rows, cols) = (scales.len(), 512);
    let codes = (0..rows).flat_map(|_| 0..=255_u8).collect();
    let block_scales = scales.iter().flat_map(|&scale| [scale; 32]).collect();
    let made = QuantizedParts { outer: vec![1.0], ..parts(FormatId::nvfp4(), rows, cols, codes, block_scales) };
    let tensor = QuantizedTensor::from_parts(builtin_rule(&FormatId::nvfp4()).unwrap(), None, made).unwrap();
    let products = dequantize_without_outer(&tensor).unwrap();
    let mut compared = 0;
    for (row, products) in scales.iter().zip(products.chunks(cols)) {
        for (at, &product) in products.iter().enumerate() {
            let code = (at / 2) as u8 >> (at % 2 * 4) & 0xF;
            assert_eq!(f64::from(product), e2m1_value(code) * e4m3_value(*row), "{code} {row}");
            assert!(bf16::is_exact(product));
            compared += 1;
        }
    }
    assert_eq!(compared, 254 * 512);
}

/// All E4M3 codes under all E8M0 scales that are numbers: the exact product rounded to F32 once.
#[test]
fn every_mxfp8_product_is_rounded_once() {
    let (rows, cols) = (255, 256);
    let codes: Vec<u8> = (0..rows).flat_map(|_| 0..=255_u8).collect();
    let scales = (0..rows as u8).flat_map(|scale| [scale; 8]).collect();
    let made = parts(FormatId::mxfp8(), rows, cols, codes, scales);
    let tensor = QuantizedTensor::from_parts(&Mxfp8::DEFAULT, None, made).unwrap();
    let values = Mxfp8::DEFAULT.dequantize(&tensor).unwrap();
    for (i, &value) in values.iter().enumerate() {
        let (scale, code) = ((i / cols) as u8, (i % cols) as u8);
        let expected = (e4m3_value(code) * e8m0_value(scale)) as f32;
        assert!(value.to_bits() == expected.to_bits() || value.is_nan() && e4m3::is_nan(code), "{code} {scale}");
    }
    assert_eq!(values.len(), 255 * 256);
}
