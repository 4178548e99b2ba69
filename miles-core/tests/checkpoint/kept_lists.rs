//! Lists of kept modules as engines read them: every engine finds every module that is in high precision, and no other.
//!
//! The lookups are those of vLLM and SGLang, rewritten from their description; a module of an engine may join several of
//! the checkpoint's.

use std::path::Path;

use miles_core::checkpoint::{Checkpoint, Mxfp8Layout, WriteOptions, write_checkpoint};
use miles_core::precision::{Layers, Recipe, Rule, TensorFormat};
use serde_json::Value;

use crate::files::{fixture, open, quantized};

/// A module of an engine: its name, and the checkpoint's modules that it joins.
struct Module {
    name: String,
    members: Vec<String>,
}

/// What an engine builds for the layers of a checkpoint.
fn modules(checkpoint: &Checkpoint) -> Vec<Module> {
    const JOINT: [(&str, &[&str]); 4] = [
        ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
        ("gate_up_proj", &["gate_proj", "up_proj"]),
        // vLLM and SGLang; the query of a model may not be compressed.
        ("fused_qkv_a_proj", &["q_a_proj", "kv_a_proj_with_mqa"]),
        ("fused_qkv_a_proj_with_mqa", &["q_a_proj", "kv_a_proj_with_mqa"]),
    ];
    let stored: Vec<&str> =
        checkpoint.network().parameters.iter().filter_map(|p| p.name.strip_suffix(".weight")).collect();
    let mut modules: Vec<Module> = Vec::new();
    let mut add = |name: String, members: Vec<String>| {
        if modules.iter().all(|module| module.name != name) {
            modules.push(Module { name, members });
        }
    };
    for name in &stored {
        let (base, own) = name.rsplit_once('.').unwrap_or(("", name));
        if let Some((experts, _)) = name.split_once(".experts.") {
            let inside = format!("{experts}.experts.");
            let members = stored.iter().filter(|other| other.starts_with(&inside)).map(|other| (*other).to_owned());
            add(format!("{experts}.experts"), members.collect());
            continue;
        }
        let joints: Vec<_> = JOINT.iter().filter(|(_, members)| members.contains(&own)).collect();
        for (joint, members) in &joints {
            add(format!("{base}.{joint}"), members.iter().map(|member| format!("{base}.{member}")).collect());
        }
        let is_linear = checkpoint.network().find(&format!("{name}.weight")).unwrap();
        if joints.is_empty() && checkpoint.network().parameter(is_linear).is_linear {
            add((*name).to_owned(), vec![(*name).to_owned()]);
        }
    }
    modules
}

/// Exact names, with the members of a joint module looked up one by one; `None` when they disagree.
fn exact(list: &[String], module: &Module) -> Option<bool> {
    let listed = |name: &String| list.contains(name);
    if listed(&module.name) {
        return Some(true);
    }
    let found = module.members.iter().filter(|member| listed(member)).count();
    if found == 0 { Some(false) } else { (found == module.members.len()).then_some(true) }
}

/// vLLM, `fp8` and `compressed-tensors`.
fn vllm(list: &[String], module: &Module) -> Option<bool> {
    if module.name.ends_with(".experts") {
        return Some(list.iter().any(|entry| entry.contains(&module.name)));
    }
    exact(list, module)
}

/// A pattern whose last character stands for any others.
fn pattern(entry: &str, module: &Module) -> bool {
    entry.strip_suffix('*').is_some_and(|start| !start.contains('*') && module.name.starts_with(start))
}

/// vLLM, `modelopt` and `mxfp8`: then any entry within the name, then patterns.
fn vllm_modelopt(list: &[String], module: &Module) -> Option<bool> {
    let found = |entry: &String| module.name.contains(entry.as_str()) || pattern(entry, module);
    Some(vllm(list, module)? || list.iter().any(found))
}

