//! Both instruction sets against the rules, byte for byte.

use miles_core::format::nvfp4::OuterScale;
use miles_core::format::{Fp8Block, SourceDtype, abs_max, mxfp8 as mxfp8_rule, nvfp4 as nvfp4_rule};
use proptest::prelude::*;

use super::element::Element;
use super::fp8_block::Scaling;
use super::reference::Scratch;
use super::{Amax, INFINITY_BITS, Slot, amax, fp8_block, mxfp8, nvfp4};
use crate::kernel::Isa;
use crate::kernel::testing::{isas, words};

const VARIANTS: [Fp8Block; 2] = [Fp8Block::FP32_SCALES, Fp8Block::POW2_SCALES];
const DTYPES: [SourceDtype; 2] = [SourceDtype::Bf16, SourceDtype::F32];

/// What `write` makes of slots that already hold something, twice differently, so that a slot left alone shows.
fn made<S: Copy, R>(
    [codes, scales]: [usize; 2],
    dirt: [S; 2],
    write: impl Fn(&mut [Slot<u8>], &mut [Slot<S>]) -> R,
) -> [(Vec<u8>, Vec<S>, R); 2] {
    [(0xA5, dirt[0]), (0x5A, dirt[1])].map(|(code, scale)| {
        // Boxed, so that each is of exactly its length and a tool that watches memory sees a write beyond the end.
        let mut codes: Box<[Slot<u8>]> = vec![Slot::new(code); codes].into();
        let mut scales: Box<[Slot<S>]> = vec![Slot::new(scale); scales].into();
        let result = write(&mut codes, &mut scales);
        // SAFETY: every slot was made from a value.
        let codes = codes.iter().map(|slot| unsafe { slot.assume_init() }).collect();
        // SAFETY: as above.
        let scales = scales.iter().map(|slot| unsafe { slot.assume_init() }).collect();
        (codes, scales, result)
    })
}

fn widen<E: Element>(values: &[E]) -> Vec<f32> {
    values.iter().map(|&x| x.widen()).collect()
}

/// Quantizes `values` as one line (and as `cols` wide tiles) in every format and compares with the rules.
fn check<E: Element>(isa: Isa, values: &[E], what: &str) {
    // Of exactly the length, so that a tool that watches memory sees a read beyond the end.
    let values: Box<[E]> = values.into();
    let wide = widen(&values);
    let finite = wide.iter().all(|x| x.is_finite());
    let found = amax(isa, &values);
    assert_eq!((found.value.to_bits(), found.finite), (abs_max(&wide).to_bits(), finite), "amax, {what}");
    check_mxfp8(isa, &values, &wide, finite, what);
    check_nvfp4(isa, &values, &wide, finite, what);
    check_fp8_block(isa, &values, &wide, finite, what);
}

fn check_mxfp8<E: Element>(isa: Isa, values: &[E], wide: &[f32], finite: bool, what: &str) {
    let scales_len = wide.len().div_ceil(mxfp8_rule::BLOCK);
    let (mut codes, mut scales) = (vec![0; wide.len()], vec![0; scales_len]);
    mxfp8_rule::quantize_row(wide, &mut codes, &mut scales);
    for (got_codes, got_scales, got_finite) in made([wide.len(), scales_len], [0xA5, 0x5A], |codes, scales| {
        mxfp8::row(isa, &mut Scratch::default(), values, codes, scales)
    }) {
        assert_same(wide, &scales, &got_scales, &format!("mxfp8 scales, {what}"), mxfp8_rule::BLOCK);
        assert_same(wide, &codes, &got_codes, &format!("mxfp8 codes, {what}"), 1);
        assert_eq!(got_finite, finite, "mxfp8, {what}");
    }
}

fn check_nvfp4<E: Element>(isa: Isa, values: &[E], wide: &[f32], finite: bool, what: &str) {
    let (codes_len, scales_len) = (wide.len().div_ceil(2), wide.len().div_ceil(nvfp4_rule::BLOCK));
    let own = OuterScale::from_amax(abs_max(wide));
    // Shared scales: larger than the line needs (blocks underflow), and the saturated and infinite ones.
    let shared = [own.amax() * 700.0, own.amax() * 3e6, 0.0, 1e-40, f32::MAX, f32::INFINITY].map(OuterScale::from_amax);
    for outer in std::iter::once(None).chain(shared.iter().map(Some)) {
        let (mut codes, mut scales) = (vec![0; codes_len], vec![0; scales_len]);
        nvfp4_rule::quantize_row_with(wide, outer.unwrap_or(&own), &mut codes, &mut scales);
        for (got_codes, got_scales, line) in made([codes_len, scales_len], [0xA5, 0x5A], |codes, scales| {
            nvfp4::line(isa, &mut Scratch::default(), values, outer, codes, scales)
        }) {
            let what = format!("{outer:?}, {what}");
            assert_same(wide, &scales, &got_scales, &format!("nvfp4 scales, {what}"), nvfp4_rule::BLOCK);
            assert_same(wide, &codes, &got_codes, &format!("nvfp4 codes, {what}"), 2);
            assert_eq!(line.amax.to_bits(), outer.unwrap_or(&own).amax().to_bits(), "{what}");
            assert_eq!(line.finite, finite, "nvfp4, {what}");
        }
    }
}

