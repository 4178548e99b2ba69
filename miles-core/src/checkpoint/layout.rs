//! Quantized tensors as checkpoints store them: names, number types and shapes of codes and scales.
//!
//! The table is at [`StoredLayout`]. Scale shapes follow from the format's own layout, so a last block that is cut
//! short has a scale too.

use std::borrow::Cow;

use safetensors::Dtype;
use serde_json::{Value, json};

use super::error::CheckpointError;
use crate::format::{
    Axis, BlockScales, FormatError, FormatRule, Operand, Partition, QuantizeSpec, QuantizedParts, QuantizedTensor,
    ScaleScope, builtin_rule,
};
use crate::model::huggingface::StoredLayout;

/// One stored tensor of a quantized parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredPart {
    /// What stands in place of `.weight` in the name.
    pub(super) suffix: &'static str,
    /// Number types that are read; the first one is written.
    pub(super) dtypes: &'static [Dtype],
    pub(super) shape: Vec<usize>,
}

/// Codes, block scales and (NVFP4) outer scale of a `[rows, cols]` weight.
pub(super) struct StoredParts {
    pub(super) codes: StoredPart,
    pub(super) scales: StoredPart,
    pub(super) outer: Option<StoredPart>,
    /// The activation scale that engines load beside the weight; this library scales activations per token.
    pub(super) input: Option<StoredPart>,
}

/// The arithmetic of a layout's format.
pub(super) fn rule(layout: StoredLayout) -> Result<&'static dyn FormatRule, FormatError> {
    let format = layout.format();
    builtin_rule(&format).ok_or(FormatError::UnknownFormat { format, known: Vec::new() })
}

/// What is stored for a `[rows, cols]` weight.
pub(super) fn stored_parts(layout: StoredLayout, rows: usize, cols: usize) -> Result<StoredParts, FormatError> {
    let sizes = rule(layout)?.layout(rows, cols, &QuantizeSpec::weight(layout.format()))?;
    let part = |suffix, dtypes, shape| StoredPart { suffix, dtypes, shape };
    let scale_shape = vec![sizes.scale_rows, sizes.scale_cols];
    let eight_bit = part(".weight", [Dtype::F8_E4M3].as_slice(), vec![rows, cols]);
    Ok(match layout {
        StoredLayout::Fp8Block { .. } => StoredParts {
            codes: eight_bit,
            scales: part(".weight_scale_inv", &[Dtype::F32, Dtype::BF16], scale_shape),
            outer: None,
            input: None,
        },
        StoredLayout::Mxfp8 => StoredParts {
            codes: eight_bit,
            scales: part(".weight_scale_inv", &[Dtype::U8, Dtype::F8_E8M0], scale_shape),
            outer: None,
            input: None,
        },
        StoredLayout::Nvfp4 => StoredParts {
            codes: part(".weight", &[Dtype::U8], vec![rows, cols / 2]),
            scales: part(".weight_scale", &[Dtype::F8_E4M3], scale_shape),
            outer: Some(part(".weight_scale_2", &[Dtype::F32], Vec::new())),
            input: Some(part(".input_scale", &[Dtype::F32], Vec::new())),
        },
    })
}

/// Puts stored bytes together, unchanged.
pub(super) fn assemble(
    layout: StoredLayout,
    name: &str,
    [rows, cols]: [usize; 2],
    codes: Vec<u8>,
    (scale_dtype, scales): (Dtype, Vec<u8>),
    outer: Option<Vec<u8>>,
) -> Result<QuantizedTensor, FormatError> {
    let scales = match scale_dtype {
        Dtype::F32 => BlockScales::F32(floats(&scales)),
        Dtype::BF16 => {
            BlockScales::F32(scales.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect())
        }
        _ => BlockScales::U8(scales),
    };
    let parts = QuantizedParts {
        format: layout.format(),
        operand: Operand::Weight,
        axis: Axis::Row,
        scope: ScaleScope::Tensor,
        partition: Partition::WHOLE,
        rows,
        cols,
        codes,
        scales,
        outer: outer.map(|bytes| floats(&bytes)).unwrap_or_default(),
        amax: Vec::new(),
    };
    QuantizedTensor::from_parts(rule(layout)?, Some(name), parts)
}

/// The bytes to store for one part of a tensor.
pub(super) fn part_bytes<'t>(tensor: &'t QuantizedTensor, part: &StoredPart) -> Cow<'t, [u8]> {
    let little_endian = |values: &[f32]| Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    match (part.suffix, tensor.scales()) {
        (".weight", _) => Cow::Borrowed(tensor.codes()),
        (".weight_scale_2", _) => little_endian(tensor.outer()),
        (".input_scale", _) => little_endian(&[1.0]),
        (_, BlockScales::U8(bytes)) => Cow::Borrowed(bytes),
        (_, BlockScales::F32(values)) => little_endian(values),
    }
}

/// The layout that holds a tensor as it is.
pub(super) fn layout_of(name: &str, tensor: &QuantizedTensor) -> Result<StoredLayout, CheckpointError> {
    let refused = |why| CheckpointError::NoLayout { tensor: name.to_owned(), format: tensor.format().to_string(), why };
    if (tensor.operand(), tensor.axis()) != (Operand::Weight, Axis::Row) {
        return Err(refused("but as a row-wise weight"));
    }
    let layout = StoredLayout::of(tensor.format()).ok_or_else(|| refused("at all"))?;
    if layout == StoredLayout::Nvfp4 && tensor.scope() != ScaleScope::Tensor {
        return Err(refused("with one outer scale per row"));
    }
    // Without outer scales the codes and scales of a cut tensor are those of the whole.
    if tensor.partition().shard_index().is_some() {
        return Err(refused("as one shard of it"));
    }
    if layout == StoredLayout::Nvfp4 && !tensor.partition().is_whole() {
        return Err(refused("with one outer scale per shard"));
    }
    Ok(layout)
}

/// `quantization_config` of `config.json`; `kept` are the modules that stay in high precision.
pub(super) fn quantization_config(layout: StoredLayout, kept: &[String]) -> Value {
    match layout {
        StoredLayout::Fp8Block { pow2_scales } => {
            let mut config = json!({
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": kept,
            });
            if pow2_scales {
                config["scale_fmt"] = json!("ue8m0");
            }
            config
        }
        StoredLayout::Mxfp8 => json!({
            "quant_method": "mxfp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [1, 32],
            "scale_fmt": "ue8m0",
            "modules_to_not_convert": kept,
        }),
        StoredLayout::Nvfp4 => {
            let operand = json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 });
            json!({
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "group_size": 16,
                "config_groups": {
                    "group_0": { "targets": ["Linear"], "weights": operand, "input_activations": operand },
                },
                "ignore": kept,
            })
        }
    }
}

/// `hf_quant_config.json`, which ModelOpt checkpoints have beside `config.json`.
pub(super) fn hf_quant_config(kept: &[String]) -> Value {
    json!({
        "producer": { "name": "modelopt" },
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": null,
            "group_size": 16,
            "exclude_modules": kept,
        },
    })
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
