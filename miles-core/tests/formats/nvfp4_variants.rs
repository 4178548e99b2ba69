//! What every NVFP4 variant promises: shapes, finite scales, zeros, axes, and what it differs in.

use miles_core::format::nvfp4::{
    DecodeOrder, Hadamard, Rounding, ScaleRule, Tile, ZeroScale, combinations, dequantize_without_outer,
};
use miles_core::format::{
    Axis, FormatError, FormatId, FormatRule, NonFinite, Nvfp4, Operand, QuantizeSpec, QuantizedTensor, ScaleScope,
    Source, SourceDtype,
};
use miles_core::number::{e2m1, e4m3};
use proptest::prelude::*;

use crate::sample::{LENGTHS, assert_same_bits, transposed, values};

/// Every scope, operand and axis that a rule takes.
pub fn specs(rule: &Nvfp4) -> Vec<QuantizeSpec> {
    let mut specs = Vec::new();
    for base in [QuantizeSpec::activation(rule.id()), QuantizeSpec::weight(rule.id())] {
        for axis in [Axis::Row, Axis::Column] {
            for scope in [ScaleScope::Row, ScaleScope::Tensor] {
                let tiles = rule.tile() == Tile::Square && base.operand == Operand::Weight;
                if !(tiles && scope == ScaleScope::Row) {
                    specs.push(base.clone().with_axis(axis).with_scope(scope));
                }
            }
        }
    }
    specs
}

pub fn quantize(rule: &Nvfp4, x: &[f32], rows: usize, cols: usize, spec: &QuantizeSpec) -> QuantizedTensor {
    rule.quantize(&Source::new(x, rows, cols, SourceDtype::F32, Some("sample")).unwrap(), spec).unwrap()
}

/// Variants that differ in bytes: zero scales and decode orders do not, so one of them each is enough.
pub fn rules() -> Vec<Nvfp4> {
    let plain = |rule: &&Nvfp4| rule.zero_scale() == ZeroScale::ByScope && rule.decode_order() == DecodeOrder::Amax;
    let extra = [
        Nvfp4::DEFAULT.with_decode_order(DecodeOrder::Scale).with_zero_scale(ZeroScale::Smallest),
        Nvfp4::DEFAULT.with_zero_scale(ZeroScale::Zero),
        Nvfp4::DEFAULT.with_rounding(Rounding::Stochastic { seed: u64::MAX }).unwrap(),
    ];
    let rules: Vec<Nvfp4> = combinations().filter(plain).copied().chain(extra).collect();
    assert_eq!(rules.len(), 54 + 3);
    rules
}

fn fits(rule: &Nvfp4, axis: Axis, rows: usize, cols: usize) -> bool {
    match axis {
        Axis::Row if rule.hadamard().is_some() => cols.is_multiple_of(16),
        Axis::Row => cols.is_multiple_of(2),
        Axis::Column => rule.hadamard().is_none() || rows.is_multiple_of(16),
    }
}

#[test]
fn every_shape_quantizes_and_decodes_or_is_refused_by_name() {
    let mut lengths = LENGTHS.to_vec();
    lengths.push(1024);
    for rule in rules() {
        for spec in specs(&rule) {
            for rows in [0, 1, 15, 16, 17, 61] {
                for &cols in lengths.iter().filter(|&&cols| rows * cols <= 17 * 1024) {
                    let x = values(rows * cols, (rows * 1000 + cols) as u32);
                    let source = Source::new(&x, rows, cols, SourceDtype::F32, Some("w")).unwrap();
                    let made = rule.quantize(&source, &spec);
                    if fits(&rule, spec.axis, rows, cols) {
                        let tensor = made.unwrap();
                        assert_eq!(rule.dequantize(&tensor).unwrap().len(), rows * cols);
                        assert_eq!(dequantize_without_outer(&tensor).unwrap().len(), rows * cols);
                        assert!(tensor.scales().as_u8().unwrap().iter().all(|&scale| scale <= 0x7E));
                    } else {
                        match made.unwrap_err() {
                            FormatError::OddLength { format, .. } | FormatError::PartialBlock { format, .. } => {
                                assert_eq!(format, rule.id());
                            }
                            other => panic!("{other}"),
                        }
                    }
                }
            }
        }
    }
}

