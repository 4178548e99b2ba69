//! Quantized tensors as checkpoints store them: names, number types and shapes of codes and scales.
//!
//! The table is at [`StoredLayout`]. Scale shapes follow from the format's own layout, so a last block that is cut
//! short has a scale too (but compressed-tensors has no place for a last INT4 group that is cut short).

use std::borrow::Cow;

use safetensors::Dtype;

use super::error::CheckpointError;
use crate::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, Operand, QuantizeSpec, QuantizedParts, QuantizedTensor,
    ScaleScope, builtin_rule,
};
use crate::model::huggingface::StoredLayout;

/// One stored tensor of a quantized parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredPart {
    /// What stands in place of `.weight` in the name.
    pub(crate) suffix: &'static str,
    pub(crate) content: Content,
    /// Number types that are read; the first one is written.
    pub(crate) dtypes: &'static [Dtype],
    pub(crate) shape: Vec<usize>,
}

/// What a stored tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Codes as they are held.
    Codes,
    /// INT4 codes plus 8, eight per 32-bit word, the first in the lowest bits.
    OffsetWords,
    /// Scales: block scales, or the one outer scale of a format without block scales.
    Scales,
    /// The outer scale beside block scales.
    OuterScale,
    /// The scale by which an engine quantizes the activations.
    InputScale,
    /// Rows and columns, for codes whose own shape does not tell them.
    Extents,
}

/// Everything that is stored for a `[rows, cols]` weight.
pub(crate) struct StoredParts {
    pub(crate) codes: StoredPart,
    pub(crate) scales: StoredPart,
    pub(crate) outer: Option<StoredPart>,
    /// The activation scale that engines load beside the weight; this library scales activations per token.
    pub(crate) input: Option<StoredPart>,
    pub(crate) extents: Option<StoredPart>,
}

/// The arithmetic of a built-in format.
pub(crate) fn rule(format: &FormatId) -> Result<&'static dyn FormatRule, FormatError> {
    builtin_rule(format).ok_or_else(|| FormatError::UnknownFormat { format: format.clone(), known: Vec::new() })
}

/// What is stored for a `[rows, cols]` weight.
pub(crate) fn stored_parts(layout: StoredLayout, rows: usize, cols: usize) -> Result<StoredParts, FormatError> {
    let format = layout.format();
    let sizes = rule(&format)?.layout(rows, cols, &QuantizeSpec::weight(format.clone()))?;
    let part = |suffix, content, dtypes, shape| StoredPart { suffix, content, dtypes, shape };
    let codes = |dtypes| part(".weight", Content::Codes, dtypes, vec![rows, cols]);
    let scales = |suffix, dtypes: &'static [Dtype]| {
        let shape = if sizes.outer_len == 1 && sizes.scale_cols == 0 {
            vec![1]
        } else {
            vec![sizes.scale_rows, sizes.scale_cols]
        };
        part(suffix, Content::Scales, dtypes, shape)
    };
    let parts = |codes, scales| StoredParts { codes, scales, outer: None, input: None, extents: None };
    Ok(match layout {
        StoredLayout::Fp8Block { pow2_scales: false } => {
            parts(codes(&[Dtype::F8_E4M3]), scales(".weight_scale_inv", &[Dtype::F32, Dtype::BF16]))
        }
        StoredLayout::Fp8Block { pow2_scales: true } => {
            parts(codes(&[Dtype::F8_E4M3]), scales(".weight_scale_inv", &[Dtype::F32, Dtype::BF16, Dtype::F8_E8M0]))
        }
        StoredLayout::Mxfp8 => {
            parts(codes(&[Dtype::F8_E4M3]), scales(".weight_scale_inv", &[Dtype::U8, Dtype::F8_E8M0]))
        }
        StoredLayout::Mxfp8ModelOpt => {
            parts(codes(&[Dtype::F8_E4M3]), scales(".weight_scale", &[Dtype::U8, Dtype::F8_E8M0]))
        }
        StoredLayout::Nvfp4 => StoredParts {
            outer: Some(part(".weight_scale_2", Content::OuterScale, &[Dtype::F32], Vec::new())),
            input: Some(part(INPUT_SCALE, Content::InputScale, &[Dtype::F32], Vec::new())),
            ..parts(
                part(".weight", Content::Codes, &[Dtype::U8], vec![rows, cols / 2]),
                scales(".weight_scale", &[Dtype::F8_E4M3]),
            )
        },
        StoredLayout::Fp8Channel | StoredLayout::Fp8Tensor => {
            parts(codes(&[Dtype::F8_E4M3]), scales(".weight_scale", FLOATS))
        }
        StoredLayout::Int8Channel => parts(codes(&[Dtype::I8]), scales(".weight_scale", FLOATS)),
        StoredLayout::Int4Group32 | StoredLayout::Int4Group64 | StoredLayout::Int4Group128 => {
            if !cols.is_multiple_of(layout.int4_group().unwrap_or(1)) {
                return Err(FormatError::PartialGroup { format, rows, cols });
            }
            StoredParts {
                extents: Some(part(".weight_shape", Content::Extents, &[Dtype::I64], vec![2])),
                ..parts(
                    part(".weight_packed", Content::OffsetWords, &[Dtype::I32], vec![rows, cols / 8]),
                    scales(".weight_scale", FLOATS),
                )
            }
        }
    })
}

