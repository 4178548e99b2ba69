//! What `quantization_config` says about stored tensors.

use super::Keys;
use crate::format::FormatId;
use crate::model::ModelError;

/// How a checkpoint stores its quantized tensors. Tensors that it keeps in high precision are plain tensors.
///
/// | layout | codes | block scales | outer scale |
/// |---|---|---|---|
/// | `Fp8Block` | `weight` F8_E4M3 `[n, k]` | `weight_scale_inv` F32 `[n/128, k/128]` | |
/// | `Mxfp8` | `weight` F8_E4M3 `[n, k]` | `weight_scale_inv` U8 (E8M0) `[n, k/32]` | |
/// | `Nvfp4` | `weight` U8 `[n, k/2]` | `weight_scale` F8_E4M3 `[n, k/16]` | `weight_scale_2` F32 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredLayout {
    /// `quant_method: fp8` with 128x128 blocks (DeepSeek-V3).
    Fp8Block {
        /// Whether every scale is a power of two (`scale_fmt: ue8m0`).
        pow2_scales: bool,
    },
    /// `quant_method: mxfp8`.
    Mxfp8,
    /// `quant_method: modelopt` with `quant_algo: NVFP4`.
    Nvfp4,
}

impl StoredLayout {
    /// The layout that a format is exported in, if it has one.
    #[must_use]
    pub fn of(format: &FormatId) -> Option<Self> {
        [
            StoredLayout::Fp8Block { pow2_scales: false },
            StoredLayout::Fp8Block { pow2_scales: true },
            StoredLayout::Mxfp8,
            StoredLayout::Nvfp4,
        ]
        .into_iter()
        .find(|layout| layout.format() == *format)
    }

    /// The format of tensors stored in this layout.
    #[must_use]
    pub fn format(self) -> FormatId {
        match self {
            StoredLayout::Fp8Block { pow2_scales: false } => FormatId::fp8_block(),
            StoredLayout::Fp8Block { pow2_scales: true } => FormatId::fp8_block_pow2(),
            StoredLayout::Mxfp8 => FormatId::mxfp8(),
            StoredLayout::Nvfp4 => FormatId::nvfp4(),
        }
    }
}

const METHODS: &str = "fp8, mxfp8, modelopt";

/// The layout that `config.json` declares. Absent keys have the defaults that engines give them: `fmt` is E4M3, the
/// activation scheme is dynamic.
pub(crate) fn stored_layout(keys: Keys<'_>) -> Result<Option<StoredLayout>, ModelError> {
    let Some(object) = keys.object("quantization_config")? else {
        return Ok(None);
    };
    let keys = keys.nested("quantization_config.", object);
    let method = keys.text("quant_method")?.ok_or_else(|| keys.missing("quant_method"))?;
    if keys.text("fmt")?.is_some_and(|format| format != "e4m3") {
        return Err(keys.unsupported("fmt", "e4m3"));
    }
    if keys.text("activation_scheme")?.is_some_and(|scheme| scheme != "dynamic") {
        return Err(keys.unsupported("activation_scheme", "dynamic"));
    }
    match method {
        "fp8" => {
            if block(keys)? != Some((128, 128)) {
                return Err(keys.unsupported("weight_block_size", "[128, 128]"));
            }
            let pow2_scales = keys.text("scale_fmt")? == Some("ue8m0");
            Ok(Some(StoredLayout::Fp8Block { pow2_scales }))
        }
        "mxfp8" => {
            if block(keys)?.is_some_and(|block| block != (1, 32)) {
                return Err(keys.unsupported("weight_block_size", "[1, 32]"));
            }
            Ok(Some(StoredLayout::Mxfp8))
        }
        "modelopt" | "modelopt_fp4" => {
            if keys.text("quant_algo")?.ok_or_else(|| keys.missing("quant_algo"))? != "NVFP4" {
                return Err(keys.unsupported("quant_algo", "NVFP4"));
            }
            if keys.size("group_size")?.is_some_and(|size| size != 16) {
                return Err(keys.unsupported("group_size", "16"));
            }
            Ok(Some(StoredLayout::Nvfp4))
        }
        _ => Err(keys.unsupported("quant_method", METHODS)),
    }
}

fn block(keys: Keys<'_>) -> Result<Option<(u32, u32)>, ModelError> {
    match keys.ids("weight_block_size")?.as_deref() {
        None => Ok(None),
        Some([rows, columns]) => Ok(Some((*rows, *columns))),
        Some(_) => Err(keys.wrong("weight_block_size", "a list of two sizes")),
    }
}
