use std::num::NonZeroUsize;

use miles_core::format::{
    Axis, BlockScales, Cut, FormatError, Mxfp8, NonFinite, Nvfp4, Partition, QuantizedParts, ScaleScope, SourceDtype,
    TensorLayout, shards,
};
use miles_core::number::bf16;
use miles_core::random::{Coordinates, Stream, normal};
use miles_core::registry::RegistryError;

use super::*;
use crate::kernel::testing::{computes, words};

fn quantizer(threads: usize) -> CpuQuantizer {
    CpuQuantizer::new(Compute::new(NonZeroUsize::new(threads).unwrap()).unwrap()).unwrap()
}

fn quantizers() -> impl Iterator<Item = CpuQuantizer> {
    computes().into_iter().map(|compute| CpuQuantizer::new(compute).unwrap())
}

fn values(rows: usize, cols: usize) -> Vec<f32> {
    let draw = |index| normal(5, Stream::Data, Coordinates { prompt: index as u64, ..Coordinates::default() });
    (0..rows * cols).map(|index| draw(index) as f32).collect()
}

fn pairs(values: &[f32]) -> Vec<[u8; 2]> {
    values.iter().map(|&x| bf16::encode(x).to_le_bytes()).collect()
}

fn specs() -> Vec<QuantizeSpec> {
    let mut specs = Vec::new();
    for rule in builtin_rules() {
        for base in [QuantizeSpec::activation(rule.id()), QuantizeSpec::weight(rule.id())] {
            for axis in [Axis::Row, Axis::Column] {
                for scope in [ScaleScope::Block, ScaleScope::Row, ScaleScope::Tensor, ScaleScope::Group] {
                    specs.push(base.clone().with_axis(axis).with_scope(scope));
                }
            }
        }
    }
    specs
}