/// Puts stored codes and scales together, unchanged, as a weight of `spec`: of the layout's own format, or of a variant
/// that the layout holds.
pub(crate) fn assemble(
    layout: StoredLayout,
    spec: &QuantizeSpec,
    name: &str,
    [rows, cols]: [usize; 2],
    mut codes: Vec<u8>,
    scales: BlockScales,
    outer: Option<Vec<f32>>,
) -> Result<QuantizedTensor, FormatError> {
    let format = &spec.format;
    if StoredLayout::of(format) != Some(layout) {
        return Err(FormatError::FormatMismatch { rule: layout.format(), requested: format.clone() });
    }
    if layout.int4_group().is_some() {
        flip_offset(&mut codes);
    }
    let (scales, outer) = match (layout, scales) {
        (StoredLayout::Fp8Tensor, BlockScales::F32(scale)) => (BlockScales::F32(Vec::new()), scale),
        (_, scales) => (scales, outer.unwrap_or_default()),
    };
    let parts = QuantizedParts {
        format: format.clone(),
        operand: Operand::Weight,
        axis: Axis::Row,
        scope: ScaleScope::Tensor,
        partition: spec.partition,
        rows,
        cols,
        codes,
        scales,
        outer,
        amax: Vec::new(),
    };
    QuantizedTensor::from_parts(rule(format)?, Some(name), parts)
}

/// The bytes to store for one part of a tensor, `input_scale` being its activation scale.
pub(crate) fn part_bytes<'t>(tensor: &'t QuantizedTensor, part: &StoredPart, input_scale: f32) -> Cow<'t, [u8]> {
    let little_endian = |values: &[f32]| Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    match (part.content, tensor.scales()) {
        (Content::Codes, _) => Cow::Borrowed(tensor.codes()),
        (Content::OffsetWords, _) => {
            let mut codes = tensor.codes().to_vec();
            flip_offset(&mut codes);
            Cow::Owned(codes)
        }
        (Content::OuterScale, _) => little_endian(tensor.outer()),
        (Content::InputScale | Content::Extents, _) => {
            Cow::Owned(constant_bytes(part, [tensor.rows(), tensor.cols()], input_scale).unwrap_or_default())
        }
        (Content::Scales, BlockScales::F32(values)) if values.is_empty() => little_endian(tensor.outer()),
        (Content::Scales, BlockScales::F32(values)) => little_endian(values),
        (Content::Scales, BlockScales::U8(bytes)) => Cow::Borrowed(bytes),
    }
}

/// The bytes of a part that holds none of the values of its `[rows, cols]` weight; `None` for a part that does.
pub(crate) fn constant_bytes(part: &StoredPart, [rows, cols]: [usize; 2], input_scale: f32) -> Option<Vec<u8>> {
    match part.content {
        Content::InputScale => Some(input_scale.to_le_bytes().to_vec()),
        Content::Extents => Some([rows, cols].iter().flat_map(|size| (*size as u64).to_le_bytes()).collect()),
        Content::Codes | Content::OffsetWords | Content::Scales | Content::OuterScale => None,
    }
}

/// The layout that holds a tensor as it is.
pub(super) fn layout_of(name: &str, tensor: &QuantizedTensor) -> Result<StoredLayout, CheckpointError> {
    layout_of_spec(name, &tensor.spec(), [tensor.rows(), tensor.cols()])
}

