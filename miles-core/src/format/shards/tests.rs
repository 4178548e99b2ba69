use super::*;
use crate::format::{FormatError, FormatId, SourceDtype, builtin_rule};
use crate::random::{Coordinates, Stream, normal};

fn values(count: usize, seed: u64) -> Vec<f32> {
    let draw = |index| normal(seed, Stream::Data, Coordinates { prompt: index as u64, ..Coordinates::default() });
    // Different magnitudes in different places, so that scales differ.
    (0..count).map(|index| draw(index) as f32 * [1.0, 1e-3, 300.0][index / 97 % 3]).collect()
}

fn spec(format: &FormatId, cut: Cut, shards: u16) -> QuantizeSpec {
    QuantizeSpec::weight(format.clone()).with_partition(Partition::new(cut, shards).unwrap())
}

fn rule(format: &FormatId) -> &'static dyn FormatRule {
    builtin_rule(format).unwrap()
}

fn shards(format: &FormatId, source: &Source<'_>, spec: &QuantizeSpec) -> Vec<QuantizedTensor> {
    (0..spec.partition.shards()).map(|shard| quantize_shard(rule(format), source, spec, shard).unwrap()).collect()
}

#[test]
fn joined_shards_are_the_whole_and_block_scales_do_not_see_the_cut() {
    for (format, sizes) in [
        (FormatId::mxfp8(), [(4, 64), (6, 128), (1, 256), (12, 96)]),
        (FormatId::fp8_block(), [(256, 256), (512, 256), (256, 512), (768, 384)]),
    ] {
        for (rows, cols) in sizes {
            for (cut, shards_wanted) in [(Cut::Rows, 2), (Cut::Cols, 2), (Cut::Rows, 3), (Cut::Cols, 4)] {
                let spec = spec(&format, cut, shards_wanted);
                if rule(&format).layout(rows, cols, &spec).is_err() {
                    continue;
                }
                let values = values(rows * cols, 3);
                let source = Source::new(&values, rows, cols, SourceDtype::F32, Some("w")).unwrap();
                let mut shards = shards(&format, &source, &spec);
                let whole = rule(&format).quantize(&source, &spec).unwrap();
                assert_eq!(split(rule(&format), &whole, None).unwrap(), shards, "{spec:?} [{rows}, {cols}]");
                shards.reverse();
                let joined = join(rule(&format), &shards, Some("w")).unwrap();
                assert_eq!(joined.canonical_bytes(), whole.canonical_bytes(), "{spec:?} [{rows}, {cols}]");
                assert_eq!(joined.digest(), whole.digest());
                let uncut = rule(&format).quantize(&source, &QuantizeSpec::weight(format.clone())).unwrap();
                assert_eq!((joined.codes(), joined.scales()), (uncut.codes(), uncut.scales()));
                assert_ne!(joined.digest(), uncut.digest(), "the header says how it was cut");
            }
        }
    }
}

#[test]
fn a_cut_by_rows_keeps_scales_per_row() {
    let (format, rows, cols) = (FormatId::nvfp4(), 6, 32);
    let values = values(rows * cols, 4);
    let source = Source::new(&values, rows, cols, SourceDtype::F32, None).unwrap();
    let spec = spec(&format, Cut::Rows, 3).with_scope(ScaleScope::Row);
    let joined = join(rule(&format), &shards(&format, &source, &spec), None).unwrap();
    let uncut = rule(&format).quantize(&source, &spec.clone().with_partition(Partition::WHOLE)).unwrap();
    assert_eq!((joined.codes(), joined.scales()), (uncut.codes(), uncut.scales()));
    assert_eq!((joined.outer(), joined.amax()), (uncut.outer(), uncut.amax()));
    assert_eq!(joined, rule(&format).quantize(&source, &spec).unwrap());
}

