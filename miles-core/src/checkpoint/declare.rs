//! What a written directory says about its codes: `quantization_config` and, for ModelOpt, `hf_quant_config.json`.

use serde_json::{Value, json};

use crate::model::huggingface::StoredLayout;

/// `quantization_config` of `config.json`; `kept` are the modules that stay in high precision.
///
/// Each engine looks for the list under a key of its own and reads its entries in its own way: names of modules, which
/// stand for everything in them, `*` for any characters (ModelOpt), or regular expressions behind `re:`
/// (compressed-tensors). So whole layers are listed in the way of the layout's readers too.
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
            // vLLM knows this key alone.
            "ignored_layers": kept,
        }),
        StoredLayout::Nvfp4 => modelopt(layout, 4, false, kept),
        StoredLayout::Mxfp8ModelOpt => modelopt(layout, 8, true, kept),
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

/// `hf_quant_config.json`, which ModelOpt checkpoints have beside `config.json`; `None` for layouts of others.
pub(super) fn hf_quant_config(layout: StoredLayout, kept: &[String]) -> Option<Value> {
    let (algorithm, group_size) = layout.modelopt()?;
    Some(json!({
        "producer": { "name": "modelopt" },
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": null,
            "group_size": group_size,
            "exclude_modules": with_whole_layers(kept, |layer| format!("{layer}.*")),
        },
    }))
}

fn modelopt(layout: StoredLayout, bits: u8, dynamic_activations: bool, kept: &[String]) -> Value {
    let (algorithm, group_size) = layout.modelopt().unwrap_or_default();
    let operand =
        |dynamic: bool| json!({ "dynamic": dynamic, "num_bits": bits, "type": "float", "group_size": group_size });
    json!({
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "group_size": group_size,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": operand(false),
                "input_activations": operand(dynamic_activations),
            },
        },
        "ignore": with_whole_layers(kept, |layer| format!("{layer}.*")),
    })
}

/// The list with a pattern behind every entry that stands for a whole layer.
fn with_whole_layers(kept: &[String], pattern: impl Fn(&str) -> String) -> Vec<String> {
    let is_layer =
        |entry: &str| entry.strip_prefix("model.layers.").is_some_and(|layer| layer.parse::<usize>().is_ok());
    let entries = |entry: &String| [Some(entry.clone()), is_layer(entry).then(|| pattern(entry))];
    kept.iter().flat_map(entries).flatten().collect()
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
        "ignore": with_whole_layers(kept, |layer| format!("re:{}\\..*", layer.replace('.', "\\."))),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The patterns by which each engine finds what lies in a layer that is listed whole.
    #[test]
    fn whole_layers_are_listed_in_the_way_of_every_reader() {
        let kept = ["lm_head".to_owned(), "model.layers.1.mlp.gate".to_owned(), "model.layers.61".to_owned()];
        let list = |layout, key: &str| quantization_config(layout, &kept)[key].clone();
        for layout in [StoredLayout::Nvfp4, StoredLayout::Mxfp8ModelOpt] {
            let wanted = json!(["lm_head", "model.layers.1.mlp.gate", "model.layers.61", "model.layers.61.*"]);
            assert_eq!(list(layout, "ignore"), wanted);
            assert_eq!(hf_quant_config(layout, &kept).unwrap()["quantization"]["exclude_modules"], wanted);
        }
        let wanted = json!(["lm_head", "model.layers.1.mlp.gate", "model.layers.61", r"re:model\.layers\.61\..*"]);
        assert_eq!(list(StoredLayout::Int4Group32, "ignore"), wanted);
        for key in ["modules_to_not_convert", "ignored_layers"] {
            assert_eq!(list(StoredLayout::Mxfp8, key), json!(kept), "{key}");
        }
        assert_eq!(list(StoredLayout::Fp8Block { pow2_scales: true }, "modules_to_not_convert"), json!(kept));
        assert_eq!(hf_quant_config(StoredLayout::Mxfp8, &kept), None);
    }
}