/// The layout that holds a `[rows, cols]` tensor quantized by `spec`.
pub(crate) fn layout_of_spec(
    name: &str,
    spec: &QuantizeSpec,
    [rows, cols]: [usize; 2],
) -> Result<StoredLayout, CheckpointError> {
    let refused = |why| CheckpointError::NoLayout { tensor: name.to_owned(), format: spec.format.to_string(), why };
    if (spec.operand, spec.axis) != (Operand::Weight, Axis::Row) {
        return Err(refused("but as a row-wise weight"));
    }
    let layout = StoredLayout::of(&spec.format)
        .ok_or_else(|| refused(StoredLayout::refusal(&spec.format).unwrap_or("at all")))?;
    let has_outer = matches!(layout, StoredLayout::Nvfp4 | StoredLayout::Fp8Tensor);
    if has_outer && spec.scope != ScaleScope::Tensor {
        return Err(refused("with one outer scale per row"));
    }
    if spec.partition.shard_index().is_some() {
        return Err(refused("as one shard of it"));
    }
    if has_outer && !spec.partition.is_whole() {
        return Err(refused("with one outer scale per shard"));
    }
    // The codes and scales of a cut tensor are those of the whole, but for lines that are cut.
    let sizes = |spec: &QuantizeSpec| rule(&spec.format).and_then(|rule| rule.layout(rows, cols, spec));
    let whole = sizes(&QuantizeSpec::weight(spec.format.clone()));
    if let (Ok(whole), Ok(held)) = (whole, sizes(spec))
        && whole != held
    {
        return Err(refused("with scales of their own for parts of a row"));
    }
    Ok(layout)
}

/// Two's complement to offset binary and back, two codes per byte: -8 is 0, 7 is 15.
pub(crate) fn flip_offset(codes: &mut [u8]) {
    codes.iter_mut().for_each(|byte| *byte ^= 0x88);
}

/// What stands in place of `.weight` in the name of an activation scale.
pub(super) const INPUT_SCALE: &str = ".input_scale";

const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::BF16, Dtype::F16];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Source, SourceDtype, builtin_rules};

    /// Every variant that a layout holds comes back from the stored bytes under its own name, digest included.
    #[test]
    fn stored_bytes_restore_every_variant_by_name() {
        let values: Vec<f32> = (0..64 * 256).map(|index| ((index * 7919) % 1013 - 506) as f32 * 0.003).collect();
        let source = Source::new(&values, 64, 256, SourceDtype::F32, None).unwrap();
        for rule in builtin_rules() {
            let tensor = rule.quantize(&source, &QuantizeSpec::weight(rule.id())).unwrap();
            let layout = match layout_of("w", &tensor) {
                Ok(layout) => layout,
                Err(error) => {
                    assert!(error.to_string().contains("rotated"), "{error}");
                    continue;
                }
            };
            let parts = stored_parts(layout, 64, 256).unwrap();
            let bytes = |part: &StoredPart| part_bytes(&tensor, part, 1.0).into_owned();
            let read = |part: &StoredPart| {
                super::super::scales::decode(layout, part.dtypes[0], bytes(part), tensor.scale_cols().max(1)).unwrap()
            };
            let outer = parts.outer.as_ref().map(|part| read(part).as_f32().unwrap().to_vec());
            let codes = bytes(&parts.codes);
            let spec = QuantizeSpec::weight(rule.id());
            let back = assemble(layout, &spec, "w", [64, 256], codes, read(&parts.scales), outer).unwrap();
            assert_eq!(back.digest(), tensor.digest(), "{}", rule.id());
        }
    }

    #[test]
    fn a_format_of_another_layout_is_not_restored() {
        let error = assemble(
            StoredLayout::Mxfp8,
            &QuantizeSpec::weight(FormatId::fp8_block()),
            "w",
            [1, 32],
            vec![0; 32],
            BlockScales::U8(vec![127]),
            None,
        );
        assert!(matches!(error, Err(FormatError::FormatMismatch { .. })));
    }

    #[test]
    fn int4_codes_are_stored_plus_8_the_first_in_the_lowest_bits() {
        let values = [-8.0, -1.0, 0.0, 7.0].repeat(8);
        let source = Source::new(&values, 1, 32, SourceDtype::F32, None).unwrap();
        let layout = StoredLayout::Int4Group32;
        let mut parts = rule(&layout.format())
            .unwrap()
            .quantize(&source, &QuantizeSpec::weight(layout.format()))
            .unwrap()
            .to_parts();
        parts.codes = [0xF8, 0x70].repeat(8);
        let tensor = QuantizedTensor::from_parts(rule(&layout.format()).unwrap(), None, parts).unwrap();
        let stored = stored_parts(layout, 1, 32).unwrap();
        // Codes -8, -1, 0, 7, -8, ..: 0, 7, 8, 15, 0, ..
        assert_eq!(part_bytes(&tensor, &stored.codes, 1.0)[..4], 0xF870_F870_u32.to_le_bytes());
        assert_eq!(
            part_bytes(&tensor, &stored.extents.unwrap(), 1.0)[..],
            [1, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_last_group_that_is_cut_short_has_no_layout() {
        assert!(matches!(stored_parts(StoredLayout::Int4Group128, 4, 192), Err(FormatError::PartialGroup { .. })));
    }
}
