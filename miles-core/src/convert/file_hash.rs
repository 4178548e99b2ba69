//! BLAKE3 of a file, hashed in segments by any number of threads. The result is that of the whole file.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::digest::Digest;

/// Length of every segment but the last: a power of two, so that segments are subtrees of the hash.
pub(super) const SEGMENT_BYTES: u64 = 32 << 20;

/// Number of segments of a file.
pub(super) fn segments(file_bytes: u64) -> usize {
    file_bytes.div_ceil(SEGMENT_BYTES).max(1) as usize
}

/// First byte and length of a segment.
pub(super) fn range(file_bytes: u64, segment: usize) -> (u64, u64) {
    let start = segment as u64 * SEGMENT_BYTES;
    (start, (file_bytes - start).min(SEGMENT_BYTES))
}

/// A segment being hashed.
pub(super) struct SegmentHasher {
    hasher: blake3::Hasher,
    is_whole_file: bool,
}

/// A hashed segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum SegmentHash {
    /// The file has one segment.
    Whole(Digest),
    Subtree(ChainingValue),
}

impl SegmentHasher {
    pub(super) fn new(file_bytes: u64, segment: usize) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(range(file_bytes, segment).0);
        SegmentHasher { hasher, is_whole_file: segments(file_bytes) == 1 }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(super) fn finish(self) -> SegmentHash {
        if self.is_whole_file {
            SegmentHash::Whole(self.hasher.finalize().into())
        } else {
            SegmentHash::Subtree(self.hasher.finalize_non_root())
        }
    }
}

/// The hash of a file from those of all its segments, in order; `None` when they are not those of one file.
pub(super) fn join(segments: &[SegmentHash]) -> Option<Digest> {
    if let [SegmentHash::Whole(digest)] = segments {
        return Some(*digest);
    }
    let subtrees: Option<Vec<ChainingValue>> = segments
        .iter()
        .map(|segment| match segment {
            SegmentHash::Whole(_) => None,
            SegmentHash::Subtree(value) => Some(*value),
        })
        .collect();
    let subtrees = subtrees.filter(|subtrees| subtrees.len() > 1)?;
    let (left, right) = subtrees.split_at(left_part(subtrees.len()));
    Some(merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).into())
}

fn merged(subtrees: &[ChainingValue]) -> ChainingValue {
    match subtrees {
        [one] => *one,
        more => {
            let (left, right) = more.split_at(left_part(more.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// The largest power of two below `count`: a left subtree is full.
fn left_part(count: usize) -> usize {
    count.next_power_of_two() / 2
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn segments_give_the_hash_of_the_whole() {
        // One period of bytes is enough to tell offsets apart, as a period is no divisor of a segment.
        let period: Vec<u8> = (0..251).collect();
        let mut bytes = Vec::new();
        for extra in [0, 1, SEGMENT_BYTES as usize - 1, SEGMENT_BYTES as usize, 3 * SEGMENT_BYTES as usize + 77] {
            bytes.extend(period.iter().copied().cycle().skip(bytes.len() % 251).take(extra));
            let file_bytes = bytes.len() as u64;
            let hashes: Vec<SegmentHash> = (0..segments(file_bytes))
                .map(|segment| {
                    let (start, length) = range(file_bytes, segment);
                    let mut hasher = SegmentHasher::new(file_bytes, segment);
                    bytes[start as usize..(start + length) as usize].chunks(1 << 20).for_each(|c| hasher.update(c));
                    hasher.finish()
                })
                .collect();
            assert_eq!(join(&hashes).unwrap(), Digest::of(&bytes), "{} bytes", bytes.len());
        }
        assert!(join(&[]).is_none());
    }
}