/// Field case O1 and its neighbours, in every variant.
#[test]
fn o1_no_variant_emits_a_nan_scale_and_zero_blocks_decode_to_zeros() {
    let (rows, cols) = (16, 64);
    let normal = values(rows * cols, 5);
    let with = |change: fn(usize, usize, f32) -> f32| -> Vec<f32> {
        (0..rows * cols).map(|i| change(i / cols, i % cols, normal[i])).collect()
    };
    let cases = [
        ("zero block in a large tensor", with(|row, col, _| if row == 3 && col < 32 { 0.0 } else { 1e4 })),
        ("1e-30 beside 1e4", with(|_, col, _| if (16..32).contains(&col) { 1e-30 } else { 1e4 })),
        ("zero rows beside normal ones", with(|row, _, x| if row % 3 == 0 { 0.0 } else { x })),
        ("negative zeros", with(|row, col, x| if (row + col) % 2 == 0 { -0.0 } else { x })),
        ("subnormal row", with(|row, col, x| if row == 1 { f32::from_bits(1 + col as u32) } else { x })),
        ("subnormal tensor", with(|_, col, _| f32::from_bits(col as u32 % 5))),
        ("amax where S_enc saturates", with(|row, col, _| f32::from_bits((row as u32) << 20 | col as u32))),
        ("whole range", with(|row, col, _| f32::from_bits(((row * 64 + col) as u32 * 245 / 1024) << 23))),
        ("largest", with(|_, _, _| f32::MAX)),
        ("largest, alternating", with(|row, col, _| if (row + col) % 2 == 0 { f32::MAX } else { -f32::MAX })),
    ];
    for rule in rules() {
        for spec in specs(&rule) {
            for (name, x) in &cases {
                let tensor = quantize(&rule, x, rows, cols, &spec);
                let scales = tensor.scales().as_u8().unwrap();
                assert!(scales.iter().all(|&scale| scale <= 0x7E), "{} {name}", rule.id());
                assert!(tensor.outer().iter().all(|outer| outer.is_finite()), "{} {name}", rule.id());
                let decoded = rule.dequantize(&tensor).unwrap();
                for (i, (&x_i, &y)) in x.iter().zip(&decoded).enumerate() {
                    let block = match spec.axis {
                        Axis::Row => i / 16 * 16..i / 16 * 16 + 16,
                        Axis::Column => 0..0,
                    };
                    let zero_block = !block.is_empty() && x[block].iter().all(|&x| x == 0.0);
                    if zero_block || (x_i == 0.0 && rule.hadamard().is_none()) {
                        assert!(y == 0.0, "{} {name}: {i} decodes to {y:e}", rule.id());
                    }
                }
            }
        }
    }
}

