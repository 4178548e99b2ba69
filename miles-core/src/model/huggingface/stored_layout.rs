//! [`StoredLayout`]: how a checkpoint stores quantized tensors, and which formats it can hold.

use crate::format::fp8_block::{Fp8Block, ScaleRounding};
use crate::format::{FormatId, FormatRule, Nvfp4, builtin_rule};

/// How a checkpoint stores its quantized tensors. Tensors that it keeps in high precision are plain tensors.
///
/// | layout | codes | block scales | outer scale |
/// |---|---|---|---|
/// | `Fp8Block` | `weight` F8_E4M3 `[n, k]` | `weight_scale_inv` F32 `[n/128, k/128]` | |
/// | `Mxfp8` | `weight` F8_E4M3 `[n, k]` | `weight_scale_inv` U8 (E8M0) `[n, k/32]` | |
/// | `Mxfp8ModelOpt` | `weight` F8_E4M3 `[n, k]` | `weight_scale` U8 (E8M0) `[n, k/32]` | |
/// | `Nvfp4` | `weight` U8 `[n, k/2]` | `weight_scale` F8_E4M3 `[n, k/16]` | `weight_scale_2` F32 |
/// | `Fp8Channel` | `weight` F8_E4M3 `[n, k]` | `weight_scale` F32 `[n, 1]` | |
/// | `Fp8Tensor` | `weight` F8_E4M3 `[n, k]` | | `weight_scale` F32 `[1]` |
/// | `Int8Channel` | `weight` I8 `[n, k]` | `weight_scale` F32 `[n, 1]` | |
/// | `Int4Group..` | `weight_packed` I32 `[n, k/8]`, `weight_shape` I64 `[2]` | `weight_scale` F32 `[n, k/group]` | |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredLayout {
    /// `quant_method: fp8` with 128x128 blocks (DeepSeek-V3).
    Fp8Block {
        /// Whether every scale is a power of two (`scale_fmt: ue8m0`).
        pow2_scales: bool,
    },
    /// `quant_method: mxfp8` (SGLang, transformers).
    Mxfp8,
    /// `quant_method: modelopt` with `quant_algo: MXFP8` (vLLM): the parts of `Mxfp8` under another name.
    Mxfp8ModelOpt,
    /// `quant_method: modelopt` with `quant_algo: NVFP4`.
    Nvfp4,
    /// `quant_method: compressed-tensors`, `float-quantized`, one scale per output channel.
    Fp8Channel,
    /// `quant_method: compressed-tensors`, `float-quantized`, one scale per tensor.
    Fp8Tensor,
    /// `quant_method: compressed-tensors`, `int-quantized`, one scale per output channel.
    Int8Channel,
    /// `quant_method: compressed-tensors`, `pack-quantized` INT4, groups of 32.
    Int4Group32,
    /// `quant_method: compressed-tensors`, `pack-quantized` INT4, groups of 64.
    Int4Group64,
    /// `quant_method: compressed-tensors`, `pack-quantized` INT4, groups of 128.
    Int4Group128,
}

impl StoredLayout {
    /// Every layout.
    pub const ALL: [Self; 11] = [
        Self::Fp8Block { pow2_scales: false },
        Self::Fp8Block { pow2_scales: true },
        Self::Mxfp8,
        Self::Mxfp8ModelOpt,
        Self::Nvfp4,
        Self::Fp8Channel,
        Self::Fp8Tensor,
        Self::Int8Channel,
        Self::Int4Group32,
        Self::Int4Group64,
        Self::Int4Group128,
    ];

    /// The layout that holds weights of a format, if there is one: of two that differ in names alone, the
    /// [`canonical`](Self::canonical) one.
    ///
    /// It holds every variant whose stored codes and scales mean, value for value, what those of
    /// [`format`](Self::format) mean: a variant that chooses scales or codes otherwise, but not one whose codes stand
    /// for rotated values. What reads a directory sees the layout and not the variant, unless something beside the
    /// weights names it.
    #[must_use]
    pub fn of(format: &FormatId) -> Option<Self> {
        if let Some(rule) = Nvfp4::of(format) {
            return rule.hadamard().is_none().then_some(Self::Nvfp4);
        }
        if let Some(rule) = FP8_BLOCK.iter().find(|rule| rule.id() == *format) {
            return Some(Self::Fp8Block { pow2_scales: rule.rounding() == ScaleRounding::PowerOfTwo });
        }
        if format.family() == FormatId::mxfp8().family() {
            return builtin_rule(format).map(|_| Self::Mxfp8);
        }
        Self::ALL.into_iter().find(|layout| layout.format() == *format)
    }

