//! The walk over lines and blocks, and the order in which codes and scales are stored.

use super::Defect;
use super::steps::{Outer, Scale, Steps};
use crate::format::{Axis, BlockScales, Cut, Operand, QuantizeSpec, QuantizedParts, ScaleScope, Source};

/// The formats that this path knows.
pub(super) const FORMATS: [&str; 4] = ["nvfp4", "mxfp8", "fp8-block", "fp8-block/power-of-two"];

/// The extent of a block: elements along a line, and lines that share its scale.
pub(super) struct Blocks {
    pub length: usize,
    lines: usize,
}

impl Blocks {
    pub fn of(spec: &QuantizeSpec) -> Self {
        match (spec.format.as_str(), spec.operand) {
            ("nvfp4", _) => Blocks { length: 16, lines: 1 },
            ("mxfp8", _) => Blocks { length: 32, lines: 1 },
            (_, Operand::Activation) => Blocks { length: 128, lines: 1 },
            (_, Operand::Weight) => Blocks { length: 128, lines: 128 },
        }
    }
}

/// Quantizes line by line. `shared_amax` is that of all tensors of a joint quantization, one per shard.
pub(super) fn quantize(
    steps: &Steps,
    source: &Source<'_>,
    spec: &QuantizeSpec,
    shared_amax: &[f32],
    staging: &mut Vec<f32>,
) -> QuantizedParts {
    let lines = lines_of(source, spec.axis);
    let length = if spec.axis == Axis::Row { source.cols() } else { source.rows() };
    let Blocks { length: block_length, lines: block_lines } = Blocks::of(spec);
    let is_fp4 = spec.format.as_str() == "nvfp4";
    let shards = Shards { spec, rows: source.rows(), cols: source.cols() };
    let outers = outer_scales(steps, &lines, &shards, shared_amax);
    let block_count = length.div_ceil(block_length);
    let mut codes = vec![Vec::with_capacity(length); lines.len()];
    let mut scales = Vec::new();
    for (group, first) in (0..lines.len()).step_by(block_lines.max(1)).enumerate() {
        let members = first..lines.len().min(first + block_lines);
        for block in 0..block_count {
            let range = block * block_length..length.min((block + 1) * block_length);
            let mut amax: f32 = 0.0;
            let mut staged = Vec::new();
            for line in members.clone() {
                stage(steps, &lines[line][range.clone()], block_length, staging);
                amax = amax.max(steps.amax(staging));
                staged.push(staging.clone());
            }
            if steps.has(Defect::NeighbourScale) {
                let other = (group ^ 1) * block_lines;
                let others = other.min(lines.len())..lines.len().min(other + block_lines);
                amax = others.fold(amax, |amax, line| amax.max(steps.amax(&lines[line][range.clone()])));
            }
            let scale = match spec.format.as_str() {
                "nvfp4" => steps.nvfp4_scale(amax, &outers[shards.outer_of(first, range.start)]),
                "mxfp8" => steps.mxfp8_scale(amax),
                format => steps.fp8_scale(amax, source.dtype(), format.ends_with("power-of-two")),
            };
            let (Scale::Byte(_, encode) | Scale::Float(_, encode)) = scale;
            let is_short = range.len() < block_length;
            // Two codes share a byte, so a line of odd length ends in the code of one padding element.
            let kept = if is_fp4 { range.len().next_multiple_of(2) } else { range.len() };
            for (line, values) in members.clone().zip(staged) {
                let code = |&x: &f32| match (is_short && steps.has(Defect::TruncatedTail), is_fp4) {
                    (true, _) => 0,
                    (false, true) => steps.e2m1(x, encode),
                    (false, false) => steps.e4m3(x, encode),
                };
                codes[line].extend(values[..kept].iter().map(code));
            }
            scales.push(scale);
        }
    }
    let groups = lines.len().div_ceil(block_lines);
    let stored = stored_scales(steps, spec, &scales, groups, block_count);
    let codes = stored_codes(steps, spec, &codes);
    let (outer, amax) = stored_outer(spec, &outers);
    QuantizedParts { outer, amax, ..QuantizedParts::new(source, spec, codes, stored) }
}

fn lines_of(source: &Source<'_>, axis: Axis) -> Vec<Vec<f32>> {
    let (rows, cols) = (source.rows(), source.cols());
    let values = source.values();
    match axis {
        Axis::Row => (0..rows).map(|row| values[row * cols..][..cols].to_vec()).collect(),
        Axis::Column => (0..cols).map(|col| (0..rows).map(|row| values[row * cols + col]).collect()).collect(),
    }
}

