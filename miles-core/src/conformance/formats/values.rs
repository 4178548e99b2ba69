//! What decoded values are: zeros, finite, near their source, ordered, stable.

use std::collections::BTreeMap;

use crate::conformance::compare::{same_bytes, same_floats};
use crate::conformance::grid::{Grid, decoded, fitting};
use crate::conformance::{Failure, Verdict};
use crate::format::{Axis, FormatError, FormatRule, NonFinite, QuantizeSpec, QuantizedTensor, SourceDtype};

/// Zeros decode to zeros, and the sign of zero is either kept everywhere or dropped everywhere.
pub(super) fn zeros(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let (rows, cols) = fitting(rule, spec, (34, 258))?;
    let decode = |grid: &Grid| -> Result<Vec<f32>, Failure> { decoded(rule, &grid.quantize(rule, spec)?) };
    let zeros = Grid::from_fn(rows, cols, |_, _| 0.0);
    same_floats("decoded zeros", &decode(&zeros)?, &zeros.values)?;

    let negative = Grid::from_fn(rows, cols, |_, _| -0.0);
    // Large values in some blocks, zeros of both signs beside them and in blocks of their own.
    let mixed = Grid::from_fn(rows, cols, |row, col| match (row % 3, col / 128 % 2, (row + col) % 3) {
        (0, _, 0) | (1, 0, 0) => 1.0e4,
        (_, _, 1) => -0.0,
        _ => 0.0,
    });
    // A zero that is rotated together with large values need not come back as one: zeros in whole tiles only.
    let in_tiles = Grid::from_fn(rows, cols, |row, col| if (row / 32 + col / 32) % 2 == 0 { 1.0e4 } else { 0.0 });
    let beside_large = if rule.code_dependence().block { in_tiles } else { mixed };
    let mut signs = Vec::new();
    for grid in [&negative, &beside_large] {
        let decoded = decode(grid)?;
        for (index, (&source, &value)) in grid.values.iter().zip(&decoded).enumerate() {
            let place = || format!("row {}, column {}", index / cols, index % cols);
            if source == 0.0 {
                Failure::unless(value == 0.0, || format!("{}: {source} decodes to {value:e}", place()))?;
                if source.is_sign_negative() {
                    signs.push(value.is_sign_negative());
                } else {
                    Failure::unless(value.is_sign_positive(), || format!("{}: +0 decodes to -0", place()))?;
                }
            }
        }
    }
    let kept = signs.iter().filter(|&&sign| sign).count();
    Failure::unless(kept == 0 || kept == signs.len(), || {
        format!("the sign of zero is kept in {kept} places and dropped in {}", signs.len() - kept)
    })
}

/// Finite values are quantized, to finite scales; below 2^100 they also decode to finite values. From 2^127 on a format
/// may have no scale, as one that rounds an amax up to 2^128: then it refuses them as [`FormatError::NanScale`].
pub(super) fn finite(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let spec = spec.clone().with_non_finite(NonFinite::Error);
    let (rows, cols) = fitting(rule, &spec, (34, 258))?;
    let sign = |row: usize, col: usize| if (row + col).is_multiple_of(2) { 1.0 } else { -1.0 };
    let steps = |row: usize, col: usize| libm::ldexpf(1.25 * sign(row, col), (row * 7 + col) as i32 % 200 - 150);
    let subnormal = |row: usize, col: usize| sign(row, col) * f32::from_bits((row * cols + col) as u32 + 1);
    let grids = [
        ("largest values", Grid::from_fn(rows, cols, |row, col| f32::MAX * sign(row, col))),
        ("values below 2^127", Grid::from_fn(rows, cols, |row, col| f32::MAX / 2.0 * sign(row, col))),
        ("one largest value", Grid::from_fn(rows, cols, |row, col| if row + col == 9 { f32::MAX } else { 1.0 })),
        ("subnormal values", Grid::from_fn(rows, cols, subnormal)),
        ("1e-30 beside 1e4", Grid::from_fn(rows, cols, |_, col| if col % 40 == 7 { 1.0e4 } else { 1.0e-30 })),
        ("powers of two", Grid::from_fn(rows, cols, steps)),
    ];
    for (name, grid) in grids {
        let check = || {
            let tensor = match rule.quantize(&grid.source(SourceDtype::F32)?, &spec) {
                Err(FormatError::NanScale { .. }) if grid.values.iter().any(|x| x.abs() >= TWO_TO_127) => return Ok(()),
                outcome => outcome?,
            };
            check_scales(&tensor)?;
            if grid.values.iter().all(|x| x.abs() < 1.0e30) {
                let bad = decoded(rule, &tensor)?.into_iter().position(|x| !x.is_finite());
                Failure::unless(bad.is_none(), || format!("element {bad:?} does not decode to a finite value"))?;
            }
            Ok(())
        };
        check().map_err(|failure: Failure| failure.at(name))?;
    }
    large_codes(rule, &spec)
}

