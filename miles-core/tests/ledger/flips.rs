//! A flipped bit anywhere in a saved policy is found and named.

use std::fs;
use std::path::Path;

use miles_core::checkpoint::WriteOptions;
use miles_core::format::FormatId;
use miles_core::policy::{Finding, PolicyVersion, verify, verify_directory};
use safetensors::SafeTensors;

use crate::exported::Exported;

/// The name of the stored tensor around a byte of a safetensors file; `None` in the header.
fn tensor_at(file: &[u8], offset: usize) -> Option<String> {
    let (header_bytes, metadata) = SafeTensors::read_metadata(file).unwrap();
    let data = offset.checked_sub(header_bytes + 8)?;
    let tensors = metadata.tensors();
    tensors
        .into_iter()
        .find(|(_, info)| (info.data_offsets.0..info.data_offsets.1).contains(&data))
        .map(|(name, _)| name)
}

/// The parameter that a stored tensor is a part of.
fn parameter(stored: &str) -> String {
    let suffixes = [".weight_scale_inv", ".weight_scale_2", ".weight_scale"];
    let base = suffixes.iter().find_map(|suffix| stored.strip_suffix(suffix));
    base.map_or_else(|| stored.to_owned(), |base| format!("{base}.weight"))
}

/// Flips one bit of every `stride`th byte of a file and looks at what is found; gives the number of flips.
fn flip_bytes(
    exported: &Exported,
    file: &str,
    stride: usize,
    mut check: impl FnMut(usize, &[u8], &[Finding]),
) -> usize {
    let path = exported.policy().join(file);
    let original = fs::read(&path).unwrap();
    let (mut bytes, mut flips) = (original.clone(), 0);
    for offset in (0..bytes.len()).step_by(stride) {
        // Every bit position has its turn, within a code and across neighbouring bytes.
        let bit = 1 << (offset * 5 % 8);
        bytes[offset] ^= bit;
        fs::write(&path, &bytes).unwrap();
        let verification = verify_directory(&exported.policy(), &exported.ledger(), None).unwrap();
        assert!(!verification.is_equal(), "{file}: the flip of bit {bit:#x} at byte {offset} was not found");
        check(offset, &original, &verification.findings);
        bytes[offset] ^= bit;
        flips += 1;
    }
    fs::write(&path, &original).unwrap();
    assert!(verify(&exported.policy(), &exported.ledger(), None).unwrap().is_equal(), "{file}: restored");
    flips
}

fn names_file(findings: &[Finding], name: &str) -> bool {
    findings.iter().any(|finding| match finding {
        Finding::File { file, .. } => file == name,
        _ => false,
    })
}

fn names_tensor(findings: &[Finding], name: &str) -> bool {
    findings.iter().any(|finding| match finding {
        Finding::Tensor { tensor, .. } | Finding::UnreadTensor { tensor, .. } => tensor == name,
        _ => false,
    })
}

fn all_files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Codes, block scales, outer scales and elements name their tensor and their file; headers, activation scales, the index
/// and every file beside the weights name the file.
#[test]
fn a_flipped_bit_in_any_byte_of_an_export_is_found_and_named() {
    // Every byte of one format; of the others every 13th, coprime to blocks, tensors and headers.
    let others = [FormatId::mxfp8(), FormatId::fp8_block(), FormatId::fp8_block_pow2()].map(|format| (format, 13));
    for (format, stride) in std::iter::once((FormatId::nvfp4(), 1)).chain(others) {
        let exported = Exported::new(Some(format.clone()));
        let (mut flips, mut in_tensors) = (0, 0);
        for file in all_files(&exported.policy()) {
            flips += flip_bytes(&exported, &file, stride, |offset, original, findings| {
                assert!(names_file(findings, &file), "{format} {file} byte {offset}: {findings:?}");
                let stored = file.ends_with(".safetensors").then(|| tensor_at(original, offset)).flatten();
                let Some(stored) = stored.filter(|name| !name.ends_with(".input_scale")) else { return };
                in_tensors += 1;
                assert!(names_tensor(findings, &parameter(&stored)), "{format} {stored} byte {offset}: {findings:?}");
            });
        }
        assert!(in_tensors > 5000 / stride && flips > in_tensors + 2000 / stride, "{format}: {in_tensors} of {flips}");
        let expected: &[&str] = match format.as_str() {
            "nvfp4" => &["config.json", "generation_config.json", "hf_quant_config.json", "model.safetensors"],
            _ => &["config.json", "generation_config.json", "model.safetensors"],
        };
        assert_eq!(all_files(&exported.policy()), expected, "{format}");
    }
}

#[test]
fn a_flipped_bit_in_the_index_or_any_shard_is_found_and_named() {
    let sharded = WriteOptions { max_shard_bytes: 2048, ..WriteOptions::default() };
    let exported = Exported::with(Some(FormatId::nvfp4()), &sharded, true);
    let files = all_files(&exported.policy());
    assert!(files.iter().filter(|file| file.ends_with(".safetensors")).count() > 2, "{files:?}");
    for file in files.iter().filter(|file| file.starts_with("model")) {
        flip_bytes(&exported, file, 7, |offset, _, findings| {
            assert!(names_file(findings, file), "{file} byte {offset}: {findings:?}");
        });
    }
}

/// A ledger without an export event still covers every byte of every tensor. That it covers no more is a finding: else
/// taking the event away would be a way to have files changed unnoticed.
#[test]
fn without_an_export_event_a_flip_in_a_tensor_is_still_found() {
    let exported = Exported::with(Some(FormatId::nvfp4()), &WriteOptions::default(), false);
    let whole = verify(&exported.policy(), &exported.ledger(), None).unwrap();
    assert!(!whole.is_equal() && whole.compared_files.is_none());
    assert!(
        matches!(&whole.findings[..], [Finding::Unexported { dir, version: PolicyVersion(1), .. }] if *dir == exported.policy()),
        "{:?}",
        whole.findings
    );
    assert!(whole.findings[0].to_string().contains("ledger.jsonl:"), "{}", whole.findings[0]);
    let path = exported.policy().join("model.safetensors");
    let original = fs::read(&path).unwrap();
    let mut flipped = original.clone();
    for offset in (0..original.len()).rev().step_by(7) {
        let Some(stored) = tensor_at(&original, offset).filter(|name| !name.ends_with(".input_scale")) else {
            continue;
        };
        flipped[offset] ^= 0x10;
        fs::write(&path, &flipped).unwrap();
        let findings = verify(&exported.policy(), &exported.ledger(), None).unwrap().findings;
        assert!(names_tensor(&findings, &parameter(&stored)), "{stored} byte {offset}: {findings:?}");
        flipped[offset] ^= 0x10;
    }
}
