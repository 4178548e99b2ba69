//! NaN and infinity among stored values: all exponent bits set.

use crate::tensor::Dtype;

/// Index and value of the first value that is not finite, in little-endian bytes of `dtype`.
pub(crate) fn first_non_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f32)> {
    let index = match dtype {
        Dtype::Bf16 => first::<2>(bytes, [0x80, 0x7F]),
        Dtype::F16 => first::<2>(bytes, [0x00, 0x7C]),
        Dtype::F32 => first::<4>(bytes, [0x00, 0x00, 0x80, 0x7F]),
    }?;
    let at = &bytes[index * dtype.element_bytes()..];
    let value = match dtype {
        Dtype::Bf16 => half::bf16::from_le_bytes([at[0], at[1]]).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes([at[0], at[1]]).to_f32(),
        Dtype::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
    };
    Some((index, value))
}

/// Index of the first element of `N` bytes that has all bits of `exponent`. Whole stretches are looked through without a
/// branch: the search comes second to reading only if it is vectorized.
fn first<const N: usize>(bytes: &[u8], exponent: [u8; N]) -> Option<usize> {
    let word = |element: &[u8; N]| {
        let mut wide = [0; 4];
        wide[..N].copy_from_slice(element);
        u32::from_le_bytes(wide)
    };
    let mask = word(&exponent);
    let is_hit = |element: &[u8; N]| word(element) & mask == mask;
    let elements = bytes.as_chunks::<N>().0;
    let stretch = elements.chunks(STRETCH).position(|stretch| stretch.iter().fold(false, |any, e| any | is_hit(e)))?;
    let start = stretch * STRETCH;
    Some(start + elements[start..].iter().position(is_hit)?)
}

const STRETCH: usize = 1024;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_one_is_found_wherever_it_is() {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let size = dtype.element_bytes();
            let encode = |value: f32| match dtype {
                Dtype::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                Dtype::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                Dtype::F32 => value.to_le_bytes().to_vec(),
            };
            let largest = match dtype {
                Dtype::F16 => 65504.0,
                Dtype::Bf16 => half::bf16::MAX.to_f32(),
                Dtype::F32 => f32::MAX,
            };
            let finite: Vec<u8> =
                (0..3000).flat_map(|index| encode([largest, -largest, 0.0, 1e-9][index % 4])).collect();
            assert_eq!(first_non_finite(dtype, &finite), None);
            assert_eq!(first_non_finite(dtype, &[]), None);
            for at in [0, 1, 1023, 1024, 2500, 2999] {
                let mut bytes = finite.clone();
                bytes[at * size..(at + 1) * size].copy_from_slice(&encode(f32::NEG_INFINITY));
                bytes[2999 * size..].copy_from_slice(&encode(f32::NEG_INFINITY));
                assert_eq!(first_non_finite(dtype, &bytes), Some((at, f32::NEG_INFINITY)));
                bytes[at * size..(at + 1) * size].copy_from_slice(&encode(f32::NAN));
                let (found, value) = first_non_finite(dtype, &bytes).unwrap();
                assert!(found == at && value.is_nan());
            }
        }
    }
}
