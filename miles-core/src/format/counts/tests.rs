use super::*;
use crate::format::{
    Axis, BlockScales, FormatId, NonFinite, QuantizeSpec, ScaleKind, ScaleScope, SourceDtype, TensorLayout,
    builtin_rule, builtin_rules,
};
use crate::random::{Coordinates, Stream, uniform};

const HARDWARE: NonFinite = NonFinite::Hardware;

fn source(values: &[f32], rows: usize, cols: usize) -> Source<'_> {
    Source::new(values, rows, cols, SourceDtype::F32, Some("x")).unwrap()
}

fn counted(format: &FormatId, values: &[f32], rows: usize, cols: usize) -> QuantizeCounts {
    let rule = builtin_rule(format).unwrap();
    let source = source(values, rows, cols);
    let tensor = rule.quantize(&source, &QuantizeSpec::activation(format.clone())).unwrap();
    QuantizeCounts::of(rule, &source, &tensor).unwrap()
}

/// Random bits: every exponent, both signs, now and then zero, NaN and infinity; runs of a few exponents between.
fn wild(count: usize, seed: u64) -> Vec<f32> {
    let draw = |index: usize, token: u32| {
        uniform(seed, Stream::Data, Coordinates { prompt: index as u64, token, ..Coordinates::default() })
    };
    let value = |index: usize| {
        let bits = (draw(index, 0) * f64::from(u32::MAX)) as u32;
        match (draw(index / 40, 1) * 4.0) as u32 {
            0 => f32::from_bits(bits),
            1 => f32::from_bits(bits % (1 << 25)),
            2 => [0.0, -0.0, f32::NAN, f32::INFINITY, 1.0, -3e38, 1e-45, 2e-38][bits as usize % 8],
            _ => (draw(index, 2) as f32 - 0.5) * 4.0,
        }
    };
    (0..count).map(value).collect()
}

#[test]
fn the_pass_over_rows_and_the_definition_give_the_same_numbers() {
    let mut seen = QuantizeCounts::default();
    let formats = [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block(), FormatId::fp8_block_pow2()];
    for (seed, format) in formats.iter().cycle().take(80).enumerate() {
        let rule = builtin_rule(format).unwrap();
        for (rows, cols) in [(3, 2), (1, 258), (7, 128), (2, 130), (5, 48), (0, 32), (4, 0)] {
            let values = wild(rows * cols, seed as u64);
            let source = source(&values, rows, cols);
            for scope in [ScaleScope::Row, ScaleScope::Tensor] {
                let spec = QuantizeSpec::activation(format.clone()).with_scope(scope);
                let tensor = rule.quantize(&source, &spec).unwrap();
                let stored = QuantizedParts { amax: Vec::new(), ..tensor.to_parts() };
                for tensor in [tensor, QuantizedTensor::from_parts(rule, None, stored).unwrap()] {
                    let fast = rows::count(&source, &tensor).unwrap();
                    assert_eq!(fast, decoded(rule, &source, &tensor).unwrap(), "{spec:?} [{rows}, {cols}] {seed}");
                    seen.merge(&fast);
                }
            }
        }
    }
    assert!(seen.saturated > 100 && seen.underflowed_blocks > 100 && seen.non_finite > 100, "{seen:?}");
}

#[test]
fn planted_faults_are_counted_exactly() {
    // Two rows of ones; what is planted shares its block with ones.
    let cols = 256;
    for (format, block) in [(FormatId::nvfp4(), 16), (FormatId::mxfp8(), 32), (FormatId::fp8_block(), 128)] {
        let clean = QuantizeCounts { elements: 512, blocks: 512 / block, ..QuantizeCounts::default() };
        let with = |plant: &[(usize, f32)]| {
            let mut values = vec![1.0; 2 * cols];
            plant.iter().for_each(|&(index, value)| values[index] = value);
            counted(&format, &values, 2, cols)
        };
        assert_eq!(with(&[]), clean, "{format}");
        assert_eq!(with(&[(5, f32::NAN), (300, f32::NAN)]), QuantizeCounts { non_finite: 2, ..clean }, "{format}");
        assert_eq!(with(&[(0, 0.0), (1, -0.0), (2, -0.5)]), clean, "{format}");
    }
    // A block in which infinity is the amax: block FP8 falls back to scale 1, so what is above 448 saturates.
    let mut values = vec![1.0; 256];
    values[..4].copy_from_slice(&[f32::INFINITY, 500.0, -449.0, 448.0]);
    let found = counted(&FormatId::fp8_block(), &values, 2, 128);
    assert_eq!(found, QuantizeCounts { elements: 256, blocks: 2, saturated: 2, underflowed_blocks: 0, non_finite: 1 });
    // MXFP8 scales that block to infinity instead: the ones underflow, but infinity itself is left.
    let found = counted(&FormatId::mxfp8(), &values, 2, 128);
    assert_eq!((found.saturated, found.underflowed_blocks, found.non_finite), (0, 0, 1));
    // NVFP4: a block of 1e-6 beside one of 1 keeps nothing; 32 zeros have nothing to lose.
    let mut values = vec![0.0; 64];
    values[..16].fill(1.0);
    values[16..32].fill(1e-6);
    let found = counted(&FormatId::nvfp4(), &values, 1, 64);
    assert_eq!(found, QuantizeCounts { elements: 64, blocks: 4, underflowed_blocks: 1, ..QuantizeCounts::default() });
}

