//! Precision rules of any content over a network with attention, dense layers and routed experts.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::Network;
use miles_core::precision::{PrecisionTable, Recipe, Rule, resolve};

static NETWORK: LazyLock<Network> = LazyLock::new(|| {
    let json = serde_json::from_slice(include_bytes!("../seeds/model_config/deepseek.json")).unwrap();
    Network::new(HuggingFaceConfig::from_json(Path::new("config.json"), json).unwrap().model())
});

#[derive(serde::Deserialize)]
struct Table {
    recipe: Recipe,
    #[serde(default)]
    rules: Vec<Rule>,
}

fuzz_target!(|text: &str| {
    let Ok(Table { recipe, rules }) = toml::from_str::<Table>(text) else { return };
    let Ok(map) = resolve(&NETWORK, recipe, &rules) else { return };
    assert_eq!(map.entries().len(), NETWORK.parameters.len());
    assert_eq!(resolve(&NETWORK, recipe, &rules).unwrap().digest(), map.digest());
    PrecisionTable::new(&NETWORK, &map).to_string();
    for rule in &rules {
        let text = serde_json::to_string(rule).unwrap();
        assert_eq!(&serde_json::from_str::<Rule>(&text).unwrap(), rule);
    }
});
