use super::*;
use crate::format::FormatId;
use crate::model::{
    Architecture, AttentionConfig, MlpConfig, ModelConfig, MoeConfig, RopeConfig, RopePairing, RopeScaling,
    RouterConfig,
};
use crate::network::{Network, Role};
use crate::tensor::Dtype;

/// A DeepSeek-like model: one dense layer, then routed and shared experts.
pub(super) fn deepseek(layers: usize) -> Network {
    let moe = MlpConfig::Moe(MoeConfig {
        experts: 4,
        experts_per_token: 2,
        intermediate_size: 32,
        shared_experts: 1,
        router: RouterConfig::SigmoidGrouped { groups: 2, groups_per_token: 1, normalize: true, scaling_factor: 1.0 },
    });
    let attention = AttentionConfig::Mla {
        heads: 2,
        q_lora_rank: Some(32),
        kv_lora_rank: 32,
        qk_nope_head_dim: 16,
        qk_rope_head_dim: 16,
        v_head_dim: 16,
        bias: false,
    };
    let mut mlps = vec![moe; layers];
    mlps[0] = MlpConfig::Dense { intermediate_size: 64, bias: false };
    network(Architecture::DeepseekV3, attention, mlps)
}

pub(super) fn dense(layers: usize, intermediate_size: usize) -> Network {
    let attention = AttentionConfig::Grouped {
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        qkv_bias: true,
        output_bias: false,
        qk_norm: true,
    };
    network(Architecture::Qwen3, attention, vec![MlpConfig::Dense { intermediate_size, bias: false }; layers])
}

fn network(architecture: Architecture, attention: AttentionConfig, mlps: Vec<MlpConfig>) -> Network {
    Network::new(&ModelConfig {
        architecture,
        vocab_size: 32,
        hidden_size: 32,
        context_tokens: 64,
        rms_norm_eps: 1e-6,
        rope: RopeConfig { theta: 1e4, rotary_dim: 16, pairing: RopePairing::Halves, scaling: RopeScaling::Default },
        tie_word_embeddings: false,
        attention,
        mlps,
        eos_token_ids: vec![],
        bos_token_id: None,
    })
}

fn quantized(network: &Network, map: &PrecisionMap) -> Vec<String> {
    let ids = network.ids().filter(|id| matches!(map.entry(*id).format, TensorFormat::Quantized(_)));
    ids.map(|id| network.parameter(id).name.clone()).collect()
}