#[test]
fn bf16_sources_are_cut_as_they_lie() {
    let (format, rows, cols) = (FormatId::mxfp8(), 3, 64);
    let bits: Vec<[u8; 2]> = values(rows * cols, 5).iter().map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
    let wide: Vec<f32> = bits.iter().map(|&pair| half::bf16::from_le_bytes(pair).to_f32()).collect();
    let spec = spec(&format, Cut::Cols, 2);
    let narrow = Source::bf16(&bits, rows, cols, None).unwrap();
    let wide = Source::new(&wide, rows, cols, SourceDtype::Bf16, None).unwrap();
    assert_eq!(shards(&format, &narrow, &spec), shards(&format, &wide, &spec));
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let format = FormatId::mxfp8();
    let (values, taller) = (values(4 * 128, 6), values(8 * 128, 7));
    let source = Source::new(&values, 4, 128, SourceDtype::F32, Some("w")).unwrap();
    let tall = Source::new(&taller, 8, 128, SourceDtype::F32, Some("w")).unwrap();
    let two = spec(&format, Cut::Cols, 2);
    let pair = shards(&format, &source, &two);
    let joined = |shards: &[QuantizedTensor]| join(rule(&format), shards, Some("w")).unwrap_err();

    assert_eq!(joined(&[]), ShardError::NoShards { tensor: "w".into() });
    assert_eq!(joined(&pair[..1]), ShardError::Missing { tensor: "w".into(), shard: 1, shards: 2 });
    assert_eq!(joined(&pair[1..]), ShardError::Missing { tensor: "w".into(), shard: 0, shards: 2 });
    let twice = [pair[1].clone(), pair[1].clone()];
    assert_eq!(joined(&twice), ShardError::Twice { tensor: "w".into(), shard: 1, shards: 2 });
    let whole = rule(&format).quantize(&source, &two).unwrap();
    let with_whole = joined(&[pair[0].clone(), whole.clone()]);
    assert!(matches!(with_whole, ShardError::NotAShard { position: 1, .. }), "{with_whole}");

    let differs = |other: &QuantizedTensor, what: &str| {
        let error = joined(&[pair[0].clone(), other.clone()]);
        assert!(matches!(&error, ShardError::Differs { what: found, .. } if *found == what), "{error}");
        assert!(error.to_string().starts_with("tensor w: "), "{error}");
    };
    differs(&shards(&format, &tall, &two)[1], "the shape");
    differs(&shards(&format, &source, &spec(&format, Cut::Cols, 4))[1], "the cut");
    differs(&shards(&format, &source, &spec(&format, Cut::Rows, 2))[1], "the cut");
    differs(&shards(&FormatId::nvfp4(), &source, &spec(&FormatId::nvfp4(), Cut::Cols, 2))[1], "the format");
    differs(&shards(&format, &source, &two.clone().with_axis(Axis::Column))[1], "the block axis");
    let activation = QuantizeSpec { operand: crate::format::Operand::Activation, ..two.clone() };
    differs(&shards(&format, &source, &activation)[1], "the operand");

    for no_shards in [&pair[0], &rule(&format).quantize(&source, &QuantizeSpec::weight(format.clone())).unwrap()] {
        let error = split(rule(&format), no_shards, Some("w")).unwrap_err();
        assert!(matches!(error, ShardError::NotJoined { .. }), "{error}");
    }
    let columns = shards(&format, &Source::new(&taller, 64, 16, SourceDtype::F32, None).unwrap(), &{
        spec(&format, Cut::Rows, 2).with_axis(Axis::Column)
    });
    assert!(matches!(joined(&columns), ShardError::BlockAxis { .. }));
}

#[test]
fn a_shard_that_is_not_there_and_uneven_shards_are_refused() {
    let format = FormatId::mxfp8();
    let values = values(4 * 96, 8);
    let source = Source::new(&values, 4, 96, SourceDtype::F32, Some("w")).unwrap();
    let quantized = |cut, shards, shard| quantize_shard(rule(&format), &source, &spec(&format, cut, shards), shard);
    let no_such = ShardError::Format(FormatError::NoSuchShard { shard: 3, shards: 3 });
    assert_eq!(quantized(Cut::Cols, 3, 3).unwrap_err(), no_such);
    for (cut, shards) in [(Cut::Cols, 2), (Cut::Rows, 3)] {
        let error = quantized(cut, shards, 0).unwrap_err();
        assert!(matches!(error, ShardError::Format(FormatError::UnevenShards { .. })), "{error}");
    }
    let whole = quantize_shard(rule(&format), &source, &QuantizeSpec::weight(format.clone()), 0).unwrap();
    assert_eq!(whole, rule(&format).quantize(&source, &QuantizeSpec::weight(format.clone())).unwrap());
}
