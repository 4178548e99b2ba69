//! Shards quantized apart are the parts of the tensor quantized as shards, in every NVFP4 variant.

use miles_core::format::nvfp4::dequantize_without_outer;
use miles_core::format::{
    Axis, Cut, FormatError, FormatRule, Nvfp4, Partition, QuantizeSpec, QuantizedTensor, ScaleScope, Source,
    SourceDtype,
};
use proptest::prelude::*;

use crate::nvfp4_variants::{quantize, rules, specs};
use crate::sample::{assert_same_bits, values};

/// The sub-matrix of a shard.
fn shard_values(x: &[f32], rows: usize, cols: usize, partition: Partition, shard: usize) -> (Vec<f32>, usize, usize) {
    let (row_range, col_range) = partition.range(shard, rows, cols);
    let part = row_range.clone().flat_map(|row| x[row * cols..][col_range.clone()].to_vec()).collect();
    (part, row_range.len(), col_range.len())
}

/// Codes (one per byte) and block scales of every line, as matrices `[lines, ..]` with their widths.
fn lines(tensor: &QuantizedTensor) -> (usize, Vec<u8>, Vec<u8>) {
    let (lines, length) = match tensor.axis() {
        Axis::Row => (tensor.rows(), tensor.cols()),
        Axis::Column => (tensor.cols(), tensor.rows()),
    };
    let code = |i: usize| {
        let (line, at) = (i / length.max(1), i % length.max(1));
        tensor.codes()[line * length.div_ceil(2) + at / 2] >> (4 * (at % 2)) & 0xF
    };
    (length, (0..lines * length).map(code).collect(), tensor.scales().as_u8().unwrap().to_vec())
}

fn source(x: &[f32], rows: usize, cols: usize) -> Source<'_> {
    Source::new(x, rows, cols, SourceDtype::F32, Some("w")).unwrap()
}

