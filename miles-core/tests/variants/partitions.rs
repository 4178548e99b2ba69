//! Shards quantized apart, and the same matrix quantized as joined shards.

use miles_core::format::{
    Axis, Cut, FormatError, FormatRule, Operand, Partition, QuantizeSpec, ScaleScope, Source, SourceDtype, Symmetric,
};

use crate::block_rules;
use crate::sample::{assert_same_bits, quantize, values};

fn part(x: &[f32], cols: usize, (rows, part_cols): (std::ops::Range<usize>, std::ops::Range<usize>)) -> Vec<f32> {
    rows.flat_map(|row| x[row * cols..][part_cols.clone()].to_vec()).collect()
}

#[test]
fn shards_quantized_apart_equal_the_joined_tensor() {
    let (rows, cols) = (256, 256);
    let mut x = values(rows * cols, 6);
    // One shard of either cut has the largest value by far.
    x[3] = 1e9;
    let mut compared = 0;
    for rule in block_rules() {
        for operand in [Operand::Activation, Operand::Weight] {
            for axis in [Axis::Row, Axis::Column] {
                for scope in [ScaleScope::Row, ScaleScope::Tensor] {
                    for cut in [Cut::Rows, Cut::Cols] {
                        let partition = Partition::new(cut, 2).unwrap();
                        let spec = match operand {
                            Operand::Activation => QuantizeSpec::activation(rule.id()),
                            Operand::Weight => QuantizeSpec::weight(rule.id()),
                        };
                        let spec = spec.with_axis(axis).with_scope(scope);
                        let joined = quantize(&x, rows, cols, &spec.clone().with_partition(partition));
                        let values = joined.dequantize_f32().unwrap();
                        let mut scales = 0;
                        for shard in 0..2_u16 {
                            let range = partition.range(usize::from(shard), rows, cols);
                            let (shard_rows, shard_cols) = (range.0.len(), range.1.len());
                            let slice = part(&x, cols, range.clone());
                            let spec = spec.clone().with_partition(partition.shard(shard).unwrap());
                            let apart = quantize(&slice, shard_rows, shard_cols, &spec);
                            assert_same_bits(&apart.dequantize_f32().unwrap(), &part(&values, cols, range));
                            scales += apart.scales().len() + apart.outer().len();
                        }
                        assert_eq!(scales, joined.scales().len() + joined.outer().len(), "{spec:?} {partition}");
                        assert_ne!(
                            joined.digest(),
                            quantize(&x, rows, cols, &spec).digest(),
                            "the cut is in the digest"
                        );
                        compared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(compared, 20 * 16);
}

/// A cut along the lines gives each shard of a line its own scale; a cut across them changes nothing.
#[test]
fn whole_line_scales_are_one_per_shard() {
    let (rows, cols) = (4, 6);
    let x: Vec<f32> = (1..=24).map(|i| i as f32).collect();
    let spec = QuantizeSpec::weight(Symmetric::FP8_CHANNEL.id());
    let by_cols = quantize(&x, rows, cols, &spec.clone().with_partition(Partition::new(Cut::Cols, 3).unwrap()));
    assert_eq!((by_cols.scale_rows(), by_cols.scale_cols()), (4, 3));
    assert_eq!(by_cols.scales().as_f32().unwrap()[..3], [2.0 / 448.0, 4.0 / 448.0, 6.0 / 448.0]);
    let by_rows = quantize(&x, rows, cols, &spec.clone().with_partition(Partition::new(Cut::Rows, 2).unwrap()));
    assert_eq!(by_rows.scales(), quantize(&x, rows, cols, &spec).scales());

    let spec = QuantizeSpec::weight(Symmetric::FP8_TENSOR.id());
    let by_rows = quantize(&x, rows, cols, &spec.with_partition(Partition::new(Cut::Rows, 2).unwrap()));
    assert_eq!(by_rows.outer(), [12.0 / 448.0, 24.0 / 448.0]);
}

#[test]
fn a_cut_through_a_block_is_refused() {
    for rule in block_rules() {
        // 48 rows and columns in 2 shards of 24: no multiple of any block above 1.
        for cut in [Cut::Rows, Cut::Cols] {
            let spec = QuantizeSpec::weight(rule.id()).with_partition(Partition::new(cut, 2).unwrap());
            let whole_lines = ["fp8-channel", "int8-channel", "fp8-tensor"].contains(&rule.id().as_str());
            let tiled = rule.id().family() == "fp8-block" || rule.id().as_str().ends_with("32x32");
            let fits = whole_lines || cut == Cut::Rows && !tiled;
            let found = rule.layout(48, 48, &spec);
            assert_eq!(found.is_ok(), fits, "{} {cut:?}", rule.id());
            assert!(fits || matches!(found, Err(FormatError::UnevenShards { length: 48, .. })));
        }
        let spec = QuantizeSpec::weight(rule.id()).with_partition(Partition::new(Cut::Cols, 5).unwrap());
        let x = vec![1.0; 256 * 256];
        let source = Source::new(&x, 256, 256, SourceDtype::F32, None).unwrap();
        assert!(matches!(rule.quantize(&source, &spec), Err(FormatError::UnevenShards { .. })), "{}", rule.id());
    }
}
