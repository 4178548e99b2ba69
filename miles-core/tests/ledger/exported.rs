//! A tiny model, quantized, exported and recorded: the smallest thing that a run leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miles_core::checkpoint::{StoredForm, Template, WriteOptions, write_checkpoint};
use miles_core::format::FormatId;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, ParamId};
use miles_core::policy::{
    ExportEvent, FileDigest, Ledger, PolicyContext, PolicyVersion, RuleQuantizer, Snapshot, WeightSource,
    quantize_policy,
};
use miles_core::precision::{PrecisionMap, Recipe, Rule, resolve};
use miles_core::random::{Coordinates, Stream, normal};
use serde_json::json;
use tempfile::TempDir;

/// Values that depend on seed, parameter and place alone.
pub struct Values<'a> {
    pub network: &'a Network,
    pub seed: u64,
}

impl WeightSource for Values<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        let at =
            |token: usize| Coordinates { prompt: id.index() as u64, token: token as u32, ..Coordinates::default() };
        into.clear();
        into.extend((0..self.network.parameter(id).elements()).map(|i| normal(self.seed, Stream::Data, at(i)) as f32));
        Ok(())
    }
}

/// One directory with `policy/` and `ledger.jsonl`.
pub struct Exported {
    dir: TempDir,
    pub snapshots: Vec<Snapshot>,
}

pub fn config(dir: &Path) -> HuggingFaceConfig {
    let json = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 16,
        "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 16, "vocab_size": 8, "max_position_embeddings": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "eos_token_id": 0, "attention_bias": false, "torch_dtype": "bfloat16"
    });
    HuggingFaceConfig::from_json(&dir.join("config.json"), json.as_object().unwrap().clone()).unwrap()
}

pub fn map(network: &Network, format: Option<FormatId>) -> Arc<PrecisionMap> {
    let rules: Vec<Rule> = format
        .into_iter()
        .map(|format| serde_json::from_value(json!({ "name": "model.layers.0.mlp.*", "format": format })).unwrap())
        .collect();
    Arc::new(resolve(network, Recipe::Bf16, &rules).unwrap())
}

impl Exported {
    /// Versions 0 and 1, of which the last is exported.
    pub fn new(format: Option<FormatId>) -> Self {
        Self::with(format, &WriteOptions::default(), true)
    }

    pub fn with(format: Option<FormatId>, options: &WriteOptions, is_recorded: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sidecars = dir.path().join("sidecars");
        fs::create_dir(&sidecars).unwrap();
        fs::write(sidecars.join("generation_config.json"), "{\"eos_token_id\": 0}\n").unwrap();
        let config = config(dir.path());
        let network = Arc::new(Network::new(config.model()));
        let ledger = Ledger::append(&dir.path().join("ledger.jsonl")).unwrap();
        let map = map(&network, format);
        let make = |version: u64| {
            let source = Values { network: &network, seed: version };
            let context = PolicyContext { run: "tiny", step: 0, version: PolicyVersion(version), ledger: &ledger };
            quantize_policy(&network, &map, &RuleQuantizer, &source, context).unwrap()
        };
        let snapshots = vec![make(0), make(1)];
        let policy = dir.path().join("policy");
        write_checkpoint(&snapshots[1], &Template { config, sidecar_dir: Some(sidecars) }, &policy, options).unwrap();
        if is_recorded {
            let stamp = snapshots[1].stamp();
            let event = ExportEvent {
                run: "tiny".to_owned(),
                step: 0,
                version: stamp.version,
                precision_map: snapshots[1].map().digest(),
                policy_digest: stamp.digest,
                as_held: options.form == StoredForm::AsHeld,
                files: FileDigest::of_directory(&policy).unwrap(),
            };
            ledger.record_export(&event).unwrap();
        }
        Exported { dir, snapshots }
    }

    pub fn policy(&self) -> PathBuf {
        self.dir.path().join("policy")
    }

    pub fn ledger(&self) -> PathBuf {
        self.dir.path().join("ledger.jsonl")
    }
}
