//! The trainer's state file.

use std::collections::BTreeMap;
use std::fs;

use miles_core::checkpoint::CheckpointError;
use miles_core::checkpoint::tensors::{StateReader, StateWriter};

use crate::files::raw;

fn shapes() -> Vec<(String, Vec<usize>)> {
    vec![
        ("b/moment".into(), vec![300, 400]),
        ("a".into(), vec![3]),
        ("none".into(), vec![0, 4]),
        ("scalar".into(), vec![]),
    ]
}

#[test]
fn arrays_and_text_come_back_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.safetensors");
    let text = BTreeMap::from([("step".to_owned(), "17".to_owned())]);
    let long: Vec<f32> = (0..120_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
    let mut writer = StateWriter::create(&path, &shapes(), &text).unwrap();
    writer.write("b/moment", &long).unwrap();
    writer.write("a", &[f32::NAN, -0.0, 1e-45]).unwrap();
    writer.write("none", &[]).unwrap();
    writer.write("scalar", &[2.5]).unwrap();
    assert!(!path.exists(), "the file appears when it is whole");
    writer.finish().unwrap();
    let reader = StateReader::open(&path).unwrap();
    assert_eq!(reader.text(), &text);
    let mut found: Vec<_> = reader.tensors().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
    let mut expected = shapes();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let mut values = vec![9.0; 7];
    reader.read("b/moment", &mut values).unwrap();
    assert!(values.iter().zip(&long).all(|(a, b)| a.to_bits() == b.to_bits()) && values.len() == long.len());
    reader.read("a", &mut values).unwrap();
    assert_eq!(values.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), [f32::NAN.to_bits(), 1 << 31, 1]);
    reader.read("none", &mut values).unwrap();
    assert!(values.is_empty());
    assert!(
        matches!(reader.read("c", &mut values), Err(CheckpointError::NoSuchTensor { tensor, .. }) if tensor == "c")
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_unfinished_file_leaves_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.safetensors");
    fs::write(&path, "old").unwrap();
    let create = || StateWriter::create(&path, &shapes(), &BTreeMap::new()).unwrap();
    let mut writer = create();
    writer.write("b/moment", &[0.0; 120_000]).unwrap();
    assert!(matches!(writer.finish(), Err(CheckpointError::Unfinished { tensor, .. }) if tensor == "a"));
    let mut writer = create();
    assert!(
        matches!(writer.write("a", &[0.0; 3]), Err(CheckpointError::NoSuchTensor { expected: Some(next), .. }) if next == "b/moment")
    );
    let short = writer.write("b/moment", &[0.0; 5]);
    assert!(matches!(short, Err(CheckpointError::WrongLength { expected: 120_000, actual: 5, .. })));
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn only_f32_is_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.safetensors");
    raw(&path, r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}"#, &[0; 2]);
    assert!(matches!(StateReader::open(&path), Err(CheckpointError::WrongDtype { found, .. }) if found == "BF16"));
}
