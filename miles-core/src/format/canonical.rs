//! Canonical bytes: what a quantized tensor is hashed as.
//!
//! The amax values behind the outer scales are left out: checkpoints store the decode scale alone, and the digest of a
//! tensor has to be the same on both sides of a file.
//!
//! The layout is documented at [`QuantizedTensor::canonical_bytes`](super::QuantizedTensor::canonical_bytes).

use super::{Axis, BlockScales, Cut, Operand, QuantizedParts};

/// Length of the header.
pub(super) const HEADER_BYTES: usize = 56;

/// Passes the canonical bytes of `parts` to `visit`, piece by piece.
pub(super) fn visit_canonical(parts: &QuantizedParts, mut visit: impl FnMut(&[u8])) {
    visit(&header(parts));
    visit(&parts.codes);
    match &parts.scales {
        BlockScales::U8(scales) => visit(scales),
        BlockScales::F32(scales) => visit_f32(scales, &mut visit),
    }
    visit_f32(&parts.outer, &mut visit);
}

fn header(parts: &QuantizedParts) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(b"miles-q1");
    header[8] = u8::from(parts.operand == Operand::Weight);
    header[9] = u8::from(parts.axis == Axis::Column);
    header[10] = u8::from(matches!(parts.scales, BlockScales::F32(_)));
    let partition = parts.partition;
    if !partition.is_whole() {
        header[11] = if partition.cut() == Cut::Rows { 1 } else { 2 };
        header[12..14].copy_from_slice(&partition.shards().to_le_bytes());
        let shard = partition.shard_index().map_or(0, |index| index + 1);
        header[14..16].copy_from_slice(&shard.to_le_bytes());
    }
    let counts = [parts.rows, parts.cols, parts.codes.len(), parts.scales.len(), parts.outer.len()];
    for (slot, count) in header[16..].chunks_exact_mut(8).zip(counts) {
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
