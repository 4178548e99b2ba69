//! The arithmetic of the four formats, step by step, each step with room for its defect.

use super::Defect;
use crate::format::SourceDtype;
use crate::number::{bf16, e2m1, e4m3};

/// The steps, with at most one of them wrong.
#[derive(Debug)]
pub(super) struct Steps {
    pub defect: Option<Defect>,
}

/// The outer scale of NVFP4.
#[derive(Clone, Copy)]
pub(super) struct Outer {
    pub amax: f32,
    encode: f32,
    pub decode: f32,
}

/// A block scale as it is stored, and what elements are multiplied by.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    Byte(u8, f32),
    Float(f32, f32),
}

impl Steps {
    pub fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// The largest magnitude; NaN does not count.
    pub fn amax(&self, values: &[f32]) -> f32 {
        values.iter().fold(0.0, |amax: f32, &x| amax.max(self.flushed(x).abs()))
    }

    pub fn outer(&self, amax: f32) -> Outer {
        let quotient = self.divided(2688.0, amax).min(f32::MAX);
        let encode = if amax == 0.0 || quotient == 0.0 { 1.0 } else { quotient };
        Outer { amax, encode, decode: self.flushed(1.0 / encode) }
    }

    pub fn nvfp4_scale(&self, amax: f32, outer: &Outer) -> Scale {
        let multiplier = self.times(outer.encode, f32::from_bits(0x3E2A_AAAB));
        let byte = nearest(&E4M3, self.times(amax, multiplier).min(f32::MAX), Tie::Even);
        let encode = (1.0 / self.times(e4m3::decode(byte), outer.decode)).min(f32::MAX);
        Scale::Byte(self.nan_if_zero(amax, byte, e4m3::NAN), encode)
    }

    pub fn mxfp8_scale(&self, amax: f32) -> Scale {
        let quotient = self.flushed(amax / 448.0);
        let byte = (0..=254_u8).find(|&byte| power_of_two(byte) >= f64::from(quotient)).unwrap_or(254);
        let encode = self.flushed((1.0 / power_of_two(byte)) as f32);
        Scale::Byte(self.nan_if_zero(amax, byte, 0xFF), encode)
    }

    pub fn fp8_scale(&self, amax: f32, dtype: SourceDtype, power_of_two: bool) -> Scale {
        let largest = if dtype == SourceDtype::Bf16 { bf16::decode(0x7F7F) } else { f32::MAX };
        let quotient = self.divided(448.0, amax);
        let finite = if quotient.is_infinite() { largest } else { quotient };
        let scale = if amax == 0.0 || amax.is_infinite() { 1.0 } else { finite };
        let encode = if power_of_two { f32::from_bits(scale.to_bits() & 0xFF80_0000) } else { scale };
        Scale::Float(self.flushed(1.0 / encode), encode)
    }

    pub fn e2m1(&self, x: f32, encode: f32) -> u8 {
        self.code(&E2M1, x, encode, 0x8, 0x7)
    }

    pub fn e4m3(&self, x: f32, encode: f32) -> u8 {
        self.code(&E4M3, x, encode, 0x80, 0x7F)
    }

    fn code(&self, magnitudes: &[f32], x: f32, encode: f32, sign: u8, nan: u8) -> u8 {
        let product = self.times(self.flushed(x), encode);
        let scaled = if self.has(Defect::DoubleRounding) { bf16::round(product) } else { product };
        if scaled.is_nan() {
            return nan;
        }
        let tie = if self.has(Defect::RoundHalfDown) { Tie::Down } else { Tie::Even };
        let magnitude = nearest(magnitudes, scaled.abs(), tie);
        let unsigned = scaled.is_sign_positive() || magnitude == 0 && self.has(Defect::LostSignOfZero);
        if unsigned { magnitude } else { magnitude | sign }
    }

    fn divided(&self, a: f32, b: f32) -> f32 {
        if self.has(Defect::ReciprocalForDivision) { a * (1.0 / b) } else { self.flushed(a / b) }
    }

    fn times(&self, a: f32, b: f32) -> f32 {
        self.flushed(self.flushed(a) * self.flushed(b))
    }

    fn flushed(&self, x: f32) -> f32 {
        if self.has(Defect::FlushToZero) && x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
    }

    fn nan_if_zero(&self, amax: f32, byte: u8, nan: u8) -> u8 {
        if amax == 0.0 && self.has(Defect::NanScaleOnZeroBlock) { nan } else { byte }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Tie {
    Even,
    Down,
}

/// The code of the magnitude nearest to `x`, which is not negative; the last code for everything above.
fn nearest(magnitudes: &[f32], x: f32, tie: Tie) -> u8 {
    let above = magnitudes.partition_point(|&magnitude| magnitude < x);
    if above == 0 {
        return 0;
    }
    if above == magnitudes.len() {
        return above as u8 - 1;
    }
    let (low, high) = (f64::from(magnitudes[above - 1]), f64::from(magnitudes[above]));
    let (to_low, to_high) = (f64::from(x) - low, high - f64::from(x));
    let goes_up = to_high < to_low || to_high == to_low && tie == Tie::Even && above.is_multiple_of(2);
    if goes_up { above as u8 } else { above as u8 - 1 }
}

/// 2^(byte - 127), the value of an E8M0 byte.
fn power_of_two(byte: u8) -> f64 {
    f64::from_bits((u64::from(byte) + 1023 - 127) << 52)
}

/// The magnitudes of E4M3 and E2M1: the position is the code.
static E4M3: [f32; 127] = magnitudes(&e4m3::DECODE);
static E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
const _: () = assert!(e2m1::MAX == 6.0);

const fn magnitudes(decode: &[f32; 256]) -> [f32; 127] {
    let mut table = [0.0; 127];
    let mut code = 0;
    while code < table.len() {
        table[code] = decode[code];
        code += 1;
    }
    table
}