fn roles(network: &Network, map: &PrecisionMap) -> Vec<Role> {
    let ids = network.ids().filter(|id| matches!(map.entry(*id).format, TensorFormat::Quantized(_)));
    let mut roles: Vec<Role> = ids.map(|id| network.parameter(id).role).collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

pub(super) const BF16: TensorFormat = TensorFormat::Dense(Dtype::Bf16);

#[test]
fn every_recipe_is_a_row_of_the_design_table() {
    use BackwardMode::{Dequantized, HighPrecision, Quantized};
    let table = [
        ("bf16", None, HighPrecision),
        ("mxfp8", Some("mxfp8"), Quantized),
        ("mxfp8-high-precision", Some("mxfp8"), HighPrecision),
        ("mxfp8-dequantized", Some("mxfp8"), Dequantized),
        ("nvfp4-high-precision", Some("nvfp4"), HighPrecision),
        ("nvfp4-dequantized", Some("nvfp4"), Dequantized),
        ("fp8-block", Some("fp8-block"), Quantized),
        ("fp8-block-high-precision", Some("fp8-block"), HighPrecision),
        ("fp8-block-dequantized", Some("fp8-block"), Dequantized),
    ];
    assert_eq!(Recipe::ALL.map(Recipe::name), table.map(|(name, ..)| name));
    let model = deepseek(4);
    for (name, format, backward) in table {
        let map = resolve(&model, name.parse().unwrap(), &[]).unwrap();
        assert_eq!(map.recipe(), name);
        let found = map.entries().iter().find(|entry| matches!(entry.format, TensorFormat::Quantized(_)));
        assert_eq!(found.map(|entry| entry.format.to_string()).as_deref(), format, "{name}");
        assert!(map.entries().iter().all(|entry| match entry.format {
            TensorFormat::Dense(_) => entry.backward == HighPrecision,
            TensorFormat::Quantized(_) => entry.backward == backward,
        }));
    }
}

#[test]
fn the_last_15_percent_of_layers_rounded_up_stay_bf16() {
    for (layers, tail) in [(48, 8), (1, 1), (2, 1), (4, 1), (6, 1), (7, 2), (20, 3), (40, 6), (61, 10), (100, 15)] {
        let model = dense(layers, 64);
        let map = resolve(&model, Recipe::Mxfp8, &[]).unwrap();
        let is_bf16 = |layer: usize| {
            let mut ids = model.ids().filter(|id| model.parameter(*id).layer == Some(layer));
            ids.all(|id| map.entry(id).format == BF16)
        };
        let high: Vec<usize> = (0..layers).filter(|layer| is_bf16(*layer)).collect();
        assert_eq!(high, (layers - tail..layers).collect::<Vec<_>>(), "{layers} layers");
    }
}

#[test]
fn exceptions_stay_in_high_precision() {
    let model = deepseek(4);
    for recipe in [Recipe::Mxfp8, Recipe::Fp8BlockDequantized] {
        let map = resolve(&model, recipe, &[]).unwrap();
        let expected = [
            Role::AttentionO,
            Role::MlaQDown,
            Role::MlaKvDown,
            Role::ExpertGate,
            Role::ExpertUp,
            Role::ExpertDown,
            Role::MlpGate,
            Role::MlpUp,
            Role::MlpDown,
        ];
        assert_eq!(roles(&model, &map), expected);
    }
    let map = resolve(&model, Recipe::Nvfp4Dequantized, &[]).unwrap();
    assert_eq!(roles(&model, &map), [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown]);
    for id in model.ids().filter(|id| model.parameter(*id).role == Role::RouterBias) {
        assert_eq!(map.entry(id).format, TensorFormat::Dense(Dtype::F32));
    }
}

#[test]
fn nvfp4_takes_the_mlp_of_a_dense_model_and_says_so() {
    let model = dense(4, 64);
    let map = resolve(&model, Recipe::Nvfp4HighPrecision, &[]).unwrap();
    assert_eq!(roles(&model, &map), [Role::MlpGate, Role::MlpUp, Role::MlpDown]);
    let notes = Recipe::Nvfp4HighPrecision.notes(&model);
    assert!(notes.len() == 1 && notes[0].contains("no routed experts"), "{notes:?}");
    assert!(Recipe::Nvfp4HighPrecision.notes(&deepseek(4)).is_empty());
    assert!(Recipe::Mxfp8.notes(&model).is_empty());
    let notes = Recipe::Mxfp8.notes(&dense(1, 64));
    assert!(notes.len() == 1 && notes[0].contains("every layer"), "{notes:?}");
}

#[test]
fn unknown_recipe_names_the_nearest_and_all_known() {
    let error = "nvfp4-dequantised".parse::<Recipe>().unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, PrecisionError::UnknownRecipe { nearest: Some(nearest), .. } if nearest == "nvfp4-dequantized")
    );
    assert!(Recipe::ALL.iter().all(|recipe| text.contains(recipe.name())), "{text}");
    assert!(serde_json::from_str::<Recipe>("\"mxfp4\"").unwrap_err().to_string().contains("unknown recipe"));
}

#[test]
fn overrides_come_first_and_the_first_match_wins() {
    let model = deepseek(8);
    let mxfp8 = || TensorFormat::Quantized(FormatId::mxfp8());
    let overrides = [
        Rule::name("model.layers.2.*.o_proj.weight", mxfp8()),
        Rule { layers: Layers::Range(2, 4), ..Rule::roles(&[Role::AttentionO], BF16) },
        Rule { layers: Layers::First(1), ..Rule::roles(&[Role::AttentionO], mxfp8()) }
            .with_backward(BackwardMode::Quantized),
    ];
    let map = resolve(&model, Recipe::Nvfp4Dequantized, &overrides).unwrap();
    let o = |layer: usize| map.entry(model.find(&format!("model.layers.{layer}.self_attn.o_proj.weight")).unwrap());
    assert_eq!((&o(2).format, o(2).backward), (&mxfp8(), BackwardMode::Dequantized));
    assert_eq!((&o(3).format, o(3).backward), (&BF16, BackwardMode::HighPrecision));
    assert_eq!((&o(0).format, o(0).backward), (&mxfp8(), BackwardMode::Quantized));
    assert_eq!(o(1).format, BF16);
    assert_eq!(o(2).rule, "model.layers.2.*.o_proj.weight -> mxfp8");
}

#[test]
fn an_override_that_decides_nothing_is_an_error() {
    let model = dense(4, 64);
    let resolved = |rules: &[Rule]| resolve(&model, Recipe::Mxfp8, rules);
    let nothing = Rule::roles(&[Role::ExpertGate], BF16);
    assert!(
        matches!(resolved(&[nothing]), Err(PrecisionError::RuleWithoutEffect { rule, cause: NoEffect::MatchesNothing }) if rule == "expert-gate -> bf16")
    );
    let shadowed = [Rule::roles(&[Role::MlpGate, Role::MlpUp], BF16), Rule::name("*.gate_proj.weight", BF16)];
    let error = resolved(&shadowed).unwrap_err();
    let taken = "all 4 that meet its conditions are taken by rule 1, `mlp-gate+mlp-up -> bf16`";
    assert!(error.to_string().contains("*.gate") && error.to_string().ends_with(taken), "{error}");
    for layers in [Layers::Range(3, 3), Layers::First(0), Layers::LastPercent(0), Layers::LastPercent(101)] {
        assert!(matches!(resolved(&[Rule::layers(layers, BF16)]), Err(PrecisionError::BadRule { .. })));
    }
}