/// What the rule says: the bytes, or the words of its error.
fn by_rule(sources: &[Source<'_>], spec: &QuantizeSpec) -> std::result::Result<Vec<QuantizedTensor>, String> {
    let rule = builtin_rule(&spec.format).unwrap();
    let made = match sources {
        [source] => rule.quantize(source, spec).map(|tensor| vec![tensor]),
        _ => rule.quantize_joint(sources, spec),
    };
    made.map_err(|error| error.to_string())
}

/// Every spec on both instruction sets and several thread counts, with the same bytes or the same error.
fn assert_agrees_with_the_rules(sources: &[Source<'_>], what: &str) {
    assert_agrees_on(specs(), sources, what);
}

fn assert_agrees_on(specs: Vec<QuantizeSpec>, sources: &[Source<'_>], what: &str) {
    let quantizers: Vec<CpuQuantizer> = quantizers().collect();
    for spec in specs {
        for spec in [NonFinite::Error, NonFinite::Hardware].map(|policy| spec.clone().with_non_finite(policy)) {
            let want = by_rule(sources, &spec);
            for quantizer in &quantizers {
                let got = quantizer.quantize(sources, &spec).map_err(|error| error.to_string());
                let compute = &quantizer.compute;
                let what = format!("{what}: {spec:?}, {}, {} threads", compute.isa().name(), compute.threads());
                match (&want, &got) {
                    (Ok(want), Ok(got)) => {
                        for (want, got) in want.iter().zip(got) {
                            assert!(want.canonical_bytes() == got.canonical_bytes(), "bytes differ: {what}");
                            assert_eq!(want.amax(), got.amax(), "{what}");
                        }
                        assert_eq!(want.len(), got.len(), "{what}");
                    }
                    (Err(want), Err(got)) => assert_eq!(want, got, "{what}"),
                    _ => panic!("one of them failed: {what}: {:?}, {:?}", want.as_ref().err(), got.as_ref().err()),
                }
            }
        }
    }
}

#[test]
fn bands_in_parallel_give_the_bytes_of_the_rule() {
    // 514 columns: no multiple of any block; the rows make several bands, the last one cut short.
    let (rows, cols) = (300, 514);
    let wide = values(rows, cols);
    let narrow = pairs(&wide);
    assert_agrees_with_the_rules(&[Source::new(&wide, rows, cols, SourceDtype::F32, Some("w")).unwrap()], "f32");
    assert_agrees_with_the_rules(&[Source::bf16(&narrow, rows, cols, Some("w")).unwrap()], "bf16");
}

#[test]
fn small_and_odd_shapes_give_the_bytes_or_the_error_of_the_rule() {
    for rows in [0, 1, 2, 15, 33, 129] {
        for cols in [0, 1, 2, 16, 31, 34, 130] {
            let wide = values(rows, cols);
            let source = Source::new(&wide, rows, cols, SourceDtype::F32, None).unwrap();
            assert_agrees_with_the_rules(&[source], &format!("[{rows}, {cols}]"));
        }
    }
}

#[test]
fn non_finite_values_give_the_bytes_or_the_error_of_the_rule() {
    let (rows, cols) = (270, 258);
    let places = [200 * cols + 100, 0, rows * cols - 1];
    for (bad, place) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().zip(places) {
        let mut wide = values(rows, cols);
        wide[place] = bad;
        let narrow = pairs(&wide);
        let source = Source::new(&wide, rows, cols, SourceDtype::F32, Some("w")).unwrap();
        assert_agrees_with_the_rules(&[source], &format!("f32, {bad} at {place}"));
        let source = Source::bf16(&narrow, rows, cols, Some("w")).unwrap();
        assert_agrees_with_the_rules(&[source], &format!("bf16, {bad} at {place}"));
    }
}

#[test]
fn any_bits_give_the_bytes_or_the_error_of_the_rule() {
    let (rows, cols) = (65, 146);
    let raw: Vec<[u8; 2]> = words(3, rows * cols).map(|word| [word as u8, (word >> 8) as u8]).collect();
    assert_agrees_with_the_rules(&[Source::bf16(&raw, rows, cols, Some("raw")).unwrap()], "raw bf16");
    let raw: Vec<f32> = words(4, rows * cols).map(|word| f32::from_bits(word as u32)).collect();
    let source = Source::new(&raw, rows, cols, SourceDtype::F32, Some("raw")).unwrap();
    assert_agrees_with_the_rules(&[source], "raw f32");
}

#[test]
fn several_tensors_give_the_bytes_or_the_error_of_the_rule() {
    let (rows, cols) = (40, 96);
    let gate = values(rows, cols);
    let up: Vec<f32> = gate.iter().map(|x| x * 3.0).collect();
    let narrow = pairs(&up);
    let named = |values, name| Source::new(values, rows, cols, SourceDtype::F32, Some(name)).unwrap();
    let up = named(&up, "up");
    assert_agrees_with_the_rules(&[], "none");
    assert_agrees_with_the_rules(&[named(&gate, "gate"), up], "a pair");
    assert_agrees_with_the_rules(&[named(&gate, "gate"), Source::bf16(&narrow, rows, cols, None).unwrap()], "mixed");
    let mut bad = gate.clone();
    bad[cols + 7] = f32::INFINITY;
    assert_agrees_with_the_rules(&[up, named(&bad, "gate")], "an infinity in the second");
    let wider = Source::new(&gate, cols, rows, SourceDtype::F32, Some("wider")).unwrap();
    assert_agrees_with_the_rules(&[up, wider], "other widths");
}

fn halves(cut: Cut) -> Partition {
    Partition::new(cut, 2).unwrap()
}

#[test]
fn cut_tensors_and_single_shards_give_the_bytes_or_the_error_of_the_rule() {
    // Two bands that end at 256 rows, and shards of whole tiles of 128.
    let (rows, cols) = (512, 256);
    let wide = values(rows, cols);
    let source = Source::new(&wide, rows, cols, SourceDtype::F32, Some("w")).unwrap();
    for (partition, small_rows) in [(Cut::Rows, 128), (Cut::Cols, 64)].map(|(cut, rows)| (halves(cut), rows)) {
        let with = |partition| specs().into_iter().map(|spec| spec.with_partition(partition)).collect();
        assert_agrees_on(with(partition), &[source], "cut");
        assert_agrees_on(with(partition.shard(1).unwrap()), &[source.row_range(0..small_rows)], "a shard");
    }
}

#[test]
fn a_cut_tensor_holds_the_shards_that_the_rule_makes_of_each_slice() {
    let (rows, cols) = (384, 512);
    // Each shard has magnitudes of its own, so that an outer scale of the whole would show.
    let scaled = |(index, x): (usize, f32)| x * (1 + index / cols / 128 * 3 + index % cols / 128 * 5) as f32;
    let wide: Vec<f32> = values(rows, cols).into_iter().enumerate().map(scaled).collect();
    let source = Source::new(&wide, rows, cols, SourceDtype::F32, Some("w")).unwrap();
    let mut compared = 0;
    for partition in [halves(Cut::Cols), Partition::new(Cut::Rows, 3).unwrap()] {
        for spec in specs().into_iter().filter(|spec| spec.axis == Axis::Row) {
            let (rule, spec) = (builtin_rule(&spec.format).unwrap(), spec.with_partition(partition));
            let apart = (0..partition.shards()).map(|shard| shards::quantize_shard(rule, &source, &spec, shard));
            let Ok(apart) = apart.collect::<std::result::Result<Vec<_>, _>>() else { continue };
            for quantizer in quantizers() {
                let joined = &quantizer.quantize(&[source], &spec).unwrap()[0];
                let shards = shards::split(rule, joined, source.name()).unwrap();
                for (want, got) in apart.iter().zip(&shards) {
                    assert!(want.canonical_bytes() == got.canonical_bytes(), "bytes differ: {spec:?}");
                    assert_eq!(want.amax(), got.amax(), "{spec:?}");
                }
                assert_eq!(shards.len(), apart.len(), "{spec:?}");
            }
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared} specs can be cut");
}

#[test]
fn an_error_in_a_later_band_names_the_row_of_the_whole_tensor() {
    let (rows, cols) = (700, 512);
    let mut values = values(rows, cols);
    values[650 * cols + 100] = f32::NAN;
    let source = Source::new(&values, rows, cols, SourceDtype::F32, Some("w")).unwrap();
    for format in [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block()] {
        let spec = QuantizeSpec::weight(format).with_non_finite(NonFinite::Error);
        let error = quantizer(2).quantize(&[source], &spec).unwrap_err();
        let Error::Format(FormatError::NonFinite { tensor, row, column, .. }) = error else { panic!("{error}") };
        assert_eq!((tensor.as_str(), row, column), ("w", 650, 100));
    }
}

#[test]
fn a_pair_shares_one_outer_scale() {
    let (rows, cols) = (8, 32);
    let (gate, up) = (values(rows, cols), values(rows, cols).iter().map(|x| x * 3.0).collect::<Vec<_>>());
    let source = |values| Source::new(values, rows, cols, SourceDtype::F32, None).unwrap();
    let spec = QuantizeSpec::weight(FormatId::nvfp4());
    let pair = quantizer(2).quantize(&[source(&gate), source(&up)], &spec).unwrap();
    let alone = quantizer(2).quantize(&[source(&gate)], &spec).unwrap();
    assert_eq!(pair[0].outer(), pair[1].outer());
    assert_ne!(pair[0].outer(), alone[0].outer());
}

/// Keeps nothing: every value becomes code 0.
struct Zeros;

impl FormatRule for Zeros {
    fn id(&self) -> FormatId {
        FormatId::new("zeros").unwrap()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let mut like = spec.clone();
        like.format = FormatId::mxfp8();
        builtin_rule(&like.format).unwrap().layout(rows, cols, &like)
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let layout = self.layout(source.rows(), source.cols(), spec)?;
        let scales = BlockScales::U8(vec![0; layout.scale_rows * layout.scale_cols]);
        let parts = QuantizedParts::new(source, spec, vec![0; layout.codes_bytes], scales);
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        Ok(vec![0.0; tensor.rows() * tensor.cols()])
    }
}

#[test]
fn a_rule_passed_as_a_value_is_used_and_an_unknown_one_is_refused() {
    let values = values(2, 32);
    let source = Source::new(&values, 2, 32, SourceDtype::F32, None).unwrap();
    let format = FormatId::new("zeros").unwrap();
    let spec = QuantizeSpec::activation(format.clone());

    let plain = quantizer(1);
    assert_eq!(plain.support(&format), Support::Unsupported);
    let error = plain.quantize(&[source], &spec).unwrap_err().to_string();
    assert!(error.contains("`zeros`") && error.contains("nvfp4"), "{error}");

    let own = plain.with_rule(Arc::new(Zeros)).unwrap();
    assert_eq!(own.support(&format), Support::Emulated);
    let tensor = &own.quantize(&[source], &spec).unwrap()[0];
    assert_eq!(own.dequantize(tensor).unwrap(), vec![0.0; 64]);
}

#[test]
fn a_rule_under_a_built_in_name_is_refused_and_not_shadowed() {
    for rule in [Arc::new(Mxfp8::DEFAULT) as Arc<dyn FormatRule>, Arc::new(Nvfp4::DEFAULT)] {
        let (name, error) = (rule.id().to_string(), quantizer(1).with_rule(rule).unwrap_err());
        let expected = RegistryError::BuiltIn { kind: "format", name };
        assert!(matches!(&error, Error::Registry(found) if *found == expected), "{error}");
    }
}
