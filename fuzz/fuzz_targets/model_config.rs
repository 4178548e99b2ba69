//! `config.json` of any content, and the network that it describes.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::Network;
use miles_core::precision::{PrecisionTable, Recipe, resolve};
use miles_core::tensor::Dtype;

fuzz_target!(|bytes: &[u8]| {
    let Ok(json) = serde_json::from_slice(bytes) else { return };
    let path = Path::new("config.json");
    let Ok(config) = HuggingFaceConfig::from_json(path, json) else { return };
    let again = HuggingFaceConfig::from_json(path, config.stored_as(Dtype::Bf16, None)).unwrap();
    assert_eq!(again.model(), config.model());
    assert_eq!(again.layout(), None);
    let network = Network::new(config.model());
    for parameter in &network.parameters {
        let (rows, cols) = parameter.rows_cols();
        assert_eq!(rows * cols, parameter.elements(), "{}", parameter.name);
    }
    if let Ok(map) = resolve(&network, Recipe::Nvfp4HighPrecision, &[]) {
        PrecisionTable::new(&network, &map).to_string();
    }
});