#[test]
fn row_order_inside_a_scale_block_does_not_matter_to_rows() {
    let (rows, cols) = (16, 96);
    let x = values(rows * cols, 9);
    let turned: Vec<f32> = (0..rows).rev().flat_map(|row| x[row * cols..][..cols].to_vec()).collect();
    for rule in rules().into_iter().filter(|rule| !matches!(rule.rounding(), Rounding::Stochastic { .. })) {
        for spec in specs(&rule).into_iter().filter(|spec| spec.axis == Axis::Row) {
            let (before, after) = (quantize(&rule, &x, rows, cols, &spec), quantize(&rule, &turned, rows, cols, &spec));
            // The errors of a 16x16 block are summed in the order of its rows.
            if matches!(rule.scale_rule(), ScaleRule::FourOverSix(_)) && rule.tile() == Tile::Square {
                continue;
            }
            for row in 0..rows {
                let codes =
                    |tensor: &QuantizedTensor, row: usize| tensor.codes()[row * cols / 2..][..cols / 2].to_vec();
                assert_eq!(codes(&before, row), codes(&after, rows - 1 - row), "{}", rule.id());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_column_copy_is_the_row_copy_of_the_transpose(seed: u32, half_rows in 1_usize..24, half_cols in 1_usize..24) {
        for rule in rules() {
            let unit = if rule.hadamard().is_some() { 16 } else { 2 };
            let (rows, cols) = (half_rows * unit, half_cols * unit);
            let x = values(rows * cols, seed);
            let turned = transposed(&x, rows, cols);
            for spec in specs(&rule).into_iter().filter(|spec| spec.axis == Axis::Column) {
                let column = quantize(&rule, &x, rows, cols, &spec);
                let row_spec = spec.clone().with_axis(Axis::Row);
                let tiles = rule.tile() == Tile::Square && spec.operand == Operand::Weight;
                if !(tiles && matches!(rule.scale_rule(), ScaleRule::FourOverSix(_))) {
                    let row = quantize(&rule, &turned, cols, rows, &row_spec);
                    prop_assert_eq!(column.codes(), row.codes());
                    prop_assert_eq!(column.scales(), row.scales());
                    prop_assert_eq!((column.outer(), column.amax()), (row.outer(), row.amax()));
                }
                if tiles {
                    // The column copy of the same matrix holds the same numbers: nothing is quantized twice.
                    let row = quantize(&rule, &x, rows, cols, &row_spec);
                    assert_same_bits(&rule.dequantize(&row).unwrap(), &rule.dequantize(&column).unwrap());
                }
            }
        }
    }

    #[test]
    fn every_value_lies_between_its_stochastic_neighbours(seed: u64, data: u32) {
        let rule = Nvfp4::DEFAULT.with_rounding(Rounding::Stochastic { seed }).unwrap();
        let x = values(8 * 64, data);
        let spec = QuantizeSpec::activation(rule.id());
        let (random, again) = (quantize(&rule, &x, 8, 64, &spec), quantize(&rule, &x, 8, 64, &spec));
        prop_assert_eq!(random.canonical_bytes(), again.canonical_bytes());
        let nearest = quantize(&Nvfp4::DEFAULT, &x, 8, 64, &QuantizeSpec::activation(FormatId::nvfp4()));
        prop_assert_eq!(random.scales(), nearest.scales());
        for (random, nearest) in random.codes().iter().zip(nearest.codes()) {
            for shift in [0, 4] {
                let (random, nearest) = (random >> shift & 0xF, nearest >> shift & 0xF);
                prop_assert!((random & 7).abs_diff(nearest & 7) <= 1 && random & 8 == nearest & 8);
            }
        }
    }
}

#[test]
fn stochastic_rounding_draws_by_seed_and_line_and_is_fair() {
    let rule = |seed| Nvfp4::DEFAULT.with_rounding(Rounding::Stochastic { seed }).unwrap();
    // Block amax 6, so the encode scale is 1: 0.3 lies between 0 and 0.5.
    let mut row = [0.3_f32; 16];
    row[0] = 6.0;
    let x: Vec<f32> = row.iter().copied().cycle().take(16 * 2000).collect();
    let decoded = |seed| {
        let spec = QuantizeSpec::activation(rule(seed).id());
        let tensor = quantize(&rule(seed), &x, 2000, 16, &spec);
        tensor.codes().to_vec()
    };
    assert_ne!(decoded(1), decoded(2));
    let codes = decoded(1);
    assert_ne!(codes[..8], codes[8..16], "equal rows get bits of their own");
    let up = codes.iter().flat_map(|&byte| e2m1::decode_pair(byte)).filter(|&value| value == 0.5).count();
    let share = up as f64 / (15.0 * 2000.0);
    assert!((share - 0.6).abs() < 0.02, "{share}");
}

#[test]
fn stored_scales_of_zeros_follow_the_policy() {
    let smallest = f32::from_bits(0x0020_0000);
    for (zero, row, tensor) in
        [(ZeroScale::ByScope, 0.0, smallest), (ZeroScale::Zero, 0.0, 0.0), (ZeroScale::Smallest, smallest, smallest)]
    {
        let rule = Nvfp4::DEFAULT.with_zero_scale(zero);
        for (scope, expected) in [(ScaleScope::Row, row), (ScaleScope::Tensor, tensor), (ScaleScope::Group, tensor)] {
            // By scope, whichever operand it is.
            for spec in [QuantizeSpec::weight(rule.id()), QuantizeSpec::activation(rule.id())] {
                let made = quantize(&rule, &[0.0; 64], 2, 32, &spec.with_scope(scope));
                assert!(made.outer().iter().all(|&outer| outer.to_bits() == expected.to_bits()), "{zero:?} {scope}");
                assert_same_bits(&rule.dequantize(&made).unwrap(), &[0.0; 64]);
            }
        }
        // A row that is not zero has the same scale under every policy.
        let made = quantize(&rule, &[1.0; 32], 1, 32, &QuantizeSpec::weight(rule.id()));
        assert_eq!(made.outer(), [1.0 / 2688.0_f32]);
    }
}

#[test]
fn decode_orders_multiply_as_they_say() {
    let x = values(8 * 64, 3);
    let by_amax = Nvfp4::DEFAULT;
    let by_scale = by_amax.with_decode_order(DecodeOrder::Scale);
    let [a, b] = [by_amax, by_scale].map(|rule| quantize(&rule, &x, 8, 64, &QuantizeSpec::activation(rule.id())));
    assert_eq!((a.codes(), a.scales(), a.outer(), a.amax()), (b.codes(), b.scales(), b.outer(), b.amax()));
    assert_ne!(a.digest(), b.digest());
    let (scales, products) = (a.scales().as_u8().unwrap(), dequantize_without_outer(&a).unwrap());
    let codes: Vec<f32> = a.codes().iter().flat_map(|&byte| e2m1::decode_pair(byte)).collect();
    let reciprocal = f32::from_bits(0x39C3_0C31);
    let expected_amax: Vec<f32> =
        (0..512).map(|i| codes[i] * (e4m3::decode(scales[i / 16]) * a.amax()[i / 64] * reciprocal)).collect();
    let expected_scale: Vec<f32> = (0..512).map(|i| products[i] * a.outer()[i / 64]).collect();
    assert_same_bits(&by_amax.dequantize(&a).unwrap(), &expected_amax);
    assert_same_bits(&by_scale.dequantize(&b).unwrap(), &expected_scale);
    assert_ne!(expected_amax, expected_scale);
}

#[test]
fn python_reference_differs_in_zeros_and_nan_codes_alone() {
    let rule = Nvfp4::DEFAULT.with_rounding(Rounding::PositiveZero).unwrap();
    let mut x = values(4 * 32, 8);
    (x[0], x[33], x[70], x[3]) = (-0.0, f32::NAN, -1e-30, -1e-4);
    let spec = |rule: &Nvfp4| QuantizeSpec::activation(rule.id()).with_non_finite(NonFinite::Hardware);
    let hardware = quantize(&Nvfp4::DEFAULT, &x, 4, 32, &spec(&Nvfp4::DEFAULT));
    let reference = quantize(&rule, &x, 4, 32, &spec(&rule));
    assert_eq!((hardware.scales(), hardware.outer()), (reference.scales(), reference.outer()));
    let code = |tensor: &QuantizedTensor, i: usize| tensor.codes()[i / 2] >> (4 * (i % 2)) & 0xF;
    assert_eq!((code(&hardware, 0), code(&hardware, 33)), (8, 7));
    assert_eq!((code(&reference, 0), code(&reference, 33)), (0, 0));
    for i in (0..128).filter(|&i| x[i] != 0.0 && !x[i].is_nan()) {
        assert_eq!(code(&hardware, i), code(&reference, i), "{:e}", x[i]);
    }
}

/// Both operands rotated: their product is that of the values, here exactly because all sums are exact.
#[test]
fn a_product_of_two_rotated_operands_is_the_product_of_the_operands() {
    for hadamard in [Hadamard::Signed, Hadamard::Plain] {
        let rule = Nvfp4::DEFAULT.with_hadamard(Some(hadamard)).unwrap();
        // One value per block: rotated it is one magnitude, which E2M1 holds exactly.
        let operand = |seed: usize| -> Vec<f32> {
            (0..4 * 64).map(|i| if i % 16 == (i / 16 * seed) % 16 { 6.0 } else { 0.0 }).collect()
        };
        let (a, b) = (operand(3), operand(3));
        let made = [&a, &b].map(|x| quantize(&rule, x, 4, 64, &QuantizeSpec::activation(rule.id())));
        let rotated = made.each_ref().map(|tensor| rule.dequantize_operand(tensor).unwrap());
        let plain = made.each_ref().map(|tensor| rule.dequantize(tensor).unwrap());
        assert_ne!(rotated[0], plain[0]);
        let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        let want = dot(&a, &b);
        assert!(want > 0.0);
        for pair in [&rotated, &plain] {
            assert!((dot(&pair[0], &pair[1]) - want).abs() <= want * 1e-5, "{hadamard:?}");
        }
    }
}

#[test]
fn requests_that_a_variant_cannot_do_are_typed_errors() {
    let x = [1.0; 32 * 40];
    let source = Source::new(&x, 32, 40, SourceDtype::F32, None).unwrap();
    let square = Nvfp4::DEFAULT.with_tile(Tile::Square).unwrap();
    for scope in [ScaleScope::Row, ScaleScope::Block] {
        let error = square.quantize(&source, &QuantizeSpec::weight(square.id()).with_scope(scope)).unwrap_err();
        assert!(matches!(error, FormatError::Scope { scope: found, .. } if found == scope), "{error}");
    }
    assert!(square.quantize(&source, &QuantizeSpec::activation(square.id())).is_ok(), "activations have 1x16 blocks");
    let rotated = Nvfp4::DEFAULT.with_hadamard(Some(Hadamard::Signed)).unwrap();
    let error = rotated.quantize(&source, &QuantizeSpec::weight(rotated.id())).unwrap_err();
    let expected = FormatError::PartialBlock { format: rotated.id(), axis: Axis::Row, rows: 32, cols: 40, block: 16 };
    assert_eq!(error, expected);
    assert!(rotated.quantize(&source, &QuantizeSpec::weight(rotated.id()).with_axis(Axis::Column)).is_ok());
    let error = rotated.quantize(&source, &QuantizeSpec::weight(FormatId::nvfp4())).unwrap_err();
    assert!(matches!(error, FormatError::FormatMismatch { .. }));
    let mxfp8 = FormatId::mxfp8();
    let other = crate::sample::quantize(&x, 32, 40, &QuantizeSpec::weight(mxfp8.clone()));
    let error = dequantize_without_outer(&other).unwrap_err();
    assert_eq!(error, FormatError::FormatMismatch { rule: FormatId::nvfp4(), requested: mxfp8 });
}