fn check_fp8_block<E: Element>(isa: Isa, values: &[E], wide: &[f32], finite: bool, what: &str) {
    for (rule, dtype) in VARIANTS.into_iter().flat_map(|rule| DTYPES.map(|dtype| (rule, dtype))) {
        let scaling = Scaling { rule, dtype };
        let what = format!("{rule:?} of {dtype:?}, {what}");
        let scales_len = wide.len().div_ceil(128);
        let (mut codes, mut scales) = (vec![0; wide.len()], vec![0.0; scales_len]);
        rule.quantize_row(wide, dtype, &mut codes, &mut scales);
        for (got_codes, got_scales, got_finite) in made([wide.len(), scales_len], [f32::NAN, -1.0], |codes, scales| {
            fp8_block::row(isa, &mut Scratch::default(), scaling, values, codes, scales)
        }) {
            assert_same(wide, &bits(&scales), &bits(&got_scales), &format!("fp8-block scales, {what}"), 128);
            assert_same(wide, &codes, &got_codes, &format!("fp8-block codes, {what}"), 1);
            assert_eq!(got_finite, finite, "fp8-block, {what}");
        }
        // The same values as three rows, where they make three.
        let cols = wide.len() / 3;
        if cols * 3 != wide.len() || cols == 0 {
            continue;
        }
        let scales_len = cols.div_ceil(128);
        let (mut codes, mut scales) = (vec![0; wide.len()], vec![0.0; scales_len]);
        rule.quantize_tile_row(wide, cols, dtype, &mut codes, &mut scales);
        for (got_codes, got_scales, got_finite) in made([wide.len(), scales_len], [f32::NAN, -1.0], |codes, scales| {
            fp8_block::tile_row(isa, &mut Scratch::default(), scaling, values, cols, codes, scales)
        }) {
            assert_same(wide, &bits(&scales), &bits(&got_scales), &format!("tile scales, {what}"), 128);
            assert_same(wide, &codes, &got_codes, &format!("tile codes, {what}"), 1);
            assert_eq!(got_finite, finite, "tiles, {what}");
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Fails at the first difference and shows the values around it; `per` elements make one item.
#[track_caller]
fn assert_same<T: PartialEq + std::fmt::LowerHex>(wide: &[f32], want: &[T], got: &[T], what: &str, per: usize) {
    assert_eq!(want.len(), got.len(), "{what}: lengths differ");
    if let Some(at) = want.iter().zip(got).position(|(want, got)| want != got) {
        let values = &wide[(at * per).min(wide.len())..((at + 1) * per).min(wide.len())];
        panic!("{what}: item {at}: want {:#x}, got {:#x} for {values:?}", want[at], got[at]);
    }
}

fn pairs(bits: impl IntoIterator<Item = u16>) -> Vec<[u8; 2]> {
    bits.into_iter().map(u16::to_le_bytes).collect()
}

#[test]
fn every_bf16_pattern_alone_and_among_others() {
    for isa in isas() {
        // In order, so that blocks hold one binade; then 257 apart, so that they hold all of them; then without those
        // that are not finite.
        let ordered = pairs(0..=u16::MAX);
        let mixed = pairs((0..=u16::MAX).map(|index| index.wrapping_mul(257)));
        let finite: Vec<[u8; 2]> = mixed.iter().copied().filter(|pair| pair.widen().is_finite()).collect();
        for (name, values) in [("ordered", &ordered), ("mixed", &mixed), ("finite", &finite)] {
            check(isa, values, &format!("{name} bf16, {isa:?}"));
            check(isa, &widen(values), &format!("{name} f32, {isa:?}"));
        }
    }
}

#[test]
fn every_bf16_pattern_under_every_binade_of_the_block() {
    // One large element per block sets the scale; the others run through all magnitudes below it.
    for isa in isas() {
        for exponent in (0..0xFF_u16).step_by(3) {
            let largest = exponent << 7 | 0x55;
            let below = (0..=largest).step_by(7).map(|bits| bits | (bits & 1) << 15);
            let values = pairs(below.enumerate().map(|(at, bits)| if at % 16 == 5 { largest } else { bits }));
            check(isa, &values, &format!("binade {exponent}, {isa:?}"));
        }
    }
}

#[test]
fn every_tail_length() {
    for isa in isas() {
        for len in (0..=130).chain([255, 256, 257, 288, 319, 384, 393, 640]) {
            let bits: Vec<u32> = words(len as u64, len).map(|word| (word >> 32) as u32).collect();
            let numbers: Vec<f32> = bits.iter().map(|&bits| (bits >> 8) as f32 / (1 << 20) as f32 - 8.0).collect();
            let raw: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            check(isa, &numbers, &format!("{len} numbers, {isa:?}"));
            check(isa, &raw, &format!("{len} patterns, {isa:?}"));
            check(isa, &pairs(numbers.iter().map(|x| (x.to_bits() >> 16) as u16)), &format!("{len} bf16, {isa:?}"));
        }
    }
}

#[test]
fn rounding_boundaries_of_every_scale() {
    // Ties and their neighbours of E4M3 and E2M1 as products: code boundaries times each power of two, with an amax that
    // makes the scale that power.
    let neighbours = |x: f32| [f32::from_bits(x.to_bits() - 1), x, f32::from_bits(x.to_bits() + 1)];
    let e4m3 = (0..0x7E_u8).map(|code| {
        let value = miles_core::number::e4m3::decode;
        (value(code) + value(code + 1)) / 2.0
    });
    let e2m1 = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(|x: f32| x * 448.0 / 6.0);
    let boundaries: Vec<f32> = e4m3.chain(e2m1).flat_map(neighbours).collect();
    for isa in isas() {
        for exponent in -149..=119 {
            let scale = 2.0_f64.powi(exponent);
            let mut values = Vec::new();
            for few in boundaries.chunks(15) {
                values.extend(few.iter().map(|&x| (f64::from(x) * scale) as f32));
                values.push((448.0 * scale) as f32);
            }
            let negative: Vec<f32> = values.iter().map(|x| -x).collect();
            check(isa, &values, &format!("2^{exponent}, {isa:?}"));
            check(isa, &negative, &format!("-2^{exponent}, {isa:?}"));
        }
    }
}

#[test]
fn hostile_lines() {
    let tiny = f32::from_bits(1);
    let edge = 448.0 * 2.0_f32.powi(-127);
    let lines: [(&str, Vec<f32>); 12] = [
        ("zeros", vec![0.0; 129]),
        ("negative zeros", vec![-0.0; 129]),
        ("zeros but one subnormal", [vec![-0.0; 64], vec![tiny], vec![0.0; 95]].concat()),
        ("largest", vec![f32::MAX; 160]),
        ("lowest and infinite", [vec![f32::MIN; 40], vec![f32::INFINITY, f32::NEG_INFINITY], vec![1.0; 90]].concat()),
        ("all NaN", vec![f32::NAN; 140]),
        ("one negative NaN", [vec![1.0; 100], vec![f32::from_bits(0xFF80_0001)], vec![3.0; 60]].concat()),
        ("scale underflow", [vec![1e-6; 16], vec![-2e-6; 16], vec![448.0; 16], vec![-1e-30; 80]].concat()),
        ("tiny rows saturate S_enc", [7.0e-36, -8.0e-36, 1e-38, tiny, -1e-44, 3.2e-35, 0.0, 5e-37].repeat(20)),
        ("e8m0 code 0 and its neighbours", (0..160).map(|i| edge * (1.0 + (i as f32 - 80.0) * 1e-3)).collect()),
        ("subnormals", (0..256).map(|i| f32::from_bits(i * 0x7FFF)).collect()),
        ("infinity in the last element", [vec![0.5; 128], vec![f32::INFINITY]].concat()),
    ];
    for isa in isas() {
        for (name, line) in &lines {
            check(isa, line, &format!("{name}, {isa:?}"));
            check(isa, &pairs(line.iter().map(|x| (x.to_bits() >> 16) as u16)), &format!("{name}, bf16, {isa:?}"));
        }
    }
}

#[test]
fn amax_of_nothing_and_of_several_runs() {
    for isa in isas() {
        assert_eq!(amax::<f32>(isa, &[]), Amax::ZERO);
        let found = amax(isa, &[1.0, f32::NAN]).or(amax(isa, &[-2.0_f32]));
        assert_eq!(found, Amax { value: 2.0, finite: false });
    }
    assert_eq!(INFINITY_BITS, 0x7F80_0000);
}

/// Any bits, or bits of one neighbourhood of binades, as whole lines.
fn line() -> impl Strategy<Value = Vec<u32>> {
    let wild = prop::collection::vec(any::<u32>(), 0..700);
    let near = (0_u32..=250, prop::collection::vec((any::<u32>(), 0_u32..5), 0..700)).prop_map(|(base, elements)| {
        elements.into_iter().map(|(bits, up)| bits & 0x807F_FFFF | (base + up) << 23).collect()
    });
    prop_oneof![wild, near]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_line_gives_the_bytes_of_the_rule(line in line()) {
        for isa in isas() {
            let values: Vec<f32> = line.iter().map(|&bits| f32::from_bits(bits)).collect();
            check(isa, &values, isa.name());
            check(isa, &pairs(line.iter().map(|bits| (bits >> 16) as u16)), isa.name());
        }
    }
}
