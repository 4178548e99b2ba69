//! What `verify` says about directories and ledgers that do not belong together.

use std::fs;

use miles_core::checkpoint::{StoredForm, WriteOptions};
use miles_core::format::FormatId;
use miles_core::policy::{
    FileCause, FileDifference, Finding, LedgerEvent, LedgerFile, PolicyError, PolicyVersion, Side, TensorDifference,
    diff_directories, verify, verify_directory,
};
use miles_core::tensor::Dtype;

use crate::exported::Exported;

#[test]
fn an_untouched_export_is_equal_in_every_tensor_and_file() {
    let exported = Exported::new(Some(FormatId::nvfp4()));
    let found = verify(&exported.policy(), &exported.ledger(), None).unwrap();
    assert!(found.is_equal(), "{:?}", found.findings);
    let tensors = exported.snapshots[1].network().parameters.len();
    assert_eq!((found.version, found.compared_tensors), (PolicyVersion(1), tensors));
    assert_eq!((found.compared_files, found.converted_tensors, found.equal_version), (Some(4), 0, None));
}

#[test]
fn another_version_differs_in_every_tensor_and_the_right_one_is_named() {
    let exported = Exported::new(Some(FormatId::mxfp8()));
    let found = verify(&exported.policy(), &exported.ledger(), Some(PolicyVersion(0))).unwrap();
    let differing = found.findings.iter().filter(|finding| matches!(finding, Finding::Tensor { .. })).count();
    assert_eq!(differing, exported.snapshots[0].network().parameters.len());
    assert_eq!(found.equal_version, Some(PolicyVersion(1)));
    let error = verify(&exported.policy(), &exported.ledger(), Some(PolicyVersion(7))).unwrap_err();
    assert!(
        matches!(&error, PolicyError::UnknownVersion { version: PolicyVersion(7), held } if *held == [0, 1]),
        "{error}"
    );
}

