//! Number encoders and decoders against a search over all values in double precision.
#![no_main]

use libfuzzer_sys::fuzz_target;
use miles_core::number::{bf16, e2m1, e4m3, e8m0, integer};

fuzz_target!(|words: Vec<u32>| {
    for word in words {
        let x = f32::from_bits(word);
        assert_eq!(e4m3::encode(x), expected(x, 0x7E, 0x7F, 0x80, e4m3_value), "e4m3 of {word:#010x}");
        assert_eq!(e2m1::encode(x), expected(x, 7, 7, 8, e2m1_value), "e2m1 of {word:#010x}");
        check_bf16(x);
        check_e8m0(x);
        check_integers(x);
        check_stochastic(x, word as u8);
        for byte in word.to_le_bytes() {
            check_decoders(byte);
        }
    }
});

fn e4m3_value(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3), f64::from(code & 7));
    if exponent == 0 { mantissa * 2f64.powi(-9) } else { (8.0 + mantissa) * 2f64.powi(exponent - 10) }
}

fn e2m1_value(code: u8) -> f64 {
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code)]
}

/// The code of the nearest value, the even code where two are equally near.
fn expected(x: f32, largest: u8, nan: u8, sign: u8, value: impl Fn(u8) -> f64) -> u8 {
    if x.is_nan() {
        return nan;
    }
    let magnitude = f64::from(x.abs()).min(value(largest));
    let distance = |code: u8| ((value(code) - magnitude).abs(), code % 2);
    let nearest = (0..=largest).min_by(|a, b| distance(*a).partial_cmp(&distance(*b)).unwrap()).unwrap();
    if x.is_sign_negative() { nearest | sign } else { nearest }
}

fn check_bf16(x: f32) {
    let bits = bf16::encode(x);
    assert_eq!(bf16::round(x).to_bits(), bf16::decode(bits).to_bits());
    assert!(bf16::is_exact(bf16::decode(bits)));
    if x.is_nan() {
        return assert!(bf16::decode(bits).is_nan());
    }
    // As if the exponent had no end: rounding to infinity is rounding to 2^128.
    let wide = |bits: u16| match bits & 0x7FFF {
        0x7F80 => 2f64.powi(128),
        magnitude => f64::from(f32::from_bits(u32::from(magnitude) << 16)),
    };
    let below = ((x.to_bits() >> 16) as u16).min(if x.is_sign_negative() { 0xFF7F } else { 0x7F7F });
    let magnitude = f64::from(x.abs()).min(2f64.powi(128));
    let (down, up) = (magnitude - wide(below), wide(below + 1) - magnitude);
    let is_even = below.is_multiple_of(2);
    let nearest = if down < up || down == up && is_even { below } else { below + 1 };
    assert_eq!(bits, nearest, "bf16 of {:#010x}", x.to_bits());
}

fn check_e8m0(x: f32) {
    let value = |code: u8| 2f64.powi(i32::from(code) - 127);
    let magnitude = f64::from(x.abs());
    let smallest = (0..=254).find(|&code| value(code) >= magnitude).unwrap_or(254);
    let code = e8m0::encode_ceil(x);
    assert_eq!(code, if x.is_nan() { 255 } else { smallest }, "e8m0 of {:#010x}", x.to_bits());
    if code != e8m0::NAN {
        assert_eq!(f64::from(e8m0::decode(code)), value(code));
        assert_eq!(f64::from(e8m0::decode_reciprocal(code)), value(code).recip());
    }
}

fn check_integers(x: f32) {
    let nearest = |smallest: f64, largest: f64| match x.is_nan() {
        true => 0.0,
        false => f64::from(x).clamp(smallest, largest).round_ties_even() + 0.0,
    };
    assert_eq!(f64::from(integer::decode_int8(integer::encode_int8(x))), nearest(-128.0, 127.0));
    assert_eq!(f64::from(integer::decode_int4(integer::encode_int4(x))), nearest(-8.0, 7.0));
    assert!(integer::encode_int4(x) < 16);
}

/// Up where the remainder plus `random / 256` reaches a whole step; exact in double precision but for tiny remainders,
/// which are added in single precision.
fn check_stochastic(x: f32, random: u8) {
    let code = e2m1::encode_stochastic(x, random);
    if x.is_nan() {
        return assert_eq!(code, 7);
    }
    let magnitude = f64::from(x.abs()).min(6.0);
    let below = (0..8).rev().find(|&code| e2m1_value(code) <= magnitude).unwrap();
    let step = e2m1_value((below + 1).min(7)) - e2m1_value(below);
    let steps = if step == 0.0 { 0.0 } else { (magnitude - e2m1_value(below)) / step + f64::from(random) / 256.0 };
    let found = code & 7;
    assert!(found == below || found == below + 1, "{x:e} became {found}");
    if (steps - 1.0).abs() > 1e-6 {
        assert_eq!(found, below + u8::from(steps > 1.0), "{x:e} with {random}");
    }
    assert_eq!(code >> 3 == 1, x.is_sign_negative());
}

fn check_decoders(byte: u8) {
    let (sign, magnitude) = (if byte & 0x80 == 0 { 1.0 } else { -1.0 }, byte & 0x7F);
    let decoded = f64::from(e4m3::decode(byte));
    assert_eq!(e4m3::is_nan(byte), magnitude == 0x7F);
    assert!(if e4m3::is_nan(byte) { decoded.is_nan() } else { decoded == sign * e4m3_value(magnitude) });
    let [low, high] = e2m1::decode_pair(byte);
    assert_eq!((low.to_bits(), high.to_bits()), (e2m1::decode(byte).to_bits(), e2m1::decode(byte >> 4).to_bits()));
    let signed = if byte & 8 == 0 { e2m1_value(byte & 7) } else { -e2m1_value(byte & 7) };
    assert_eq!(f64::from(low).to_bits(), signed.to_bits());
    assert_eq!(f64::from(e2m1::DECODE_DOUBLED[usize::from(byte & 15)]), 2.0 * signed);
}
