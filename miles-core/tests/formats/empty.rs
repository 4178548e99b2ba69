//! Shapes without elements: quantized, decoded, counted and cut like any other, and no line of theirs is walked, so the
//! largest extent of all costs what the smallest does.

use miles_core::format::{
    Axis, Cut, FormatRule, MAX_EXTENT, Partition, QuantizeCounts, QuantizeSpec, ScaleScope, Source, SourceDtype,
    TensorLayout, builtin_rules, shards,
};

#[test]
fn the_largest_shape_without_elements_gives_what_the_smallest_gives() {
    let mut compared = 0;
    for rule in builtin_rules() {
        for spec in specs(rule) {
            for (large, small) in [([MAX_EXTENT, 0], [512, 0]), ([0, MAX_EXTENT], [0, 512])] {
                // One outer scale per line is as many as there are lines.
                let has_data = |layout: TensorLayout| layout.outer_len > 2;
                if rule.layout(large[0], large[1], &spec).is_ok_and(has_data) {
                    continue;
                }
                let (large, small) = (parts(rule, &spec, large), parts(rule, &spec, small));
                assert_eq!(large, small, "{spec:?}");
                compared += usize::from(large.is_ok());
            }
        }
    }
    assert!(compared > 500, "only {compared} specs take a shape without elements");
}

fn specs(rule: &dyn FormatRule) -> impl Iterator<Item = QuantizeSpec> {
    let cut = |cut| Partition::new(cut, 2).unwrap();
    let mut specs = Vec::new();
    for base in [QuantizeSpec::activation(rule.id()), QuantizeSpec::weight(rule.id())] {
        for axis in [Axis::Row, Axis::Column] {
            for scope in [ScaleScope::Block, ScaleScope::Row, ScaleScope::Tensor] {
                for partition in [Partition::WHOLE, cut(Cut::Rows), cut(Cut::Cols)] {
                    specs.push(base.clone().with_axis(axis).with_scope(scope).with_partition(partition));
                }
            }
        }
    }
    specs.into_iter()
}

/// Outer scales, code bytes of all shards and blocks of what `rule` makes of a shape, read back on the way; whether it
/// refuses the shape.
fn parts(rule: &dyn FormatRule, spec: &QuantizeSpec, [rows, cols]: [usize; 2]) -> Result<(Vec<f32>, usize, u64), ()> {
    let source = Source::new(&[], rows, cols, SourceDtype::F32, Some("w")).unwrap();
    let tensor = rule.quantize(&source, spec).map_err(|_| ())?;
    assert_eq!(rule.dequantize(&tensor), Ok(Vec::new()), "{spec:?}");
    assert!(tensor.codes().is_empty(), "{spec:?}");
    let counts = QuantizeCounts::of(rule, &source, &tensor).unwrap();
    let mut code_bytes = 0;
    if let Ok(apart) = shards::split(rule, &tensor, Some("w")) {
        assert_eq!(shards::join(rule, &apart, Some("w")).unwrap(), tensor, "{spec:?}");
        for (shard, split) in (0..).zip(&apart) {
            assert_eq!(&shards::quantize_shard(rule, &source, spec, shard).unwrap(), split, "{spec:?}");
            code_bytes += split.codes().len();
        }
    }
    Ok((tensor.outer().to_vec(), code_bytes, counts.blocks))
}
