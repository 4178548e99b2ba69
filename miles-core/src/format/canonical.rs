//! Canonical bytes: what a quantized tensor is hashed as.
//!
//! The amax values behind the outer scales are left out: checkpoints store the decode scale alone, and the digest of a
//! tensor has to be the same on both sides of a file.
//!
//! The layout is documented at [`QuantizedTensor::canonical_bytes`](super::QuantizedTensor::canonical_bytes).

use super::{Axis, BlockScales, Cut, Operand, QuantizeSpec, QuantizedParts, ScaleKind, TensorLayout};

/// Length of the header.
pub(super) const HEADER_BYTES: usize = 56;

/// A hash that has taken in the format's name and the header of a `[rows, cols]` tensor of `spec`, whose parts have the sizes
/// of `layout`: fed with codes, block scales and outer scales, it gives the tensor's digest.
pub(crate) fn hasher(spec: &QuantizeSpec, shape: [usize; 2], layout: &TensorLayout) -> blake3::Hasher {
    let is_f32 = layout.scale_kind == ScaleKind::F32;
    let scales = if is_f32 { BlockScales::F32(Vec::new()) } else { BlockScales::U8(Vec::new()) };
    let mut hasher = blake3::Hasher::new();
    let name = spec.format.as_str();
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    let counts = [layout.codes_bytes, layout.scale_rows * layout.scale_cols, layout.outer_len];
    hasher.update(&header(spec, shape, &scales, counts));
    hasher
}

/// Passes the canonical bytes of `parts` to `visit`, piece by piece.
pub(super) fn visit_canonical(parts: &QuantizedParts, mut visit: impl FnMut(&[u8])) {
    let counts = [parts.codes.len(), parts.scales.len(), parts.outer.len()];
    visit(&header(&parts.spec(), [parts.rows, parts.cols], &parts.scales, counts));
    visit(&parts.codes);
    match &parts.scales {
        BlockScales::U8(scales) => visit(scales),
        BlockScales::F32(scales) => visit_f32(scales, &mut visit),
    }
    visit_f32(&parts.outer, &mut visit);
}

/// The header of a `[rows, cols]` tensor of `spec` whose scales are stored as `scales` are; `counts` are the numbers of code
/// bytes, block scales and outer scales.
pub(super) fn header(
    spec: &QuantizeSpec,
    [rows, cols]: [usize; 2],
    scales: &BlockScales,
    counts: [usize; 3],
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(b"miles-q1");
    header[8] = u8::from(spec.operand == Operand::Weight);
    header[9] = u8::from(spec.axis == Axis::Column);
    header[10] = u8::from(matches!(scales, BlockScales::F32(_)));
    let partition = spec.partition;
    if !partition.is_whole() {
        header[11] = if partition.cut() == Cut::Rows { 1 } else { 2 };
        header[12..14].copy_from_slice(&partition.shards().to_le_bytes());
        let shard = partition.shard_index().map_or(0, |index| index + 1);
        header[14..16].copy_from_slice(&shard.to_le_bytes());
    }
    let [codes, block_scales, outer] = counts;
    for (slot, count) in header[16..].chunks_exact_mut(8).zip([rows, cols, codes, block_scales, outer]) {
        slot.copy_from_slice(&(count as u64).to_le_bytes());
    }
    header
}

fn visit_f32(values: &[f32], visit: &mut impl FnMut(&[u8])) {
    let mut buffer = [0; 1024];
    for chunk in values.chunks(buffer.len() / 4) {
        for (slot, value) in buffer.chunks_exact_mut(4).zip(chunk) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        visit(&buffer[..chunk.len() * 4]);
    }
}