/// Where a factor of 2^20 changes no code, one of 2^121 does not either, as scales alone take it up; unless what comes of it
/// decodes to infinity, since something on the way to a value is beyond F32 there.
fn large_codes(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let (rows, cols) = fitting(rule, spec, (34, 258))?;
    let scaled = |exponent: i32| Grid::uniform(rows, cols, 21).scaled_rows(|_| exponent).quantize(rule, spec);
    let expected = scaled(0)?;
    if scaled(20)?.codes() != expected.codes() {
        return Ok(());
    }
    let large = scaled(121)?;
    match decoded(rule, &large)?.iter().all(|x| x.is_finite()) {
        true => same_bytes("codes of values up to 2^121", large.codes(), expected.codes()),
        false => Ok(()),
    }
}

const TWO_TO_127: f32 = f32::from_bits(0x7F00_0000);

fn check_scales(tensor: &QuantizedTensor) -> Verdict {
    use crate::format::{BlockScales, ScaleKind};
    use crate::number::{e4m3, e8m0};
    let bad = match (tensor.scales(), tensor.layout().scale_kind) {
        (BlockScales::U8(scales), ScaleKind::E4m3) => scales.iter().position(|&scale| e4m3::is_nan(scale)),
        (BlockScales::U8(scales), ScaleKind::E8m0) => scales.iter().position(|&scale| scale == e8m0::NAN),
        (BlockScales::U8(_), _) => None,
        (BlockScales::F32(scales), _) => scales.iter().position(|scale| !scale.is_finite()),
    };
    Failure::unless(bad.is_none(), || format!("block scale {bad:?} is not finite"))?;
    let bad = tensor.outer().iter().position(|scale| !scale.is_finite());
    Failure::unless(bad.is_none(), || format!("outer scale {bad:?} is not finite"))
}

/// Elements and what they decode to, sorted by element, under one set of scales.
type Curve = Vec<(f32, f32)>;

/// Quantizes twice `steps` magnitudes in blocks of one line each, whose first element is `amax`, and sorts by the scales used.
fn curves(rule: &dyn FormatRule, spec: &QuantizeSpec, amax: f32, steps: u16) -> Result<Vec<Curve>, Failure> {
    let shape = |length| if spec.axis == Axis::Row { (1, length) } else { (length, 1) };
    let one_block = |length: &usize| {
        let (rows, cols) = shape(*length);
        rule.layout(rows, cols, spec).is_ok_and(|layout| layout.scale_rows * layout.scale_cols <= 1)
    };
    let length = [8, 4, 2].into_iter().find(one_block).ok_or_else(|| Failure::new("no short line is one block"))?;
    let shares = || (0..=steps).map(|step| f32::from(step) / f32::from(steps));
    let linear = shares();
    let geometric = shares().map(|share| libm::exp2f(-20.0 * share));
    let magnitudes: Vec<f32> = linear.chain(geometric).collect();
    let elements: Vec<f32> = magnitudes.iter().flat_map(|&x| [x * amax, -x * amax]).collect();
    let mut curves: BTreeMap<Vec<u32>, Curve> = BTreeMap::new();
    for chunk in elements.chunks(length - 1) {
        let mut values = vec![0.0; length];
        values[0] = amax;
        values[1..][..chunk.len()].copy_from_slice(chunk);
        let (rows, cols) = shape(length);
        let grid = Grid::new(values, rows, cols);
        let tensor = grid.quantize(rule, spec)?;
        let curve = curves.entry(scale_bits(&tensor)).or_default();
        curve.extend(grid.values.iter().copied().zip(decoded(rule, &tensor)?));
    }
    let mut curves: Vec<Curve> = curves.into_values().collect();
    curves.iter_mut().for_each(|curve| curve.sort_by(|a, b| a.0.total_cmp(&b.0)));
    Ok(curves)
}

