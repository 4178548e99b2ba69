//! The safetensors state file of a trainer, of any content.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::checkpoint::tensors::{StateReader, StateWriter};
use miles_fuzz::{Scratch, same_bits};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("state-file"));

fuzz_target!(|bytes: &[u8]| {
    let dir = SCRATCH.fill(&[("state.safetensors", bytes)]);
    let Ok(state) = StateReader::open(&dir.join("state.safetensors")) else { return };
    let tensors: Vec<(String, Vec<usize>)> =
        state.tensors().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
    let values: Vec<Vec<f32>> = tensors.iter().map(|(name, shape)| read(&state, name, shape)).collect();
    // What was read is written, and comes back.
    let path = dir.join("again.safetensors");
    let mut writer = StateWriter::create(&path, &tensors, state.text()).unwrap();
    for ((name, _), values) in tensors.iter().zip(&values) {
        writer.write(name, values).unwrap();
    }
    writer.finish().unwrap();
    let again = StateReader::open(&path).unwrap();
    assert_eq!(again.text(), state.text());
    for ((name, shape), values) in tensors.iter().zip(&values) {
        assert!(same_bits(&read(&again, name, shape), values), "{name}");
    }
});

fn read(state: &StateReader, name: &str, shape: &[usize]) -> Vec<f32> {
    let mut values = vec![1.0];
    state.read(name, &mut values).unwrap();
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
    values
}
