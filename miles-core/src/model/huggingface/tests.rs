use std::fs;
use std::path::Path;

use serde_json::json;

use super::*;
use crate::model::{AttentionConfig, MlpConfig, RopePairing, RopeScaling, RouterConfig};

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 144, "vocab_size": 160,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "eos_token_id": 2, "bos_token_id": 1, "dtype": "bfloat16",
    })
}

fn qwen3_moe() -> Value {
    with(
        llama(),
        json!({
            "architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 32, "num_experts": 6,
            "num_experts_per_tok": 3,
        }),
    )
}

fn deepseek() -> Value {
    with(
        llama(),
        json!({
            "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "first_k_dense_replace": 1,
            "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        }),
    )
}

fn with(mut config: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().shift_remove(key);
    config
}

fn read(config: Value) -> Result<HuggingFaceConfig, ModelError> {
    HuggingFaceConfig::from_json(Path::new("dir/config.json"), config.as_object().unwrap().clone())
}

fn model(config: Value) -> ModelConfig {
    read(config).unwrap().model().clone()
}

#[track_caller]
fn contradiction(config: Value, expected_key: &str) {
    match read(config) {
        Err(ModelError::Contradiction { key, path, .. }) => {
            assert_eq!((key.as_str(), path.to_str()), (expected_key, Some("dir/config.json")));
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn unsupported(config: Value, expected_key: &str) {
    match read(config) {
        Err(error @ ModelError::Unsupported { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&format!("`{expected_key}`")) && text.contains("dir/config.json"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_generations_of_keys_give_the_same_model() {
    let old = with(
        qwen3_moe(),
        json!({
            "rope_theta": 500000.0, "rope_scaling": { "type": "linear", "factor": 4.0 }, "torch_dtype": "bfloat16",
        }),
    );
    let new = with(
        without(qwen3_moe(), "num_experts"),
        json!({
            "num_local_experts": 6, "rope_parameters": { "rope_theta": 500000, "rope_type": "linear", "factor": 4 },
        }),
    );
    let old_model = model(without(old, "dtype"));
    assert_eq!(old_model, model(new));
    assert_eq!((old_model.rope.theta, &old_model.rope.scaling), (500_000.0, &RopeScaling::Linear { factor: 4.0 }));
}

#[test]
fn two_generations_that_differ_are_a_contradiction() {
    contradiction(with(qwen3_moe(), json!({ "num_local_experts": 8 })), "num_local_experts");
    contradiction(
        with(llama(), json!({ "rope_theta": 1e4, "rope_parameters": { "rope_theta": 1e6 } })),
        "rope_parameters.rope_theta",
    );
    assert!(read(with(qwen3_moe(), json!({ "num_local_experts": 6 }))).is_ok());
}

#[test]
fn o17_every_eos_id_counts_and_generation_config_comes_first() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), llama().to_string()).unwrap();
    assert_eq!(HuggingFaceConfig::read(dir.path()).unwrap().model().eos_token_ids, [2]);
    let generation = dir.path().join("generation_config.json");
    fs::write(&generation, json!({ "eos_token_id": [100, 7, 42] }).to_string()).unwrap();
    assert_eq!(HuggingFaceConfig::read(dir.path()).unwrap().model().eos_token_ids, [7, 42, 100]);
    fs::write(&generation, json!({ "eos_token_id": null }).to_string()).unwrap();
    assert_eq!(HuggingFaceConfig::read(dir.path()).unwrap().model().eos_token_ids, [2]);
    fs::write(&generation, json!({ "eos_token_id": [7, 160] }).to_string()).unwrap();
    match HuggingFaceConfig::read(dir.path()) {
        Err(ModelError::Contradiction { path, key, .. }) => {
            assert_eq!((path, key.as_str()), (generation, "eos_token_id"))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(model(with(llama(), json!({ "eos_token_id": [5, 3, 5] }))).eos_token_ids, [3, 5]);
    assert!(model(with(llama(), json!({ "eos_token_id": null }))).eos_token_ids.is_empty());
}

#[test]
fn biases_and_norms_follow_the_family() {
    let flags = |config| match model(config).attention {
        AttentionConfig::Grouped { qkv_bias, output_bias, qk_norm, .. } => (qkv_bias, output_bias, qk_norm),
        AttentionConfig::Mla { .. } => panic!("grouped expected"),
    };
    let family = |name: &str, bias: bool| with(llama(), json!({ "architectures": [name], "attention_bias": bias }));
    assert_eq!(flags(family("LlamaForCausalLM", false)), (false, false, false));
    assert_eq!(flags(family("LlamaForCausalLM", true)), (true, true, false));
    assert_eq!(flags(family("Qwen2ForCausalLM", false)), (true, false, false));
    assert_eq!(flags(family("Qwen3ForCausalLM", false)), (false, false, true));
    let mlp = model(with(llama(), json!({ "mlp_bias": true }))).mlps[0].clone();
    assert_eq!(mlp, MlpConfig::Dense { intermediate_size: 144, bias: true });
}

#[test]
fn head_width_has_a_default() {
    let width = |config| match model(config).attention {
        AttentionConfig::Grouped { head_dim, .. } => head_dim,
        AttentionConfig::Mla { .. } => panic!("grouped expected"),
    };
    assert_eq!(width(llama()), 16);
    assert_eq!(width(with(llama(), json!({ "head_dim": 48 }))), 48);
    assert_eq!(width(with(llama(), json!({ "head_dim": null }))), 16);
    assert_eq!(width(with(llama(), json!({ "architectures": ["Qwen3ForCausalLM"] }))), 128);
    contradiction(with(llama(), json!({ "num_attention_heads": 6, "num_key_value_heads": 6 })), "num_attention_heads");
    contradiction(with(llama(), json!({ "head_dim": 15 })), "head_dim");
}

#[test]
fn sparse_layers_follow_step_list_and_first_dense() {
    let moe = |config| -> Vec<bool> { model(config).mlps.iter().map(|mlp| matches!(mlp, MlpConfig::Moe(_))).collect() };
    assert_eq!(moe(qwen3_moe()), [true, true, true]);
    assert_eq!(moe(with(qwen3_moe(), json!({ "decoder_sparse_step": 2 }))), [false, true, false]);
    assert_eq!(moe(with(qwen3_moe(), json!({ "mlp_only_layers": [0, 2] }))), [false, true, false]);
    assert_eq!(moe(deepseek()), [false, true, true]);
    assert_eq!(moe(with(deepseek(), json!({ "moe_layer_freq": 2 }))), [false, false, true]);
    assert_eq!(moe(with(deepseek(), json!({ "first_k_dense_replace": 3 }))), [false, false, false]);
}

#[test]
fn deepseek_is_read_whole() {
    let config = model(deepseek());
    assert_eq!((config.rope.rotary_dim, config.rope.pairing), (16, RopePairing::Interleaved));
    let MlpConfig::Moe(moe) = &config.mlps[1] else { panic!("experts expected") };
    let router = RouterConfig::SigmoidGrouped { groups: 4, groups_per_token: 2, normalize: true, scaling_factor: 2.5 };
    assert_eq!((moe.experts, moe.shared_experts, &moe.router), (8, 1, &router));
    let halves = model(with(deepseek(), json!({ "rope_interleave": false, "q_lora_rank": null })));
    assert_eq!(halves.rope.pairing, RopePairing::Halves);
    assert!(matches!(halves.attention, AttentionConfig::Mla { q_lora_rank: None, .. }));
    let absent = read(without(deepseek(), "q_lora_rank"));
    assert!(matches!(absent, Err(ModelError::MissingKey { key, .. }) if key == "q_lora_rank"));
}

#[test]
fn what_is_not_computed_is_refused_by_key() {
    unsupported(with(llama(), json!({ "hidden_act": "gelu" })), "hidden_act");
    unsupported(with(llama(), json!({ "use_sliding_window": true })), "use_sliding_window");
    unsupported(with(llama(), json!({ "layer_types": ["full_attention", "sliding_attention"] })), "layer_types");
    unsupported(
        with(llama(), json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0 } })),
        "rope_scaling.rope_type",
    );
    unsupported(with(llama(), json!({ "rope_parameters": { "rope_type": "dynamic" } })), "rope_parameters.rope_type");
    unsupported(with(llama(), json!({ "partial_rotary_factor": 0.5 })), "partial_rotary_factor");
    let yarn = json!({ "rope_scaling": { "type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0 } });
    unsupported(with(deepseek(), yarn), "rope_scaling.type");
    unsupported(with(deepseek(), json!({ "scoring_func": "softmax" })), "scoring_func");
    unsupported(with(deepseek(), json!({ "topk_method": "greedy" })), "topk_method");
}

#[test]
fn llama3_scaling_needs_all_its_numbers() {
    let rule = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128 });
    let config = |rule: &Value| with(llama(), json!({ "rope_scaling": rule }));
    assert!(matches!(model(config(&rule)).rope.scaling, RopeScaling::Llama3(scaling) if scaling.factor == 8.0));
    for key in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"] {
        let missing = read(config(&without(rule.clone(), key)));
        assert!(
            matches!(missing, Err(ModelError::MissingKey { key: named, .. }) if named == format!("rope_scaling.{key}"))
        );
    }
    contradiction(config(&with(rule, json!({ "high_freq_factor": 0.5 }))), "rope_scaling.high_freq_factor");
}

#[test]
fn sizes_that_cannot_hold_together_are_contradictions() {
    contradiction(with(llama(), json!({ "num_key_value_heads": 3 })), "num_key_value_heads");
    contradiction(with(qwen3_moe(), json!({ "num_experts_per_tok": 7 })), "num_experts_per_tok");
    contradiction(with(deepseek(), json!({ "n_group": 3 })), "n_group");
    contradiction(with(deepseek(), json!({ "n_group": 8, "topk_group": 8 })), "n_group");
    contradiction(with(deepseek(), json!({ "topk_group": 5 })), "topk_group");
    contradiction(with(deepseek(), json!({ "num_experts_per_tok": 5 })), "num_experts_per_tok");
    contradiction(with(deepseek(), json!({ "num_key_value_heads": 2 })), "num_key_value_heads");
}

#[test]
fn unknown_architecture_lists_the_known_ones_and_the_nearest() {
    let error = read(with(llama(), json!({ "architectures": ["LlamaForCausalLLM"] }))).unwrap_err();
    let ModelError::UnknownArchitecture { found, nearest, known, .. } = &error else { panic!("{error:?}") };
    assert_eq!((found.as_str(), nearest.as_deref(), known.len()), ("LlamaForCausalLLM", Some("LlamaForCausalLM"), 5));
    assert!(error.to_string().contains("DeepseekV3ForCausalLM"));
    assert!(matches!(read(without(llama(), "architectures")), Err(ModelError::MissingKey { .. })));
    assert!(matches!(read(with(llama(), json!({ "architectures": [] }))), Err(ModelError::WrongValue { .. })));
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    for key in [
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ] {
        assert!(matches!(read(without(llama(), key)), Err(ModelError::MissingKey { key: named, .. }) if named == key));
        for value in [json!("64"), json!(0), json!(-1), json!(1.5)] {
            let result = read(with(llama(), json!({ key: value })));
            assert!(matches!(result, Err(ModelError::WrongValue { key: named, .. }) if named == key));
        }
    }
}

#[test]
fn quantization_method_and_its_keys_are_validated() {
    let layout =
        |quantization: Value| read(with(llama(), json!({ "quantization_config": quantization }))).map(|c| c.layout());
    let fp8 = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    // O7: `fmt` and `activation_scheme` have documented defaults.
    assert_eq!(layout(fp8.clone()).unwrap(), Some(StoredLayout::Fp8Block { pow2_scales: false }));
    let pow2 = layout(with(fp8.clone(), json!({ "scale_fmt": "ue8m0" }))).unwrap();
    assert_eq!(pow2, Some(StoredLayout::Fp8Block { pow2_scales: true }));
    assert_eq!(layout(json!({ "quant_method": "mxfp8" })).unwrap(), Some(StoredLayout::Mxfp8));
    let nvfp4 = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" });
    assert_eq!(layout(nvfp4.clone()).unwrap(), Some(StoredLayout::Nvfp4));
    assert_eq!(layout(Value::Null).unwrap(), None);
    for (changed, key) in [
        (json!({ "quant_method": "gptq" }), "quant_method"),
        (json!({ "quant_method": "fp8" }), "weight_block_size"),
        (with(fp8.clone(), json!({ "fmt": "e5m2" })), "fmt"),
        (with(fp8, json!({ "activation_scheme": "static" })), "activation_scheme"),
        (json!({ "quant_method": "mxfp8", "weight_block_size": [1, 16] }), "weight_block_size"),
        (with(nvfp4.clone(), json!({ "quant_algo": "FP8" })), "quant_algo"),
        (with(nvfp4, json!({ "group_size": 32 })), "group_size"),
    ] {
        unsupported(with(llama(), json!({ "quantization_config": changed })), &format!("quantization_config.{key}"));
    }
    let unnamed = layout(json!({ "bits": 4 }));
    assert!(matches!(unnamed, Err(ModelError::MissingKey { key, .. }) if key == "quantization_config.quant_method"));
}

#[test]
fn writing_back_changes_storage_keys_only() {
    let original =
        with(llama(), json!({ "quantization_config": { "quant_method": "mxfp8" }, "auto_map": { "a": [1, 2.5] } }));
    let config = read(original.clone()).unwrap();
    let back = Value::Object(config.stored_as(Dtype::F32, None));
    assert_eq!(back, with(without(original.clone(), "quantization_config"), json!({ "dtype": "float32" })));
    let same = config.stored_as(Dtype::Bf16, Some(json!({ "quant_method": "mxfp8" })));
    assert_eq!(Value::Object(same).to_string(), original.to_string(), "order and spelling stay");
    let neither = read(without(original, "dtype")).unwrap().stored_as(Dtype::Bf16, None);
    assert_eq!(neither["torch_dtype"], "bfloat16");
}

#[test]
fn rejects_hostile_sizes_before_anything_is_built() {
    use crate::checkpoint::limits::{MAX_EXTENT, MAX_LAYERS, MAX_TENSORS};
    let too_many = json!({ "num_hidden_layers": MAX_LAYERS + 1 });
    assert!(
        matches!(read(with(llama(), too_many)), Err(ModelError::WrongValue { key, .. }) if key == "num_hidden_layers")
    );
    let too_wide = json!({ "hidden_size": MAX_EXTENT + 1 });
    assert!(matches!(read(with(llama(), too_wide)), Err(ModelError::WrongValue { key, .. }) if key == "hidden_size"));
    let experts = json!({ "num_experts": MAX_TENSORS / 3 });
    assert!(
        matches!(read(with(qwen3_moe(), experts)), Err(ModelError::WrongValue { key, .. }) if key == "num_experts")
    );
}

#[test]
fn rejects_files_that_are_too_large_or_not_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    assert!(matches!(HuggingFaceConfig::read(dir.path()), Err(ModelError::Io { path: named, .. }) if named == path));
    for text in ["{\"hidden_size\": ", "[]"] {
        fs::write(&path, text).unwrap();
        assert!(
            matches!(HuggingFaceConfig::read(dir.path()), Err(ModelError::Json { path: named, .. }) if named == path)
        );
    }
    File::create(&path).unwrap().set_len(MAX_JSON_BYTES + 1).unwrap();
    assert!(matches!(
        HuggingFaceConfig::read(dir.path()),
        Err(ModelError::TooLarge { limit_bytes: MAX_JSON_BYTES, .. })
    ));
}

#[test]
fn weights_that_cannot_be_counted_in_64_bits_are_refused_by_the_widest_key() {
    let huge = 1 << 28;
    let cases = [
        (
            with(llama(), json!({ "num_attention_heads": huge, "num_key_value_heads": 1, "head_dim": huge })),
            "num_attention_heads",
        ),
        (with(llama(), json!({ "hidden_size": huge, "head_dim": 8 })), "hidden_size"),
        (with(llama(), json!({ "intermediate_size": huge })), "intermediate_size"),
        (with(llama(), json!({ "vocab_size": huge })), "vocab_size"),
        (with(deepseek(), json!({ "kv_lora_rank": huge })), "kv_lora_rank"),
        (with(deepseek(), json!({ "q_lora_rank": huge })), "q_lora_rank"),
        (with(deepseek(), json!({ "n_shared_experts": huge })), "moe_intermediate_size"),
        (with(qwen3_moe(), json!({ "moe_intermediate_size": huge })), "moe_intermediate_size"),
    ];
    for (config, expected) in cases {
        match read(config) {
            Err(ModelError::WrongValue { key, .. }) => assert_eq!(key, expected),
            Err(other) => panic!("{expected}: {other}"),
            Ok(_) => panic!("{expected}: accepted"),
        }
    }
}

#[test]
fn the_largest_published_models_can_be_counted() {
    let published = with(
        deepseek(),
        json!({
            "hidden_size": 16384, "vocab_size": 262_144, "num_hidden_layers": 128, "num_attention_heads": 128,
            "num_key_value_heads": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 1024, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 4096,
        }),
    );
    assert_eq!(model(published).layer_count(), 128);
}