fn scale_bits(tensor: &QuantizedTensor) -> Vec<u32> {
    let mut bits: Vec<u32> = tensor.outer().iter().map(|scale| scale.to_bits()).collect();
    bits.extend(tensor.scales().as_u8().unwrap_or_default().iter().map(|&scale| u32::from(scale)));
    bits.extend(tensor.scales().as_f32().unwrap_or_default().iter().map(|scale| scale.to_bits()));
    bits
}

const AMAXES: [f32; 6] = [1.0, 3.7, 448.0, 1.0e-3, 6.0e4, 9.536_743e-7];

/// Maxima eight binades apart from 2^-112 to 2^118, so that every magnitude between is one of the larger elements of some
/// block. Below and above, some formats need a scale, or the product of an amax and a scale, that F32 does not have.
fn far_amaxes() -> impl Iterator<Item = f32> {
    (-112..=118).step_by(8).chain([118]).map(|exponent| libm::ldexpf(1.0, exponent))
}
/// Roundings of the scales themselves, relative to the largest element of the block.
const SCALE_ROUNDINGS: f32 = 1.0e-6;
/// How much of the largest element saturation may cost: an OCP scale maps 512 to 448.
const SATURATION: f32 = 0.125;

/// An element decodes to the nearest value that its block has, or, rounded by chance, to one of the two nearest; or it
/// saturates by at most an eighth. Of magnitudes far from 1, a format may have a floor under which nothing is left of a
/// whole block.
pub(super) fn error_bound(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for amax in AMAXES {
        for curve in curves(rule, spec, amax, 1000)? {
            is_near(rule, &curve, amax)?;
        }
    }
    for amax in far_amaxes() {
        for curve in curves(rule, spec, amax, 60)? {
            let nothing_is_left = amax < 1.0e-3 && curve.iter().all(|pair| pair.1 == 0.0);
            if !nothing_is_left {
                is_near(rule, &curve, amax)?;
            }
        }
    }
    Ok(())
}

fn is_near(rule: &dyn FormatRule, curve: &Curve, amax: f32) -> Verdict {
    let share_of_step = if rule.code_dependence().position { 1.0 } else { 0.5 };
    let mut steps: Vec<f32> = curve.iter().map(|pair| pair.1).collect();
    steps.sort_by(f32::total_cmp);
    steps.dedup();
    for &(x, decoded) in curve {
        // Between the two neighbours of `decoded`, the nearer half belongs to it, or all by chance.
        let after = steps.partition_point(|&step| step <= decoded);
        let before = steps.partition_point(|&step| step < decoded);
        let neighbour = if x > decoded { steps.get(after) } else { before.checked_sub(1).map(|at| &steps[at]) };
        let allowed = match neighbour {
            Some(neighbour) => (neighbour - decoded).abs() * share_of_step,
            None => x.abs() * SATURATION,
        };
        Failure::unless((x - decoded).abs() <= allowed + amax * SCALE_ROUNDINGS, || {
            format!("amax {amax:e}: {x:e} decodes to {decoded:e}, more than {allowed:e} away")
        })?;
    }
    Ok(())
}

/// Under one set of scales, decoded values are ordered as their sources are.
pub(super) fn monotone(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for amax in AMAXES {
        for curve in curves(rule, spec, amax, 1000)? {
            let falls = curve.windows(2).find(|pair| pair[1].1 < pair[0].1);
            Failure::unless(falls.is_none(), || format!("amax {amax:e}: (element, decoded) falls at {falls:?}"))?;
        }
    }
    Ok(())
}

/// With power-of-two scales a decoded value is a value that the format has under its new scale too.
pub(super) fn idempotent(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    for shape in [(16, 256), (34, 130)] {
        let (rows, cols) = fitting(rule, spec, shape)?;
        let values = decoded(rule, &Grid::scattered(rows, cols, 3).quantize(rule, spec)?)?;
        let again = Grid::new(values.clone(), rows, cols).quantize(rule, spec)?;
        same_floats("values decoded the second time", &decoded(rule, &again)?, &values)?;
    }
    Ok(())
}
