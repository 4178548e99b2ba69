//! Canonical bytes and digests.

use miles_core::format::{BlockScales, FormatId, QuantizeSpec, QuantizedTensor, builtin_rule};
use proptest::prelude::*;

use crate::sample::{formats, quantize, specs, values};

proptest! {
    #[test]
    fn the_digest_changes_with_any_bit_of_a_code(seed: u32, byte in 0_usize..256, bit in 0..8) {
        for format in formats() {
            let spec = QuantizeSpec::activation(format.clone());
            let tensor = quantize(&values(16 * 32, seed), 16, 32, &spec);
            let mut parts = tensor.to_parts();
            parts.codes[byte] ^= 1_u8 << bit;
            let flipped = QuantizedTensor::from_parts(builtin_rule(&format).unwrap(), None, parts).unwrap();
            prop_assert_ne!(flipped.digest(), tensor.digest());
            prop_assert_ne!(flipped, tensor);
        }
    }
}

#[test]
fn the_digest_changes_with_any_scale_and_not_with_amax() {
    for format in formats() {
        let rule = builtin_rule(&format).unwrap();
        let tensor = quantize(&values(16 * 32, 5), 16, 32, &QuantizeSpec::activation(format));
        let mut digests = vec![tensor.digest()];
        for i in 0..tensor.scales().len() {
            let mut parts = tensor.to_parts();
            match &mut parts.scales {
                BlockScales::U8(scales) => scales[i] = if scales[i] == 0 { 1 } else { scales[i] - 1 },
                BlockScales::F32(scales) => scales[i] = scales[i].next_up(),
            }
            digests.push(QuantizedTensor::from_parts(rule, None, parts).unwrap().digest());
        }
        for i in 0..tensor.outer().len() {
            let mut parts = tensor.to_parts();
            parts.outer[i] = parts.outer[i].next_up();
            digests.push(QuantizedTensor::from_parts(rule, None, parts).unwrap().digest());
            // Checkpoint layouts do not store the amax.
            let mut parts = tensor.to_parts();
            parts.amax.clear();
            let without = QuantizedTensor::from_parts(rule, None, parts).unwrap();
            assert_eq!(without.digest(), tensor.digest());
        }
        let count = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), count);
    }
}

#[test]
fn the_digest_tells_format_axis_operand_and_shape_apart() {
    let zeros = [0.0; 1024];
    let mut digests = Vec::new();
    for format in formats() {
        for spec in specs(&format).into_iter().step_by(2) {
            for (rows, cols) in [(32, 32), (16, 64), (64, 16)] {
                digests.push(quantize(&zeros, rows, cols, &spec).digest());
            }
        }
    }
    let count = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!((digests.len(), count), (48, 48));
}

#[test]
fn canonical_bytes_are_the_documented_header_and_the_parts() {
    let tensor = quantize(&values(2 * 16, 9), 2, 16, &QuantizeSpec::weight(FormatId::nvfp4()));
    let bytes = tensor.canonical_bytes();
    let counts: Vec<u64> = bytes[16..56].as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
    assert_eq!(&bytes[..16], b"miles-q1\x01\x00\x00\0\0\0\0\0");
    assert_eq!(counts, [2, 16, 16, 2, 1]);
    assert_eq!(&bytes[56..72], tensor.codes());
    assert_eq!(&bytes[72..74], tensor.scales().as_u8().unwrap());
    assert_eq!(bytes[74..], tensor.outer()[0].to_le_bytes());

    let mut hasher = blake3::Hasher::new();
    hasher.update(&5_u64.to_le_bytes()).update(b"nvfp4").update(&bytes);
    assert_eq!(tensor.digest(), hasher.finalize().into());
}

#[test]
fn long_f32_scales_are_hashed_whole() {
    let tensor = quantize(&values(700 * 3, 2), 700, 3, &QuantizeSpec::activation(FormatId::fp8_block()));
    let bytes = tensor.canonical_bytes();
    let scales: Vec<u8> = tensor.scales().as_f32().unwrap().iter().flat_map(|s| s.to_le_bytes()).collect();
    assert_eq!(bytes[56 + 2100..], scales);
}