#[test]
fn tensors_and_files_of_one_side_only_are_named() {
    let exported = Exported::new(Some(FormatId::mxfp8()));
    let findings = || verify_directory(&exported.policy(), &exported.ledger(), None).unwrap().findings;
    let text = fs::read_to_string(exported.ledger()).unwrap();
    let last = LedgerFile::find(&exported.ledger(), PolicyVersion(1)).unwrap();
    let gone = &last.events()[3].tensor;
    let without: String =
        text.lines().filter(|line| !line.contains(&format!("\"{gone}\""))).map(|line| format!("{line}\n")).collect();
    fs::write(exported.ledger(), without).unwrap();
    assert!(
        matches!(&findings()[..], [Finding::UnrecordedTensor { tensor, .. }] if tensor == gone),
        "{:?}",
        findings()
    );

    let more = LedgerEvent { tensor: "model.extra.weight".to_owned(), ..last.events()[0].clone() };
    let export = text.lines().last().unwrap();
    let events = text.strip_suffix(&format!("{export}\n")).unwrap();
    fs::write(exported.ledger(), format!("{events}{}\n{export}\n", serde_json::to_string(&more).unwrap())).unwrap();
    let line = events.lines().count() + 1;
    assert!(
        matches!(&findings()[..], [Finding::MissingTensor { tensor, at }] if tensor == "model.extra.weight" && at.line == line),
        "{:?}",
        findings()
    );

    fs::write(exported.ledger(), text).unwrap();
    fs::remove_file(exported.policy().join("generation_config.json")).unwrap();
    fs::create_dir(exported.policy().join("more")).unwrap();
    fs::write(exported.policy().join("more/notes.txt"), "mine").unwrap();
    let found = findings();
    let [Finding::MissingFile { file: missing, at }, Finding::UnrecordedFile { file: extra, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((missing.as_str(), extra.as_str(), at.line), ("generation_config.json", "more/notes.txt", line));
}

#[test]
fn a_directory_that_is_no_checkpoint_is_a_finding_and_an_absent_one_an_error() {
    let exported = Exported::new(None);
    fs::remove_file(exported.policy().join("model.safetensors")).unwrap();
    let found = verify(&exported.policy(), &exported.ledger(), None).unwrap();
    assert!(!found.is_equal() && found.compared_tensors == 0);
    assert!(found.findings.iter().any(|finding| matches!(finding, Finding::Unopened { .. })), "{:?}", found.findings);
    assert!(found.findings[0].to_string().contains("model.safetensors"), "{:?}", found.findings);
    assert!(diff_directories(&exported.policy(), &exported.policy()).is_err(), "nothing can be compared");
    let absent = exported.policy().join("absent");
    assert!(verify(&absent, &exported.ledger(), None).unwrap_err().to_string().contains("absent"));
}

/// Codes that were dequantized for the export cannot be compared; what was stored as it was can, and so can every file.
#[test]
fn a_high_precision_export_says_how_many_tensors_it_converted() {
    let dense = WriteOptions { form: StoredForm::Dense(Dtype::Bf16), ..WriteOptions::default() };
    let exported = Exported::with(Some(FormatId::mxfp8()), &dense, true);
    let found = verify(&exported.policy(), &exported.ledger(), None).unwrap();
    assert!(found.is_equal(), "{:?}", found.findings);
    assert_eq!(found.converted_tensors, 3, "gate, up and down of the first layer");
    let unrecorded = Exported::with(Some(FormatId::mxfp8()), &dense, false);
    let found = verify(&unrecorded.policy(), &unrecorded.ledger(), None).unwrap();
    let formats = found.findings.iter().filter(|finding| matches!(finding, Finding::Format { .. })).count();
    assert_eq!((formats, found.findings.len()), (3, 4), "{:?}", found.findings);
    let wide = WriteOptions { form: StoredForm::Dense(Dtype::F32), ..WriteOptions::default() };
    let exported = Exported::with(Some(FormatId::mxfp8()), &wide, true);
    let found = verify(&exported.policy(), &exported.ledger(), None).unwrap();
    assert!(found.findings.is_empty() && !found.is_equal(), "nothing was compared: that is no success");
}

#[test]
fn two_directories_part_at_a_tensor_or_a_key() {
    let (a, b) = (Exported::new(Some(FormatId::mxfp8())), Exported::new(Some(FormatId::mxfp8())));
    let same = diff_directories(&a.policy(), &b.policy()).unwrap();
    assert!(same.is_equal() && same.first.is_none() && same.equal_files == 3);
    let config = b.policy().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("10000.0", "20000.0")).unwrap();
    let other_key = diff_directories(&a.policy(), &b.policy()).unwrap();
    assert!(!other_key.is_equal() && other_key.differing_tensors == 0);
    assert!(matches!(&other_key.files[..], [FileDifference { file, .. }] if file == "config.json"));
    assert_eq!(other_key.config.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["rope_theta"]);
    let other = Exported::new(Some(FormatId::nvfp4()));
    let formats = diff_directories(&a.policy(), &other.policy()).unwrap();
    assert_eq!(formats.differing_tensors, 3);
    assert!(matches!(&formats.first, Some((name, Ok(TensorDifference::Kind { .. }))) if name.contains("layers.0.mlp")));
    assert_eq!(Side::A.other(), Side::B);
}

/// What engines read beside the weights is no parameter; it is compared as what it is, bytes of a file.
#[test]
fn two_directories_part_at_any_byte_of_any_file() {
    let [a, b] = [(); 2].map(|()| Exported::new(Some(FormatId::nvfp4())));
    let diff = || diff_directories(&a.policy(), &b.policy()).unwrap();
    let change = |file: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = b.policy().join(file);
        let original = fs::read(&path).unwrap_or_default();
        let mut bytes = original.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let found = diff();
        assert!(!found.is_equal() && found.unopened.iter().all(Option::is_none), "{file}");
        match original.is_empty() {
            true => fs::remove_file(&path).unwrap(),
            false => fs::write(&path, original).unwrap(),
        }
        assert!(diff().is_equal());
        found
    };
    let weights = fs::read(b.policy().join("model.safetensors")).unwrap();
    let (header_bytes, metadata) = safetensors::SafeTensors::read_metadata(&weights).unwrap();
    let scale = metadata.tensors().into_iter().find(|(name, _)| name.ends_with(".input_scale")).unwrap();
    let offset = header_bytes + 8 + scale.1.data_offsets.0;
    let found = change("model.safetensors", &|bytes| bytes[offset] ^= 1);
    assert_eq!((found.differing_tensors, found.files.len(), found.equal_files), (0, 1, 3));
    let FileCause::Byte { offset_bytes, tensor, .. } = &found.files[0].cause else { panic!("{:?}", found.files) };
    assert_eq!((*offset_bytes, tensor.as_ref()), (offset as u64, Some(&scale.0)));
    assert!(found.files[0].to_string().contains(&format!("byte {offset}, in `{}`", scale.0)), "{}", found.files[0]);

    for file in ["generation_config.json", "hf_quant_config.json"] {
        let found = change(file, &|bytes| bytes.push(b' '));
        let ends = |difference: &FileDifference| match &difference.cause {
            FileCause::Byte { values: [None, Some(b' ')], tensor: None, .. } => difference.file == file,
            _ => false,
        };
        assert!(matches!(&found.files[..], [difference] if ends(difference)), "{:?}", found.files);
    }
    let found = change("tokenizer.json", &|bytes| bytes.extend(b"{}"));
    let only = |side| FileDifference { file: "tokenizer.json".to_owned(), cause: FileCause::OnlyIn(side) };
    assert_eq!(found.files, [only(Side::B)]);
    let found = diff_directories(&b.policy(), &a.policy()).unwrap();
    assert!(found.is_equal());

    fs::write(b.policy().join("config.json"), "{").unwrap();
    let found = diff();
    assert!(!found.is_equal() && found.files.len() == 1 && found.equal_tensors == 0);
    assert!(found.unopened[0].is_none() && found.unopened[1].is_some());
}
