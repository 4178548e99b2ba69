//! Bands of rows: which built-in formats treat them apart, and the digest of a tensor that never is in one piece.
//!
//! Every part of a row-wise tensor is row-major, so the parts of the whole are those of its bands, one after the other.

use super::canonical::hasher;
use super::nvfp4::Rounding;
use super::{
    Axis, BlockScales, Nvfp4, Operand, QuantizeSpec, QuantizedTensor, ScaleScope, TensorLayout, builtin_rule,
    fp8_block, mxfp8,
};
use crate::digest::Digest;

/// How many rows a built-in format treats as one piece: bands of a multiple of so many rows (the last may be shorter),
/// each quantized by itself, are the whole. `None`: the whole tensor is one piece, as it is for every format of a user.
#[must_use]
pub fn band_rows(spec: &QuantizeSpec) -> Option<usize> {
    if spec.axis == Axis::Column || builtin_rule(&spec.format).is_none() {
        return None;
    }
    if let Some(rule) = Nvfp4::of(&spec.format) {
        // Random bits go by line number, which a band would count from its own start.
        let by_row = !matches!(rule.rounding(), Rounding::Stochastic { .. }) && spec.partition.is_whole();
        return (by_row && spec.scope == ScaleScope::Row).then_some(1);
    }
    match (spec.format.family(), spec.operand, spec.scope) {
        ("mxfp8", Operand::Weight, _) => Some(mxfp8::BLOCK),
        ("fp8-block", Operand::Weight, _) => Some(fp8_block::BLOCK),
        ("mxfp8" | "fp8-block" | "fp8-channel" | "int8-channel" | "int4-group", ..) => Some(1),
        ("fp8-tensor", _, ScaleScope::Row) => Some(1),
        _ => None,
    }
}

/// The digest of a tensor without outer scales, from its bands.
pub(crate) struct BandedDigest {
    hasher: blake3::Hasher,
    /// They follow the last code.
    scales: Vec<u8>,
}

impl BandedDigest {
    /// Of a tensor of `shape` (rows, columns) and `spec`, whose parts have the sizes of `layout`.
    pub(crate) fn new(spec: &QuantizeSpec, shape: [usize; 2], layout: &TensorLayout) -> Self {
        BandedDigest { hasher: hasher(spec, shape, layout), scales: Vec::new() }
    }

    /// Adds the next band.
    pub(crate) fn add(&mut self, band: &QuantizedTensor) {
        self.hasher.update(band.codes());
        match band.scales() {
            BlockScales::U8(scales) => self.scales.extend_from_slice(scales),
            BlockScales::F32(scales) => self.scales.extend(scales.iter().flat_map(|scale| scale.to_le_bytes())),
        }
    }

    /// The digest of the whole, once every band was added.
    pub(crate) fn finish(mut self) -> Digest {
        self.hasher.update(&self.scales);
        self.hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Source, SourceDtype, builtin_rules};

    /// Every built-in format, in bands of every size that it allows, has the digest of the whole.
    #[test]
    fn bands_have_the_digest_of_the_whole() {
        let (rows, cols) = (300, 96);
        let values: Vec<f32> = (0..rows * cols).map(|index| ((index * 7919) % 1013) as f32 * 0.003 - 1.5).collect();
        let mut banded = 0;
        for rule in builtin_rules() {
            let spec = QuantizeSpec::weight(rule.id());
            let source = Source::new(&values, rows, cols, SourceDtype::F32, None).unwrap();
            let whole = rule.quantize(&source, &spec).unwrap();
            let Some(piece) = band_rows(&spec) else { continue };
            assert!(whole.outer().is_empty(), "{}", rule.id());
            for band in [piece, 2 * piece, 150_usize.next_multiple_of(piece), 512] {
                let mut digest = BandedDigest::new(&spec, [rows, cols], whole.layout());
                let mut codes = Vec::new();
                for first in (0..rows).step_by(band) {
                    let part = rule.quantize(&source.row_range(first..rows.min(first + band)), &spec).unwrap();
                    codes.extend_from_slice(part.codes());
                    digest.add(&part);
                }
                assert!(codes == whole.codes() && digest.finish() == whole.digest(), "{} by {band}", rule.id());
            }
            banded += 1;
        }
        assert!(banded > 10);
    }
}
