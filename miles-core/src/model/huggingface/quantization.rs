//! What `quantization_config` says about stored tensors.
//!
//! Every key that changes what codes mean has one supported value; any other is refused by name. Absent keys have the
//! defaults that engines give them: `fmt` is E4M3, activations are scaled while running, nothing is kept.

use super::{Keys, StoredLayout, compressed_tensors, modelopt};
use crate::model::ModelError;

/// What a checkpoint declares about its quantized tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quantization {
    pub(crate) layout: StoredLayout,
    /// Modules in high precision, as the file spells them: names, or patterns of ModelOpt or compressed-tensors.
    pub(crate) kept: Vec<String>,
}

const METHODS: &str = "fp8, mxfp8, modelopt, compressed-tensors";

/// What `config.json` declares.
pub(crate) fn declared(keys: Keys<'_>) -> Result<Option<Quantization>, ModelError> {
    let Some(object) = keys.object("quantization_config")? else {
        return Ok(None);
    };
    let keys = keys.nested("quantization_config.", object);
    match keys.text("quant_method")?.ok_or_else(|| keys.missing("quant_method"))? {
        "fp8" => block_fp8(keys).map(Some),
        "mxfp8" => mxfp8(keys).map(Some),
        "modelopt" | "modelopt_fp4" => modelopt::inline(keys),
        "compressed-tensors" => compressed_tensors::declared(keys).map(Some),
        _ => Err(keys.unsupported("quant_method", METHODS)),
    }
}

fn block_fp8(keys: Keys<'_>) -> Result<Quantization, ModelError> {
    check_activations_and_codes(keys)?;
    if block(keys)? != Some((128, 128)) {
        return Err(keys.unsupported("weight_block_size", "[128, 128]"));
    }
    let pow2_scales = match keys.text("scale_fmt")? {
        None | Some("float") => false,
        Some("ue8m0") => true,
        Some(_) => return Err(keys.unsupported("scale_fmt", "ue8m0, float")),
    };
    Ok(Quantization { layout: StoredLayout::Fp8Block { pow2_scales }, kept: kept(keys)? })
}

fn mxfp8(keys: Keys<'_>) -> Result<Quantization, ModelError> {
    check_activations_and_codes(keys)?;
    if block(keys)?.is_some_and(|block| block != (1, 32)) {
        return Err(keys.unsupported("weight_block_size", "[1, 32]"));
    }
    if keys.text("scale_fmt")?.is_some_and(|format| format != "ue8m0") {
        return Err(keys.unsupported("scale_fmt", "ue8m0"));
    }
    Ok(Quantization { layout: StoredLayout::Mxfp8, kept: kept(keys)? })
}

fn check_activations_and_codes(keys: Keys<'_>) -> Result<(), ModelError> {
    if keys.text("fmt")?.is_some_and(|format| !["e4m3", "float8_e4m3fn"].contains(&format)) {
        return Err(keys.unsupported("fmt", "e4m3"));
    }
    if keys.text("activation_scheme")?.is_some_and(|scheme| scheme != "dynamic") {
        return Err(keys.unsupported("activation_scheme", "dynamic"));
    }
    Ok(())
}

fn kept(keys: Keys<'_>) -> Result<Vec<String>, ModelError> {
    let key = keys.alias(&["modules_to_not_convert", "ignored_layers"])?;
    Ok(keys.texts(key)?.unwrap_or_default())
}

fn block(keys: Keys<'_>) -> Result<Option<(u32, u32)>, ModelError> {
    match keys.ids("weight_block_size")?.as_deref() {
        None => Ok(None),
        Some([rows, columns]) => Ok(Some((*rows, *columns))),
        Some(_) => Err(keys.wrong("weight_block_size", "a list of two sizes")),
    }
}
