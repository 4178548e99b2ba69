//! The rotary embedding in both generations of keys.

use serde_json::{Map, Value};

use super::Keys;
use crate::model::{Llama3Scaling, ModelError, RopeConfig, RopePairing, RopeScaling};

const SUPPORTED: &str = "default, linear, llama3";

/// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`.
pub(super) fn rope(keys: Keys<'_>, rotary_dim: usize, pairing: RopePairing) -> Result<RopeConfig, ModelError> {
    let empty = Map::<String, Value>::new();
    let (name, prefix) = match keys.alias(&["rope_parameters", "rope_scaling"])? {
        "rope_scaling" => ("rope_scaling", "rope_scaling."),
        _ => ("rope_parameters", "rope_parameters."),
    };
    let rule = keys.nested(prefix, keys.object(name)?.unwrap_or(&empty));
    for holder in [keys, rule] {
        if holder.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
            return Err(holder.unsupported("partial_rotary_factor", "1.0"));
        }
    }
    let theta = match (rule.positive("rope_theta")?, keys.positive("rope_theta")?) {
        (Some(nested), Some(outer)) if nested != outer => {
            return Err(
                rule.contradiction("rope_theta", format!("{nested} differs from the outer `rope_theta`, {outer}"))
            );
        }
        (nested, outer) => nested.or(outer).unwrap_or(10_000.0),
    };
    if !rotary_dim.is_multiple_of(2) {
        let why = format!("rotates pairs of columns, but a head has {rotary_dim}");
        return Err(keys.contradiction("head_dim", why));
    }
    Ok(RopeConfig { theta, rotary_dim, pairing, scaling: scaling(keys, rule)? })
}

fn scaling(keys: Keys<'_>, rule: Keys<'_>) -> Result<RopeScaling, ModelError> {
    let key = rule.alias(&["rope_type", "type"])?;
    let required = |key| rule.positive(key)?.ok_or_else(|| rule.missing(key));
    match rule.text(key)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
        "llama3" => {
            let original = rule.positive("original_max_position_embeddings")?;
            let original = match original {
                Some(tokens) => tokens,
                None => keys
                    .positive("original_max_position_embeddings")?
                    .ok_or_else(|| rule.missing("original_max_position_embeddings"))?,
            };
            let scaling = Llama3Scaling {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context_tokens: original,
            };
            if scaling.high_freq_factor <= scaling.low_freq_factor {
                let why = format!("has to be above `low_freq_factor`, {}", scaling.low_freq_factor);
                return Err(rule.contradiction("high_freq_factor", why));
            }
            Ok(RopeScaling::Llama3(scaling))
        }
        _ => Err(rule.unsupported(key, SUPPORTED)),
    }
}
