//! What a written directory says about its codes: `quantization_config` and, for ModelOpt, `hf_quant_config.json`.

use serde_json::{Value, json};

use crate::model::huggingface::StoredLayout;

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
        StoredLayout::Fp8Channel => compressed_tensors("float-quantized", &float8("channel"), &token("float"), kept),
        StoredLayout::Fp8Tensor => compressed_tensors("float-quantized", &float8("tensor"), &token("float"), kept),
        StoredLayout::Int8Channel => {
            let weights = arguments(8, "int", "channel", None, false);
            compressed_tensors("int-quantized", &weights, &token("int"), kept)
        }
        StoredLayout::Int4Group32 | StoredLayout::Int4Group64 | StoredLayout::Int4Group128 => {
            let weights = arguments(4, "int", "group", layout.int4_group(), false);
            compressed_tensors("pack-quantized", &weights, &Value::Null, kept)
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

fn compressed_tensors(format: &str, weights: &Value, activations: &Value, kept: &[String]) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": format,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
                "output_activations": null,
            },
        },
        "kv_cache_scheme": null,
        "global_compression_ratio": null,
        "ignore": kept,
    })
}

fn float8(strategy: &str) -> Value {
    arguments(8, "float", strategy, None, false)
}

/// Activations scaled per token while running.
fn token(kind: &str) -> Value {
    arguments(8, kind, "token", None, true)
}

fn arguments(bits: u8, kind: &str, strategy: &str, group: Option<usize>, dynamic: bool) -> Value {
    json!({
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": group,
        "block_structure": null,
        "symmetric": true,
        "dynamic": dynamic,
        "actorder": null,
        "observer": null,
    })
}