/// SGLang, `fp8` and `mxfp8`: entries that end at a dot of the name.
fn sglang(list: &[String], module: &Module) -> Option<bool> {
    let path = |entry: &String| {
        module.name.strip_prefix(entry.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    Some(exact(list, module)? || list.iter().any(path))
}

/// SGLang, `modelopt`: whole names, patterns, and parts of the joint projections of latent attention whatever their layer.
fn sglang_modelopt(list: &[String], module: &Module) -> Option<bool> {
    const PARTS: [&str; 4] = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"];
    let own = module.name.rsplit('.').next().unwrap();
    let part = |entry: &String| PARTS.iter().any(|part| entry.rsplit('.').next() == Some(*part) && own.contains(part));
    Some(list.contains(&module.name) || list.iter().any(|entry| pattern(entry, module) || part(entry)))
}

/// A format, the words of MXFP8, where the directory lists its kept modules, and who reads them there.
type Case<'a> = (&'a str, Mxfp8Layout, &'a [(&'a str, String)], &'a [Lookup]);
type Lookup = (&'static str, fn(&[String], &Module) -> Option<bool>);

fn list(dir: &Path, file: &str, pointer: &str) -> Vec<String> {
    let value: Value = serde_json::from_slice(&std::fs::read(dir.join(file)).unwrap()).unwrap();
    serde_json::from_value(value.pointer(pointer).unwrap().clone()).unwrap()
}

#[test]
fn every_engine_finds_every_module_that_is_kept_and_no_other() {
    let (inline, config) = ("/quantization_config", "config.json");
    let cases: [Case<'_>; 5] = [
        (
            "fp8-block",
            Mxfp8Layout::ScaleInv,
            &[(config, format!("{inline}/modules_to_not_convert"))],
            &[("vllm", vllm), ("sglang", sglang)],
        ),
        (
            "mxfp8",
            Mxfp8Layout::ScaleInv,
            &[(config, format!("{inline}/modules_to_not_convert")), (config, format!("{inline}/ignored_layers"))],
            &[("sglang", sglang), ("vllm modelopt", vllm_modelopt)],
        ),
        (
            "mxfp8",
            Mxfp8Layout::ModelOpt,
            &[(config, format!("{inline}/ignore")), ("hf_quant_config.json", "/quantization/exclude_modules".into())],
            &[("vllm modelopt", vllm_modelopt)],
        ),
        (
            "nvfp4",
            Mxfp8Layout::ScaleInv,
            &[(config, format!("{inline}/ignore")), ("hf_quant_config.json", "/quantization/exclude_modules".into())],
            &[("vllm modelopt", vllm_modelopt), ("sglang modelopt", sglang_modelopt)],
        ),
        ("fp8-channel", Mxfp8Layout::ScaleInv, &[(config, format!("{inline}/ignore"))], &[("vllm", vllm)]),
    ];
    for family in ["deepseek-v3", "qwen3-moe", "qwen3-moe-sharded", "llama3-rope-scaled"] {
        let original = open(&fixture(family));
        for (format, mxfp8, lists, lookups) in &cases {
            let format: TensorFormat = format.parse().unwrap();
            // The roles of the recipe, in another format: its last layers, heads, routers and latent projections are kept.
            let recipe = if format.to_string() == "nvfp4" { Recipe::Nvfp4HighPrecision } else { Recipe::Mxfp8 };
            let map = miles_core::precision::resolve(original.network(), recipe, &[]).unwrap();
            let codes = |name: &str| {
                let id = original.network().find(&format!("{name}.weight")).unwrap();
                matches!(map.entry(id).format, TensorFormat::Quantized(_))
            };
            let rule = |id| Rule::name(&original.network().parameter(id).name, format.clone());
            let is_codes = |id: &_| matches!(map.entry(*id).format, TensorFormat::Quantized(_));
            let rules: Vec<Rule> = original.network().ids().filter(is_codes).map(rule).collect();
            let snapshot = quantized(&original, Recipe::Bf16, &rules);
            let out = tempfile::tempdir().unwrap();
            let dir = out.path().join("policy");
            let options = WriteOptions { mxfp8: *mxfp8, ..WriteOptions::default() };
            write_checkpoint(&snapshot, &original.template(), &dir, &options).unwrap();
            for (file, pointer) in *lists {
                let list = list(&dir, file, pointer);
                for (engine, excluded) in *lookups {
                    let mut kept = 0;
                    for module in modules(&original) {
                        let expected = module.members.iter().all(|member| !codes(member));
                        kept += usize::from(expected);
                        let what = format!("{family}, {format} {mxfp8:?}, {engine}, {pointer}: {}", module.name);
                        assert_eq!(excluded(&list, &module), Some(expected), "{what}");
                    }
                    assert!(kept > 2, "{family}: something is kept");
                }
            }
        }
    }
}

/// The layer that predicts further tokens is no part of the policy and keeps its own precision in every engine.
#[test]
fn a_layer_that_predicts_further_tokens_is_kept_in_every_engine() {
    let original = open(&fixture("deepseek-v3"));
    let beside =
        |own: &str| Module { name: format!("model.layers.3.{own}"), members: vec![format!("model.layers.3.{own}")] };
    for (format, pointer, excluded) in [
        ("fp8-block", "/quantization_config/modules_to_not_convert", sglang as fn(&[String], &Module) -> Option<bool>),
        ("mxfp8", "/quantization_config/ignored_layers", vllm_modelopt),
        ("nvfp4", "/quantization_config/ignore", vllm_modelopt),
        ("nvfp4", "/quantization_config/ignore", sglang_modelopt),
    ] {
        let rules = [
            Rule::layers(Layers::Range(0, 1), "bf16".parse().unwrap()),
            Rule::name("*.mlp.experts.*", format.parse().unwrap()),
        ];
        let snapshot = quantized(&original, Recipe::Bf16, &rules);
        let out = tempfile::tempdir().unwrap();
        let dir = out.path().join("policy");
        write_checkpoint(&snapshot, &original.template(), &dir, &WriteOptions::default()).unwrap();
        let list = list(&dir, "config.json", pointer);
        for own in ["mlp.experts", "self_attn.o_proj", "eh_proj", "mlp.shared_experts.down_proj"] {
            assert_eq!(excluded(&list, &beside(own)), Some(true), "{format}: {own}");
        }
        assert_eq!(
            excluded(&list, &Module { name: "model.layers.1.mlp.experts".into(), members: Vec::new() }),
            Some(false)
        );
    }
}
