//! `quantization_config` in the words of compressed-tensors.
//!
//! | `format` | weights | layout |
//! |---|---|---|
//! | `float-quantized` (`naive-quantized`) | float, 8 bits, strategy `channel` or `tensor` | `Fp8Channel`, `Fp8Tensor` |
//! | `int-quantized` (`naive-quantized`) | int, 8 bits, strategy `channel` | `Int8Channel` |
//! | `pack-quantized` | int, 4 bits, strategy `group` of 32, 64 or 128 | `Int4Group..` |
//!
//! One group of modules, symmetric, activations unquantized or scaled while running. Refused by key: zero points,
//! columns in another order (`actorder: group`), calibrated activation scales, a quantized cache, rotations
//! (`transform_config`), sparsity.

use super::quantization::Quantization;
use super::{Keys, StoredLayout};
use crate::model::ModelError;

const GROUPS: &str = "quantization_config.config_groups.";
const GROUP: &str = "quantization_config.config_groups.*.";
const WEIGHTS: &str = "quantization_config.config_groups.*.weights.";
const ACTIVATIONS: &str = "quantization_config.config_groups.*.input_activations.";

/// What `quantization_config` declares.
pub(super) fn declared(keys: Keys<'_>) -> Result<Quantization, ModelError> {
    if keys.text("quantization_status")?.is_some_and(|status| status != "compressed") {
        return Err(keys.unsupported("quantization_status", "compressed"));
    }
    if keys.value("kv_cache_scheme").is_some() {
        return Err(keys.unsupported("kv_cache_scheme", "null (the cache is not quantized here)"));
    }
    for (key, supported) in [("transform_config", "none"), ("sparsity_config", "none")] {
        if keys.object(key)?.is_some_and(|object| !object.is_empty()) {
            return Err(keys.unsupported(key, supported));
        }
    }
    let groups = keys.object("config_groups")?.ok_or_else(|| keys.missing("config_groups"))?;
    let mut names = groups.keys();
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(keys.unsupported("config_groups", "one group"));
    };
    let groups = keys.nested(GROUPS, groups);
    let group = groups.object(name)?.ok_or_else(|| groups.missing(name))?;
    let group = groups.nested(GROUP, group);
    if group.value("output_activations").is_some() {
        return Err(group.unsupported("output_activations", "null"));
    }
    let layout = weights(group)?;
    activations(group, layout)?;
    check_format(keys, layout)?;
    // A group may name a format of its own, for checkpoints of mixed formats.
    check_format(group, layout)?;
    Ok(Quantization { layout, kept: keys.texts("ignore")?.unwrap_or_default() })
}

fn weights(group: Keys<'_>) -> Result<StoredLayout, ModelError> {
    let object = group.object("weights")?.ok_or_else(|| group.missing("weights"))?;
    let keys = group.nested(WEIGHTS, object);
    if keys.flag("symmetric")? == Some(false) {
        return Err(keys.unsupported("symmetric", "true (there are no zero points here)"));
    }
    if keys.value("dynamic").is_some_and(|dynamic| dynamic.as_bool() != Some(false)) {
        return Err(keys.unsupported("dynamic", "false"));
    }
    if keys.value("actorder").is_some_and(|order| !matches!(order.as_str(), Some("static" | "weight"))) {
        return Err(keys.unsupported("actorder", "null, static (columns in their own order)"));
    }
    let bits = keys.size("num_bits")?.ok_or_else(|| keys.missing("num_bits"))?;
    let strategy = keys.text("strategy")?.ok_or_else(|| keys.missing("strategy"))?;
    match (keys.text("type")?.unwrap_or("int"), bits, strategy) {
        ("float", 8, "channel") => Ok(StoredLayout::Fp8Channel),
        ("float", 8, "tensor") => Ok(StoredLayout::Fp8Tensor),
        ("int", 8, "channel") => Ok(StoredLayout::Int8Channel),
        ("int", 4, "group") => {
            let size = keys.size("group_size")?.ok_or_else(|| keys.missing("group_size"))?;
            let layout = StoredLayout::ALL.into_iter().find(|layout| layout.int4_group() == Some(size));
            layout.ok_or_else(|| keys.unsupported("group_size", "32, 64, 128"))
        }
        ("float" | "int", 4 | 8, _) => Err(keys.unsupported("strategy", "channel or tensor of 8 bits, group of INT4")),
        ("float" | "int", _, _) => Err(keys.unsupported("num_bits", "8, or 4 of type int")),
        _ => Err(keys.unsupported("type", "float, int")),
    }
}

/// Refuses activation scales that were calibrated: the codes' own format scales activations while running.
fn activations(group: Keys<'_>, layout: StoredLayout) -> Result<(), ModelError> {
    let Some(object) = group.object("input_activations")? else {
        return Ok(());
    };
    if layout.int4_group().is_some() {
        return Err(group.unsupported("input_activations", "null with INT4 weights"));
    }
    let keys = group.nested(ACTIVATIONS, object);
    if keys.value("dynamic").and_then(serde_json::Value::as_bool) != Some(true) {
        return Err(keys.unsupported("dynamic", "true"));
    }
    Ok(())
}

fn check_format(keys: Keys<'_>, layout: StoredLayout) -> Result<(), ModelError> {
    let (own, naive) = match layout {
        StoredLayout::Int8Channel => ("int-quantized", true),
        _ if layout.int4_group().is_some() => ("pack-quantized", false),
        _ => ("float-quantized", true),
    };
    match keys.text("format")? {
        Some(format) if format != own && !(naive && format == "naive-quantized") => {
            Err(keys.unsupported("format", own))
        }
        _ => Ok(()),
    }
}