#[test]
fn a_gate_up_pair_is_never_split() {
    let model = dense(4, 64);
    for rule in [
        Rule::name("model.layers.1.mlp.up_proj.weight", BF16),
        Rule::roles(&[Role::MlpGate], TensorFormat::Quantized(FormatId::mxfp8()))
            .with_backward(BackwardMode::Quantized),
    ] {
        let error = resolve(&model, Recipe::Nvfp4Dequantized, &[rule]).unwrap_err();
        let PrecisionError::PairSplit { gate, up, .. } = &error else { panic!("{error:?}") };
        assert!(gate.ends_with("gate_proj.weight") && up.ends_with("up_proj.weight"));
    }
}

#[test]
fn what_cannot_be_quantized_is_refused_by_name() {
    let model = dense(4, 64);
    let mxfp8 = || TensorFormat::Quantized(FormatId::mxfp8());
    for role in [Role::Embedding, Role::Norm, Role::Bias] {
        let result = resolve(&model, Recipe::Bf16, &[Rule::roles(&[role], mxfp8())]);
        assert!(matches!(result, Err(PrecisionError::NotQuantizable { role: named, .. }) if named == role));
    }
    assert!(resolve(&model, Recipe::Bf16, &[Rule::roles(&[Role::Head], mxfp8())]).is_ok());
    let unknown = Rule::roles(&[Role::Head], "mxfp9".parse().unwrap());
    match resolve(&model, Recipe::Bf16, &[unknown]) {
        Err(PrecisionError::UnknownFormat { format, known, .. }) => {
            assert_eq!(format, "mxfp9");
            assert!(known.contains(&"nvfp4".to_owned()));
        }
        other => panic!("{other:?}"),
    }
    let odd = dense(4, 63);
    match resolve(&odd, Recipe::Nvfp4Dequantized, &[]) {
        Err(PrecisionError::DoesNotFit { tensor, shape, .. }) => {
            assert_eq!((tensor.as_str(), shape.as_slice()), ("model.layers.0.mlp.down_proj.weight", &[32, 63][..]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn digest_covers_format_and_backward_mode() {
    let model = dense(4, 64);
    let mut digests: Vec<_> =
        Recipe::ALL.iter().map(|recipe| resolve(&model, *recipe, &[]).unwrap().digest()).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), Recipe::ALL.len());
    // The same decisions in other words.
    let rules = [Rule::name("*.mlp.*", BF16)];
    let reworded = [Rule::roles(&[Role::MlpGate, Role::MlpUp, Role::MlpDown], BF16)];
    let digest = |rules: &[Rule]| resolve(&model, Recipe::Mxfp8, rules).unwrap().digest();
    assert_eq!(digest(&rules), digest(&reworded));
}

#[test]
fn rules_are_read_from_toml_and_back() {
    let text = r#"
        roles = ["expert-gate", "expert-up"]
        layers = { range = [2, 4] }
        name = "*.gate_proj.weight"
        format = "mxfp8"
        backward = "high-precision"
    "#;
    let rule: Rule = toml::from_str(text).unwrap();
    assert_eq!((rule.layers.clone(), rule.backward), (Layers::Range(2, 4), Some(BackwardMode::HighPrecision)));
    assert_eq!(toml::from_str::<Rule>(&toml::to_string(&rule).unwrap()).unwrap(), rule);
    let short: Rule = toml::from_str("layers = { last-percent = 15 }\nformat = \"bf16\"").unwrap();
    assert_eq!(short, Rule::layers(Layers::LastPercent(15), BF16));
    for wrong in ["format = \"bf16\"\nlayer = 1", "roles = [\"experts\"]\nformat = \"bf16\"", "format = \"MXFP8\""] {
        assert!(toml::from_str::<Rule>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_table_counts_every_tensor_and_byte() {
    let model = deepseek(8);
    let map = resolve(&model, Recipe::Nvfp4Dequantized, &[]).unwrap();
    let table = PrecisionTable::new(&model, &map);
    assert_eq!(table.rows.iter().map(|row| row.tensors).sum::<usize>(), model.parameters.len());
    let gates = table.rows.iter().find(|row| row.role == "expert-gate" && row.format == "nvfp4").unwrap();
    // Layers 1 to 5 of 8 (layer 0 is dense, ceil(1.2) = 2 stay BF16), 4 experts of [32, 32].
    assert_eq!((gates.layers.as_str(), gates.tensors, gates.elements), ("1-5", 20, 20 * 1024));
    assert_eq!((gates.bf16_bytes, gates.bytes), (20 * 2048, Some(20 * (512 + 64 + 4))));
    assert_eq!(quantized(&model, &map).len(), 60);
    let text = table.to_string();
    assert!(text.contains(&map.digest().to_string()) && text.contains("expert-gate") && text.contains("6-7"), "{text}");
}
