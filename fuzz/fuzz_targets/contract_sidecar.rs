//! The contract sidecar of a converted directory, of any content.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::checkpoint::ContractSidecar;
use miles_core::precision::TensorFormat;
use miles_fuzz::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("contract-sidecar"));

fuzz_target!(|bytes: &[u8]| {
    let dir = SCRATCH.fill(&[(ContractSidecar::FILE, bytes)]);
    let Ok(Some(sidecar)) = ContractSidecar::read(&dir) else { return };
    for tensor in sidecar.tensors.values() {
        let is_cut = !sidecar.partition(tensor).is_whole();
        assert!(!is_cut || matches!(tensor.format, TensorFormat::Quantized(_)));
    }
    // What was read is written, and comes back.
    let text = sidecar.text().unwrap();
    let dir = SCRATCH.fill(&[(ContractSidecar::FILE, text.as_bytes())]);
    assert_eq!(ContractSidecar::read(&dir).unwrap(), Some(sidecar));
});