#[test]
fn an_nvfp4_block_scale_that_was_rounded_down_saturates_its_amax() {
    // Row amax 1 gives S_enc = 2688; the second block has amax 0.49, scale 448 * 0.49 = 219.52, rounded to 224: no
    // element is beyond it. With 0.51 it is 228.48, rounded to 224: the elements of 0.51 are.
    for (amax, saturated) in [(0.49, 0), (0.51, 3)] {
        let mut values = vec![0.25; 32];
        values[0] = 1.0;
        values[16..19].fill(amax);
        assert_eq!(counted(&FormatId::nvfp4(), &values, 1, 32).saturated, saturated, "{amax}");
    }
}

#[test]
fn weights_tiles_and_column_copies_are_counted_by_the_definition() {
    for rule in builtin_rules() {
        for (spec, blocks_of) in [
            (QuantizeSpec::weight(rule.id()).with_non_finite(HARDWARE), "weight"),
            (QuantizeSpec::activation(rule.id()).with_axis(Axis::Column), "column copy"),
        ] {
            // Rotations take whole blocks of 16 in either direction, and no other rule's blocks come out even.
            let (rows, cols) = (304, 272);
            let values: Vec<f32> = (0..rows * cols).map(|index| ((index * 37) % 101) as f32 - 50.0).collect();
            let source = source(&values, rows, cols);
            let tensor = rule.quantize(&source, &spec).unwrap();
            let found = QuantizeCounts::of(rule, &source, &tensor).unwrap();
            let scales = match tensor.scale_rows() * tensor.scale_cols() {
                0 => tensor.outer().len(),
                scales => scales,
            };
            assert_eq!(found.blocks, scales as u64, "{} {blocks_of}", rule.id());
            assert_eq!((found.elements, found.non_finite), ((rows * cols) as u64, 0));
        }
    }
}

#[test]
fn a_source_of_another_shape_is_refused() {
    let (values, rule) = (vec![1.0; 64], builtin_rule(&FormatId::mxfp8()).unwrap());
    let tensor = rule.quantize(&source(&values, 2, 32), &QuantizeSpec::activation(rule.id())).unwrap();
    let error = QuantizeCounts::of(rule, &source(&values, 1, 64), &tensor).unwrap_err();
    assert_eq!(error, FormatError::SourceLength { tensor: "x".into(), rows: 2, cols: 32, found: 64 });
}

/// Signed bytes with a fixed scale of 1/8 for the whole tensor; -128 is no code.
struct Eighths;

impl FormatRule for Eighths {
    fn id(&self) -> FormatId {
        FormatId::new("eighths").unwrap()
    }

    fn layout(&self, rows: usize, cols: usize, _: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let (codes_bytes, scale_kind) = (rows * cols, ScaleKind::F32);
        Ok(TensorLayout { codes_bytes, scale_kind, scale_rows: 1, scale_cols: 1, outer_len: 0, amax_len: 0 })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let codes = source.values().iter().map(|x| (x * 8.0).round().clamp(-127.0, 127.0) as i8 as u8).collect();
        QuantizedTensor::from_parts(self, None, QuantizedParts::new(source, spec, codes, BlockScales::F32(vec![0.125])))
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        let refused = FormatError::NoShards;
        let value = |&code: &u8| if code == 0x80 { Err(refused.clone()) } else { Ok(f32::from(code as i8) * 0.125) };
        tensor.codes().iter().map(value).collect()
    }
}

#[test]
fn a_users_own_format_is_counted_without_knowing_its_codes() {
    let values = [15.875, 16.0, -15.875, -15.9, 0.01, 0.0, f32::INFINITY, f32::NAN];
    let source = source(&values, 2, 4);
    let tensor = Eighths.quantize(&source, &QuantizeSpec::activation(Eighths.id())).unwrap();
    let found = QuantizeCounts::of(&Eighths, &source, &tensor).unwrap();
    assert_eq!(found, QuantizeCounts { elements: 8, blocks: 1, saturated: 2, underflowed_blocks: 0, non_finite: 2 });
    let small = [0.01, -0.02];
    let source = Source::new(&small, 1, 2, SourceDtype::F32, None).unwrap();
    let tensor = Eighths.quantize(&source, &QuantizeSpec::activation(Eighths.id())).unwrap();
    assert_eq!(QuantizeCounts::of(&Eighths, &source, &tensor).unwrap().underflowed_blocks, 1);
}
