//! ModelOpt's description of NVFP4 and MXFP8: in `hf_quant_config.json`, in `config.json`, or in both.
//!
//! ```text
//! hf_quant_config.json          { "quantization": { "quant_algo", "group_size", "kv_cache_quant_algo", "exclude_modules" } }
//! config.json, older releases   the same object under "quantization_config"
//! config.json, newer releases   { "quant_algo", "config_groups", "kv_cache_scheme", "ignore" } under "quantization_config"
//! ```
//!
//! A quantized cache is refused by key: its scales are calibrated and nothing here would apply them.

use super::quantization::Quantization;
use super::{Keys, StoredLayout};
use crate::model::ModelError;

/// What `quantization_config` of `config.json` declares; `None` when its `quant_algo` is null.
pub(super) fn inline(keys: Keys<'_>) -> Result<Option<Quantization>, ModelError> {
    match keys.object("quantization")? {
        Some(object) => described(keys.nested("quantization_config.quantization.", object)),
        None => described(keys),
    }
}

/// What `hf_quant_config.json` declares.
pub(super) fn beside(keys: Keys<'_>) -> Result<Option<Quantization>, ModelError> {
    let object = keys.object("quantization")?.ok_or_else(|| keys.missing("quantization"))?;
    described(keys.nested("quantization.", object))
}

fn described(keys: Keys<'_>) -> Result<Option<Quantization>, ModelError> {
    if keys.value("kv_cache_quant_algo").is_some() {
        return Err(keys.unsupported("kv_cache_quant_algo", "null (the cache is not quantized here)"));
    }
    if keys.value("kv_cache_scheme").is_some() {
        return Err(keys.unsupported("kv_cache_scheme", "null (the cache is not quantized here)"));
    }
    if !keys.has("quant_algo") {
        return Err(keys.missing("quant_algo"));
    }
    let Some(algorithm) = keys.text("quant_algo")? else {
        return Ok(None);
    };
    // Some releases write it in lower case.
    let is = |layout: &StoredLayout| layout.modelopt().is_some_and(|(own, _)| own.eq_ignore_ascii_case(algorithm));
    let Some(layout) = StoredLayout::ALL.into_iter().find(is) else {
        return Err(keys.unsupported("quant_algo", "NVFP4, MXFP8"));
    };
    check_group_size(keys, layout)?;
    check_groups(keys, layout)?;
    let key = keys.alias(&["ignore", "exclude_modules"])?;
    Ok(Some(Quantization { layout, kept: keys.texts(key)?.unwrap_or_default() }))
}

fn check_group_size(keys: Keys<'_>, layout: StoredLayout) -> Result<(), ModelError> {
    let (expected, shown) = if layout == StoredLayout::Nvfp4 { (16, "16") } else { (32, "32") };
    match keys.size("group_size")? {
        Some(size) if size != expected => Err(keys.unsupported("group_size", shown)),
        _ => Ok(()),
    }
}

/// Refuses groups of weights that are not those of the layout.
fn check_groups(keys: Keys<'_>, layout: StoredLayout) -> Result<(), ModelError> {
    let (bits, shown) = if layout == StoredLayout::Nvfp4 { (4, "4") } else { (8, "8") };
    let Some(groups) = keys.object("config_groups")? else {
        return Ok(());
    };
    let groups_keys = keys.nested("quantization_config.config_groups.", groups);
    for name in groups.keys() {
        let Some(group) = groups_keys.object(name)? else { continue };
        let group = groups_keys.nested("quantization_config.config_groups.*.", group);
        let Some(weights) = group.object("weights")? else { continue };
        let weights = group.nested("quantization_config.config_groups.*.weights.", weights);
        if weights.size("num_bits")?.is_some_and(|found| found != bits) {
            return Err(weights.unsupported("num_bits", shown));
        }
        if weights.text("type")?.is_some_and(|kind| kind != "float") {
            return Err(weights.unsupported("type", "float"));
        }
        check_group_size(weights, layout)?;
    }
    Ok(())
}