fn assert_shards_are_parts(rule: &Nvfp4, x: &[f32], rows: usize, cols: usize, spec: &QuantizeSpec) {
    let whole = quantize(rule, x, rows, cols, spec);
    let partition = spec.partition;
    let (length, codes, scales) = lines(&whole);
    let along = (partition.cut() == Cut::Cols) == (spec.axis == Axis::Row);
    let (decoded, products) = (rule.dequantize(&whole).unwrap(), dequantize_without_outer(&whole).unwrap());
    for shard in 0..partition.shards_here() {
        let (part, part_rows, part_cols) = shard_values(x, rows, cols, partition, shard);
        let alone_spec = spec.clone().with_partition(partition.shard(shard as u16).unwrap());
        let alone = quantize(rule, &part, part_rows, part_cols, &alone_spec);
        let (part_length, part_codes, part_scales) = lines(&alone);
        let (blocks, part_blocks) = (length.div_ceil(16), part_length.div_ceil(16));
        let part_lines = part_codes.len().checked_div(part_length).unwrap_or(0);
        for line in 0..part_lines {
            let (joined_line, first) = if along { (line, shard * part_length) } else { (shard * part_lines + line, 0) };
            let expected = &codes[joined_line * length + first..][..part_length];
            assert_eq!(&part_codes[line * part_length..][..part_length], expected, "{} {partition}", rule.id());
            let expected = &scales[joined_line * blocks + first / 16..][..part_blocks];
            assert_eq!(&part_scales[line * part_blocks..][..part_blocks], expected, "{} {partition}", rule.id());
            if spec.scope == ScaleScope::Row {
                let at = if along { line * partition.shards_here() + shard } else { joined_line };
                assert_eq!((alone.outer()[line], alone.amax()[line]), (whole.outer()[at], whole.amax()[at]));
            }
        }
        if spec.scope != ScaleScope::Row {
            assert_eq!((alone.outer(), alone.amax()), (&whole.outer()[shard..][..1], &whole.amax()[shard..][..1]));
        }
        let expected = shard_values(&decoded, rows, cols, partition, shard).0;
        assert_same_bits(&rule.dequantize(&alone).unwrap(), &expected);
        let expected = shard_values(&products, rows, cols, partition, shard).0;
        assert_same_bits(&dequantize_without_outer(&alone).unwrap(), &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_shard_alone_is_that_part_of_the_whole(
        seed: u32, shards in 1_u16..5, row_blocks in 0_usize..3, col_blocks in 0_usize..3, extra in 0_usize..16,
    ) {
        for rule in rules() {
            for spec in specs(&rule) {
                for cut in [Cut::Rows, Cut::Cols] {
                    let partition = Partition::new(cut, shards).unwrap();
                    // Whole blocks along the cut; along the other dimension anything that the variant takes.
                    let other = if rule.hadamard().is_some() { 16 } else { 2 * extra };
                    let (rows, cols) = match cut {
                        Cut::Rows => (usize::from(shards) * 16 * row_blocks, col_blocks * 16 + other),
                        Cut::Cols => (row_blocks * 16 + other, usize::from(shards) * 16 * col_blocks),
                    };
                    let mut x = values(rows * cols, seed);
                    // Shards of different magnitudes.
                    x.iter_mut().enumerate().for_each(|(i, x)| *x *= (1 + i * 7 / rows.max(1) / cols.max(1)) as f32);
                    assert_shards_are_parts(&rule, &x, rows, cols, &spec.clone().with_partition(partition));
                }
            }
        }
    }

    #[test]
    fn shards_of_a_pair_share_pairwise(seed: u32, shards in 2_u16..4) {
        let cols = usize::from(shards) * 32;
        for rule in rules() {
            for cut in [Cut::Rows, Cut::Cols] {
                let partition = Partition::new(cut, shards).unwrap();
                let (gate_rows, up_rows) = (usize::from(shards) * 16, usize::from(shards) * 32);
                let (gate, up) = (values(gate_rows * cols, seed), values(up_rows * cols, !seed));
                let spec = QuantizeSpec::weight(rule.id()).with_partition(partition);
                let pair =
                    rule.quantize_joint(&[source(&gate, gate_rows, cols), source(&up, up_rows, cols)], &spec).unwrap();
                prop_assert_eq!(pair[0].outer(), pair[1].outer());
                prop_assert_eq!(pair[0].outer().len(), usize::from(shards));
                for shard in 0..shards {
                    let (g, g_rows, width) = shard_values(&gate, gate_rows, cols, partition, shard.into());
                    let (u, u_rows, _) = shard_values(&up, up_rows, cols, partition, shard.into());
                    let spec = spec.clone().with_partition(partition.shard(shard).unwrap());
                    let alone = rule.quantize_joint(&[source(&g, g_rows, width), source(&u, u_rows, width)], &spec).unwrap();
                    for (whole, alone) in pair.iter().zip(&alone) {
                        prop_assert_eq!(&whole.outer()[usize::from(shard)..][..1], alone.outer());
                        let values = rule.dequantize(whole).unwrap();
                        let expected = shard_values(&values, whole.rows(), cols, partition, shard.into()).0;
                        assert_same_bits(&rule.dequantize(alone).unwrap(), &expected);
                    }
                }
            }
        }
    }
}

#[test]
fn cuts_through_a_block_are_refused() {
    let x = [1.0; 48 * 48];
    let source = Source::new(&x, 48, 48, SourceDtype::F32, None).unwrap();
    for rule in rules() {
        for spec in specs(&rule) {
            for cut in [Cut::Rows, Cut::Cols] {
                let partition = Partition::new(cut, 2).unwrap();
                let through = (cut == Cut::Cols) == (spec.axis == Axis::Row)
                    || rule.layout(16, 16, &spec.clone().with_partition(Partition::new(cut, 16).unwrap())).is_err();
                match rule.quantize(&source, &spec.clone().with_partition(partition)) {
                    Err(FormatError::UnevenShards { partition: found, block, .. }) => {
                        assert!(through && found == partition && block == 16, "{}", rule.id());
                    }
                    Err(other) => panic!("{other}"),
                    Ok(_) => assert!(!through, "{} {spec:?}", rule.id()),
                }
            }
        }
    }
}
