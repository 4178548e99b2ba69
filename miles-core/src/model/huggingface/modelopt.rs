//! ModelOpt's description of NVFP4: in `hf_quant_config.json`, in `config.json`, or in both.
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
    if algorithm != "NVFP4" {
        return Err(keys.unsupported("quant_algo", "NVFP4"));
    }
    if keys.size("group_size")?.is_some_and(|size| size != 16) {
        return Err(keys.unsupported("group_size", "16"));
    }
    check_groups(keys)?;
    let key = keys.alias(&["ignore", "exclude_modules"])?;
    Ok(Some(Quantization { layout: StoredLayout::Nvfp4, kept: keys.texts(key)?.unwrap_or_default() }))
}

/// Refuses groups of weights that are not NVFP4.
fn check_groups(keys: Keys<'_>) -> Result<(), ModelError> {
    let Some(groups) = keys.object("config_groups")? else {
        return Ok(());
    };
    let groups_keys = keys.nested("quantization_config.config_groups.", groups);
    for name in groups.keys() {
        let Some(group) = groups_keys.object(name)? else { continue };
        let group = groups_keys.nested("quantization_config.config_groups.*.", group);
        let Some(weights) = group.object("weights")? else { continue };
        let weights = group.nested("quantization_config.config_groups.*.weights.", weights);
        if weights.size("num_bits")?.is_some_and(|bits| bits != 4) {
            return Err(weights.unsupported("num_bits", "4"));
        }
        if weights.text("type")?.is_some_and(|kind| kind != "float") {
            return Err(weights.unsupported("type", "float"));
        }
        if weights.size("group_size")?.is_some_and(|size| size != 16) {
            return Err(weights.unsupported("group_size", "16"));
        }
    }
    Ok(())
}
