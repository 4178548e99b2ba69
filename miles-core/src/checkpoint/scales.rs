//! Scales as they are stored: widened without rounding, and refused where no quantizer emits them.

use safetensors::Dtype;

use super::stored_error::StoredError;
use crate::format::BlockScales;
use crate::model::huggingface::StoredLayout;
use crate::number::{e4m3, e8m0};

/// A scale that a layout cannot have. NaN and infinity are refused by the format itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BadScale {
    /// Row of the scale matrix.
    pub(super) row: usize,
    /// Block within the row.
    pub(super) block: usize,
    pub(super) value: f32,
    pub(super) why: &'static str,
}

impl BadScale {
    /// As an error about one tensor.
    pub(super) fn of(self, tensor: &str) -> StoredError {
        let BadScale { row, block, value, why } = self;
        StoredError::Scale { tensor: tensor.to_owned(), row, block, value, why }
    }
}

/// Stored scales of `scale_cols` blocks per row in the storage of the layout's format.
pub(crate) fn decode(
    layout: StoredLayout,
    dtype: Dtype,
    bytes: Vec<u8>,
    scale_cols: usize,
) -> Result<BlockScales, BadScale> {
    let scales = match dtype {
        Dtype::F32 => BlockScales::F32(floats(&bytes)),
        Dtype::BF16 => BlockScales::F32(pairs(&bytes).map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
        Dtype::F16 => BlockScales::F32(pairs(&bytes).map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
        Dtype::F8_E8M0 if matches!(layout, StoredLayout::Fp8Block { .. }) => {
            BlockScales::F32(bytes.iter().map(|byte| e8m0::decode(*byte)).collect())
        }
        _ => BlockScales::U8(bytes),
    };
    let bad = |index: usize, value: f32, why: &'static str| {
        Err(BadScale { row: index / scale_cols.max(1), block: index % scale_cols.max(1), value, why })
    };
    match &scales {
        BlockScales::U8(bytes) if layout == StoredLayout::Nvfp4 => {
            // -0 decodes as 0 does.
            match bytes.iter().position(|byte| *byte > 0x80) {
                Some(index) if !e4m3::is_nan(bytes[index]) => bad(index, e4m3::decode(bytes[index]), "is negative"),
                _ => Ok(scales),
            }
        }
        BlockScales::U8(_) => Ok(scales),
        BlockScales::F32(values) => {
            if let Some(index) = values.iter().position(|value| *value < 0.0) {
                return bad(index, values[index], "is negative");
            }
            let declared_powers = layout == StoredLayout::Fp8Block { pow2_scales: true };
            match values.iter().position(|value| declared_powers && value.is_finite() && !is_power_of_two(*value)) {
                Some(index) => bad(index, values[index], "is no power of two, as `scale_fmt: ue8m0` says"),
                None => Ok(scales),
            }
        }
    }
}

/// The `f32` of little-endian bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> + '_ {
    bytes.chunks_exact(2).map(|b| [b[0], b[1]])
}

/// Of a finite value that is not negative.
fn is_power_of_two(value: f32) -> bool {
    const MANTISSA: u32 = 0x007F_FFFF;
    let bits = value.to_bits();
    // Below the normal range the mantissa itself has to be one bit.
    if bits > MANTISSA { bits & MANTISSA == 0 } else { bits.is_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POW2: StoredLayout = StoredLayout::Fp8Block { pow2_scales: true };
    const ANY: StoredLayout = StoredLayout::Fp8Block { pow2_scales: false };

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn every_number_type_is_widened_exactly() {
        let value = 0.011_718_75_f32;
        let wanted = BlockScales::F32(vec![value]);
        assert_eq!(decode(ANY, Dtype::F32, f32s(&[value]), 1).unwrap(), wanted);
        assert_eq!(decode(ANY, Dtype::BF16, half::bf16::from_f32(value).to_le_bytes().to_vec(), 1).unwrap(), wanted);
        assert_eq!(decode(ANY, Dtype::F16, half::f16::from_f32(value).to_le_bytes().to_vec(), 1).unwrap(), wanted);
        assert_eq!(decode(POW2, Dtype::F8_E8M0, vec![120], 1).unwrap(), BlockScales::F32(vec![0.0078125]));
        assert_eq!(decode(StoredLayout::Mxfp8, Dtype::F8_E8M0, vec![120], 1).unwrap(), BlockScales::U8(vec![120]));
    }

    #[test]
    fn negative_scales_and_declared_powers_of_two_that_are_none_are_refused_with_their_place() {
        let error = decode(ANY, Dtype::F32, f32s(&[1.0, 2.0, 0.5, -0.25]), 2).unwrap_err();
        assert_eq!((error.row, error.block, error.value), (1, 1, -0.25));
        let error = decode(POW2, Dtype::F32, f32s(&[1.0, 0.75]), 2).unwrap_err();
        assert_eq!((error.row, error.block, error.value), (0, 1, 0.75));
        assert!(decode(POW2, Dtype::F32, f32s(&[1.0, 0.5, f32::MIN_POSITIVE / 4.0]), 3).is_ok());
        assert!(decode(POW2, Dtype::F32, f32s(&[f32::MIN_POSITIVE * 0.75]), 1).is_err());
        assert!(decode(POW2, Dtype::F32, f32s(&[0.0]), 1).is_err());
        let error = decode(StoredLayout::Nvfp4, Dtype::F8_E4M3, vec![0x38, 0x80, 0xB8], 3).unwrap_err();
        assert_eq!((error.row, error.block, error.value), (0, 2, -1.0));
    }
}