    /// What keeps a format out of every layout; follows its name in a sentence. `None` when a layout holds it.
    pub(crate) fn refusal(format: &FormatId) -> Option<&'static str> {
        if Self::of(format).is_some() {
            return None;
        }
        Some(match Nvfp4::of(format) {
            Some(_) => "(its codes stand for rotated values, which no engine rotates back)",
            None => "at all",
        })
    }

    /// The format that tensors of this layout have unless something beside them names a variant.
    #[must_use]
    pub fn format(self) -> FormatId {
        match self {
            Self::Fp8Block { pow2_scales: false } => FormatId::fp8_block(),
            Self::Fp8Block { pow2_scales: true } => FormatId::fp8_block_pow2(),
            Self::Mxfp8 | Self::Mxfp8ModelOpt => FormatId::mxfp8(),
            Self::Nvfp4 => FormatId::nvfp4(),
            Self::Fp8Channel => FormatId::from_static("fp8-channel"),
            Self::Fp8Tensor => FormatId::from_static("fp8-tensor"),
            Self::Int8Channel => FormatId::from_static("int8-channel"),
            Self::Int4Group32 => FormatId::from_static("int4-group/32"),
            Self::Int4Group64 => FormatId::from_static("int4-group/64"),
            Self::Int4Group128 => FormatId::from_static("int4-group/128"),
        }
    }

    /// Elements that one scale covers, where the layout packs INT4 in groups.
    #[must_use]
    pub fn int4_group(self) -> Option<usize> {
        match self {
            Self::Int4Group32 => Some(32),
            Self::Int4Group64 => Some(64),
            Self::Int4Group128 => Some(128),
            _ => None,
        }
    }

    /// The layout whose parts these are, name aside: what [`of`](Self::of) gives for the format.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::Mxfp8ModelOpt => Self::Mxfp8,
            other => other,
        }
    }

    /// `quant_algo` and elements per block scale of a layout that ModelOpt describes.
    pub(crate) fn modelopt(self) -> Option<(&'static str, usize)> {
        match self {
            Self::Nvfp4 => Some(("NVFP4", 16)),
            Self::Mxfp8ModelOpt => Some(("MXFP8", 32)),
            _ => None,
        }
    }

    /// Whether codes are E4M3, which has NaN codes.
    pub(crate) fn has_e4m3_codes(self) -> bool {
        matches!(self.canonical(), Self::Fp8Block { .. } | Self::Mxfp8 | Self::Fp8Channel | Self::Fp8Tensor)
    }
}

const FP8_BLOCK: [Fp8Block; 8] = [
    Fp8Block::FP32_SCALES,
    Fp8Block::POW2_SCALES,
    Fp8Block::DEEPGEMM,
    Fp8Block::DEEPGEMM_UE8M0,
    Fp8Block::SGLANG,
    Fp8Block::SGLANG_DIVIDE,
    Fp8Block::DEEPSEEK,
    Fp8Block::DEEPSEEK_UE8M0,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockScales, QuantizeSpec, QuantizedTensor, Source, SourceDtype, builtin_rules};

    #[test]
    fn every_layout_holds_its_own_format_and_every_built_in_format_but_rotated_ones_has_a_layout() {
        for layout in StoredLayout::ALL {
            assert_eq!(StoredLayout::of(&layout.format()), Some(layout.canonical()));
            assert!(builtin_rule(&layout.format()).is_some());
        }
        for rule in builtin_rules() {
            let rotated = rule.id().as_str().contains("hadamard");
            assert_eq!(StoredLayout::of(&rule.id()).is_none(), rotated, "{}", rule.id());
            assert_eq!(StoredLayout::refusal(&rule.id()).is_some(), rotated, "{}", rule.id());
        }
        assert_eq!(StoredLayout::of(&FormatId::from_static("mxfp8/own")), None);
        assert_eq!(StoredLayout::of(&FormatId::from_static("mine")), None);
    }

    /// What makes a variant storable: parts taken for the layout's own format decode to the same bits.
    #[test]
    fn parts_of_a_variant_mean_the_same_under_the_format_of_the_layout() {
        let values: Vec<f32> =
            (0..64 * 256).map(|index: i32| (index.wrapping_mul(7919) % 1013 - 506) as f32 * 0.003).collect();
        let source = Source::new(&values, 64, 256, SourceDtype::F32, None).unwrap();
        for rule in builtin_rules() {
            let Some(layout) = StoredLayout::of(&rule.id()) else { continue };
            let tensor = rule.quantize(&source, &QuantizeSpec::weight(rule.id())).unwrap();
            // A file does not hold the amax.
            let mut parts = tensor.to_parts();
            parts.amax.clear();
            let stored = QuantizedTensor::from_parts(rule, None, parts.clone()).unwrap();
            parts.format = layout.format();
            let own = builtin_rule(&layout.format()).unwrap();
            let read = QuantizedTensor::from_parts(own, None, parts).unwrap();
            let bits = |tensor: &QuantizedTensor| -> Vec<u32> {
                tensor.dequantize_f32().unwrap().into_iter().map(f32::to_bits).collect()
            };
            assert!(bits(&stored) == bits(&read), "{}", rule.id());
            if layout == (StoredLayout::Fp8Block { pow2_scales: true }) {
                let BlockScales::F32(scales) = tensor.scales() else { panic!() };
                assert!(scales.iter().all(|scale| scale.to_bits().trailing_zeros() >= 23), "{}", rule.id());
            }
        }
    }
}