/// Copies a block into the staging buffer, which is as long as a whole block.
fn stage(steps: &Steps, values: &[f32], block_length: usize, staging: &mut Vec<f32>) {
    if !steps.has(Defect::StalePadding) {
        staging.clear();
    }
    staging.resize(block_length, 0.0);
    staging[..values.len()].copy_from_slice(values);
}

/// Which outer scale a block has.
struct Shards<'a> {
    spec: &'a QuantizeSpec,
    rows: usize,
    cols: usize,
}

impl Shards<'_> {
    /// Shards that every line runs through; 1 where each line lies in one shard.
    fn along_a_line(&self) -> usize {
        let cut_along = if self.spec.axis == Axis::Row { Cut::Cols } else { Cut::Rows };
        if self.spec.partition.cut() == cut_along { self.spec.partition.shards_here() } else { 1 }
    }

    /// The outer scale of the block that begins at `position` of a line: of the line's part in its shard, or of the shard.
    fn outer_of(&self, line: usize, position: usize) -> usize {
        let (row, col) = if self.spec.axis == Axis::Row { (line, position) } else { (position, line) };
        let shard = self.spec.partition.shard_of(row, col, self.rows, self.cols);
        match self.spec.scope {
            ScaleScope::Row if self.along_a_line() > 1 => line * self.along_a_line() + shard,
            ScaleScope::Row => line,
            _ => shard,
        }
    }
}

fn outer_scales(steps: &Steps, lines: &[Vec<f32>], shards: &Shards<'_>, shared_amax: &[f32]) -> Vec<Outer> {
    let of_line = |line: &Vec<f32>| -> Vec<Outer> {
        let segments = shards.along_a_line();
        let length = line.len() / segments;
        (0..segments).map(|segment| steps.outer(steps.amax(&line[segment * length..][..length]))).collect()
    };
    match (shards.spec.format.as_str(), shards.spec.scope == ScaleScope::Row) {
        ("nvfp4", true) => lines.iter().flat_map(of_line).collect(),
        ("nvfp4", false) => shared_amax.iter().map(|&amax| steps.outer(steps.amax(&[amax]))).collect(),
        _ => Vec::new(),
    }
}

/// Block scales of `[groups, blocks]`; the column copy of MXFP8 is stored turned.
fn stored_scales(steps: &Steps, spec: &QuantizeSpec, scales: &[Scale], groups: usize, blocks: usize) -> BlockScales {
    let is_turned = spec.format.as_str() == "mxfp8" && spec.axis == Axis::Column;
    let turn = is_turned != steps.has(Defect::TransposedScales);
    let ordered: Vec<Scale> = (0..scales.len())
        .map(|index| if turn { scales[index % groups * blocks + index / groups] } else { scales[index] })
        .collect();
    if spec.format.as_str().starts_with("fp8-block") {
        BlockScales::F32(ordered.iter().map(|scale| if let Scale::Float(x, _) = scale { *x } else { 0.0 }).collect())
    } else {
        BlockScales::U8(ordered.iter().map(|scale| if let Scale::Byte(x, _) = scale { *x } else { 0 }).collect())
    }
}

fn stored_codes(steps: &Steps, spec: &QuantizeSpec, lines: &[Vec<u8>]) -> Vec<u8> {
    match (spec.format.as_str(), spec.axis) {
        ("nvfp4", _) => {
            lines.iter().flat_map(|line| line.as_chunks::<2>().0).map(|pair| packed(steps, *pair)).collect()
        }
        ("mxfp8", Axis::Column) => {
            let length = lines.first().map_or(0, Vec::len);
            (0..length).flat_map(|position| lines.iter().map(move |line| line[position])).collect()
        }
        _ => lines.concat(),
    }
}

fn packed(steps: &Steps, [even, odd]: [u8; 2]) -> u8 {
    if steps.has(Defect::SwappedNibbles) { odd | even << 4 } else { even | odd << 4 }
}

/// Decode scales and amax values; the decode scale of zeros is 0 for a line and 1 / f32::MAX for a tensor.
fn stored_outer(spec: &QuantizeSpec, outers: &[Outer]) -> (Vec<f32>, Vec<f32>) {
    let of_zeros = if spec.scope == ScaleScope::Row { 0.0 } else { 1.0 / f32::MAX };
    let decode = |outer: &Outer| if outer.amax == 0.0 { of_zeros } else { outer.decode };
    (outers.iter().map(decode).collect(), outers.iter().map(|outer| outer.amax).collect())
}
