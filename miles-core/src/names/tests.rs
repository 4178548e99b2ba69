use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value};

use super::*;
use crate::format::{Orientation, Packing};
use crate::model::huggingface::HuggingFaceConfig;
use crate::network::{Inventory, Network, Role};

const FIXTURES: [&str; 7] =
    ["llama-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3", "qwen3-moe", "qwen3-moe-sharded", "deepseek-v3"];

const OTHERS: [(&str, &str); 5] = [
    ("glm4-moe", include_str!("../../../tests/data/names/glm4-moe.json")),
    ("gpt-oss", include_str!("../../../tests/data/names/gpt-oss.json")),
    ("qwen3-next", include_str!("../../../tests/data/names/qwen3-next.json")),
    ("qwen3.5-moe-text", include_str!("../../../tests/data/names/qwen3.5-moe-text.json")),
    ("qwen3.5-moe", include_str!("../../../tests/data/names/qwen3.5-moe.json")),
];

type Shapes = BTreeMap<String, Vec<usize>>;

#[derive(serde::Deserialize)]
struct Described {
    config: Map<String, Value>,
    stored: Shapes,
    in_memory: Shapes,
}

impl Described {
    fn of(name: &str) -> Self {
        let (_, text) = OTHERS.into_iter().find(|(family, _)| *family == name).unwrap();
        serde_json::from_str(text).unwrap()
    }

    fn outline(&self) -> Outline {
        Outline::from_json(Path::new("config.json"), &self.config).unwrap()
    }

    /// The model with its experts packed, as it is in memory.
    fn packed(&self) -> Shapes {
        let mut shapes = self.stored.clone();
        shapes.retain(|name, _| self.in_memory.is_empty() || !name.contains(".experts."));
        shapes.extend(self.in_memory.clone());
        shapes
    }
}

fn headers(shapes: &Shapes) -> Vec<StoredTensor> {
    let stored = |(name, shape): (&String, &Vec<usize>)| StoredTensor {
        name: name.clone(),
        dtype: Dtype::BF16,
        shape: shape.clone(),
    };
    shapes.iter().map(stored).collect()
}

fn fixture(name: &str) -> (Map<String, Value>, Network) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/fixtures").join(name).join("config.json");
    let json: Map<String, Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let network = Network::new(HuggingFaceConfig::from_json(&path, json.clone()).unwrap().model());
    (json, network)
}

fn shapes(inventory: &Inventory) -> Shapes {
    inventory.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.shape.clone())).collect()
}

fn role(named: &NamedInventory, name: &str) -> Role {
    named.inventory.parameter(named.inventory.find(name).unwrap_or_else(|| panic!("{name}"))).role
}

/// Every stored element belongs to exactly one parameter.
fn check_cover(named: &NamedInventory, stored: &[StoredTensor]) {
    let mut uses: Vec<Vec<u8>> = stored.iter().map(|tensor| vec![0; tensor.shape.iter().product()]).collect();
    for (parameter, place) in named.inventory.parameters.iter().zip(&named.places) {
        let used = &mut uses[place.tensor];
        match place.slab {
            None => used.iter_mut().for_each(|count| *count += 1),
            Some(slab) => {
                assert_eq!(slab.shape(), <[usize; 2]>::from(parameter.rows_cols()), "{}", parameter.name);
                let numbers: Vec<u8> = slab.span().flat_map(|index| (index as u32).to_le_bytes()).collect();
                let elements = slab.gather(&numbers, 4);
                assert_eq!(elements.len(), 4 * parameter.elements());
                for element in elements.chunks_exact(4) {
                    used[u32::from_le_bytes(element.try_into().unwrap()) as usize] += 1;
                }
            }
        }
    }
    let aside = [&named.other[..], &named.recomputed, named.tied_head.as_slice()].concat();
    for (index, used) in uses.iter().enumerate() {
        let expected = u8::from(!aside.contains(&index));
        assert!(used.iter().all(|count| *count == expected), "{}", stored[index].name);
    }
}

#[test]
fn families_with_a_forward_pass_have_the_parameters_of_their_network() {
    for name in FIXTURES {
        let (json, network) = fixture(name);
        let outline = Outline::from_json(Path::new("config.json"), &json).unwrap();
        assert_eq!(outline.family, Family::from(network.config.architecture));
        assert_eq!(outline.layers, network.config.layer_count());
        let named = inventory(&outline, &headers(&shapes(&network))).unwrap();
        assert_eq!(named.inventory.parameters, network.parameters, "{name}");
        assert_eq!(named.inventory.layer_count(), network.layer_count());
        for parameter in &network.parameters {
            let parsed = outline.family.parse(&parameter.name).unwrap();
            assert_eq!((parsed.layer, parsed.expert), (parameter.layer, parameter.expert));
            assert_eq!(parsed.kind, Kind::Parameter(parameter.role));
        }
    }
}

#[test]
fn prefixes_of_wrappers_change_nothing() {
    let (json, network) = fixture("qwen3-moe");
    let outline = Outline::from_json(Path::new("config.json"), &json).unwrap();
    for (prefix, other) in [
        ("model.language_model.", ("lm_head.", "lm_head.")),
        ("language_model.model.", ("lm_head.", "language_model.lm_head.")),
    ] {
        let mut stored = headers(&shapes(&network));
        for tensor in &mut stored {
            tensor.name = tensor.name.replace("model.", prefix).replace(other.0, other.1);
        }
        assert_eq!(inventory(&outline, &stored).unwrap().inventory.parameters, network.parameters, "{prefix}");
    }
}

/// Field case O9: checkpoints and engines pack experts or keep them one by one, and neither may lose a tensor.
#[test]
fn o9_both_layouts_of_every_family_have_the_same_parameters() {
    for (family, _) in OTHERS {
        let described = Described::of(family);
        let outline = described.outline();
        let (apart, packed) = (headers(&described.stored), headers(&described.packed()));
        let one = inventory(&outline, &apart).unwrap_or_else(|error| panic!("{family}: {error}"));
        let other = inventory(&outline, &packed).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(one.inventory.parameters, other.inventory.parameters, "{family}");
        check_cover(&one, &apart);
        check_cover(&other, &packed);
        assert!(other.places.iter().any(|place| place.slab.is_some()), "{family} has packed experts");
        for parameter in &one.inventory.parameters {
            let is_half = ["gate_proj.weight", "up_proj.weight"].iter().any(|end| parameter.name.ends_with(end));
            assert_eq!(parameter.pair.is_some(), is_half, "{}", parameter.name);
            assert_eq!(parameter.is_linear, parameter.role.is_linear());
            assert!(!parameter.is_linear || parameter.shape.len() == 2, "{}", parameter.name);
        }
    }
    let (json, network) = fixture("qwen3-moe-sharded");
    let outline = Outline::from_json(Path::new("config.json"), &json).unwrap();
    for transposed in [false, true] {
        let mut stored = shapes(&network);
        stored.retain(|name, _| !name.contains(".experts."));
        let [experts, inner, hidden] = [outline.experts, outline.expert_size, outline.hidden_size];
        for layer in network.parameters.iter().filter(|parameter| parameter.role == Role::Router) {
            let base = layer.name.replace("gate.weight", "experts");
            let shape = |rows, cols| if transposed { vec![experts, cols, rows] } else { vec![experts, rows, cols] };
            stored.insert(format!("{base}.gate_up_proj"), shape(2 * inner, hidden));
            stored.insert(format!("{base}.down_proj"), shape(hidden, inner));
        }
        let named = inventory(&outline, &headers(&stored)).unwrap();
        assert_eq!(named.inventory.parameters, network.parameters);
        check_cover(&named, &headers(&stored));
    }
}

#[test]
fn families_without_a_forward_pass_have_their_roles() {
    let named = |family| {
        let described = Described::of(family);
        inventory(&described.outline(), &headers(&described.stored)).unwrap()
    };
    let next = named("qwen3-next");
    for (name, expected) in [
        ("linear_attn.in_proj_qkvz.weight", Role::LinearAttentionIn),
        ("linear_attn.in_proj_ba.weight", Role::LinearAttentionGates),
        ("linear_attn.conv1d.weight", Role::LinearAttentionConv),
        ("linear_attn.A_log", Role::LinearAttentionDecay),
        ("linear_attn.dt_bias", Role::LinearAttentionDecay),
        ("linear_attn.norm.weight", Role::Norm),
        ("linear_attn.out_proj.weight", Role::LinearAttentionOut),
        ("mlp.shared_expert.down_proj.weight", Role::SharedDown),
        ("mlp.shared_expert_gate.weight", Role::SharedExpertGate),
        ("mlp.gate.weight", Role::Router),
    ] {
        assert_eq!(role(&next, &format!("model.layers.0.{name}")), expected);
    }
    let text = named("qwen3.5-moe-text");
    assert_eq!(role(&text, "model.layers.0.linear_attn.in_proj_z.weight"), Role::LinearAttentionIn);
    assert_eq!(role(&text, "model.layers.0.linear_attn.in_proj_a.weight"), Role::LinearAttentionGates);
    let whole = named("qwen3.5-moe");
    assert_eq!(whole.inventory.parameters, text.inventory.parameters, "the vision tower is no part of the inventory");
    assert_eq!(whole.other.len(), 21);
    let oss = named("gpt-oss");
    assert_eq!(role(&oss, "model.layers.1.self_attn.sinks"), Role::AttentionSink);
    assert_eq!(role(&oss, "model.layers.1.mlp.router.bias"), Role::Bias);
    assert_eq!(role(&oss, "model.layers.1.mlp.experts.1.down_proj.bias"), Role::Bias);
    let glm = named("glm4-moe");
    assert_eq!(role(&glm, "model.layers.1.mlp.shared_experts.up_proj.weight"), Role::SharedUp);
    assert_eq!(role(&glm, "model.layers.1.mlp.gate.e_score_correction_bias"), Role::RouterBias);
}

/// gpt-oss multiplies by `gate_up_proj [E, H, 2 I]` from the right and takes gate from its even columns.
#[test]
fn gpt_oss_experts_are_read_from_interleaved_columns() {
    let described = Described::of("gpt-oss");
    let (outline, stored) = (described.outline(), headers(&described.stored));
    let named = inventory(&outline, &stored).unwrap();
    let [hidden, inner] = [outline.hidden_size, outline.expert_size];
    for (projection, label) in ["gate_proj", "up_proj"].into_iter().enumerate() {
        let id = named.inventory.find(&format!("model.layers.1.mlp.experts.1.{label}.weight")).unwrap();
        let place = &named.places[id.index()];
        assert_eq!(stored[place.tensor].name, "model.layers.1.mlp.experts.gate_up_proj");
        let packing = (Orientation::Transposed, Packing::GateUpInterleaved);
        assert_eq!(place.slab, Some(Slab::new(1, projection, packing, [inner, hidden])));
        // Row 5, column 3 is column 2 * 5 + projection of row 3 of the second expert.
        let slab = place.slab.unwrap();
        let numbers: Vec<u8> = slab.span().flat_map(|index| (index as u16).to_le_bytes()).collect();
        let at = 2 * (5 * hidden + 3);
        let element = u16::from_le_bytes(slab.gather(&numbers, 2)[at..at + 2].try_into().unwrap());
        assert_eq!(usize::from(element), hidden * 2 * inner + 3 * 2 * inner + 2 * 5 + projection);
    }
    // Square matrices do not say how they lie; the family does.
    let square = Outline { expert_size: hidden, ..outline };
    let mut shapes = described.stored.clone();
    for (name, shape) in &mut shapes {
        match name.rsplit('.').next().unwrap() {
            "gate_up_proj" => *shape = vec![2, hidden, 2 * hidden],
            "gate_up_proj_bias" => *shape = vec![2, 2 * hidden],
            "down_proj" => *shape = vec![2, hidden, hidden],
            _ => {}
        }
    }
    let named = inventory(&square, &headers(&shapes)).unwrap();
    let id = named.inventory.find("model.layers.0.mlp.experts.1.down_proj.weight").unwrap();
    let expected = Slab::new(1, 0, (Orientation::Transposed, Packing::Single), [hidden, hidden]);
    assert_eq!(named.places[id.index()].slab, Some(expected));
}

/// A predicted layer is an ordinary one and more; DeepSeek and GLM store it behind the last, Qwen apart.
#[test]
fn every_tensor_of_a_predicted_layer_is_mtp() {
    let (json, network) = fixture("deepseek-v3");
    let deepseek = Outline::from_json(Path::new("config.json"), &json).unwrap();
    let glm = Described::of("glm4-moe");
    let next = Described::of("qwen3-next");
    for (outline, base, last, own) in [
        (deepseek, shapes(&network), "model.layers.2.", "model.layers.3."),
        (glm.outline(), glm.stored, "model.layers.1.", "model.layers.2."),
        (next.outline(), next.stored, "model.layers.1.", "mtp.layers.0."),
    ] {
        let hidden = outline.hidden_size;
        let mut stored = base.clone();
        for (name, shape) in base.range(last.to_owned()..).take_while(|(name, _)| name.starts_with(last)) {
            stored.insert(name.replace(last, own), shape.clone());
        }
        let extra: &[(&str, Vec<usize>, bool)] = if own.starts_with("mtp") {
            &[
                ("mtp.fc.weight", vec![hidden, 2 * hidden], true),
                ("mtp.norm.weight", vec![hidden], false),
                ("mtp.pre_fc_norm_embedding.weight", vec![hidden], false),
                ("mtp.pre_fc_norm_hidden.weight", vec![hidden], false),
            ]
        } else {
            &[
                ("eh_proj.weight", vec![hidden, 2 * hidden], true),
                ("enorm.weight", vec![hidden], false),
                ("hnorm.weight", vec![hidden], false),
                ("embed_tokens.weight", vec![48, hidden], false),
                ("shared_head.norm.weight", vec![hidden], false),
                ("shared_head.head.weight", vec![48, hidden], true),
            ]
        };
        let full = |name: &str| if own.starts_with("mtp") { name.to_owned() } else { format!("{own}{name}") };
        stored.extend(extra.iter().map(|(name, shape, _)| (full(name), shape.clone())));
        let without = inventory(&outline, &headers(&base)).unwrap();
        let named = inventory(&outline, &headers(&stored)).unwrap();
        let count = without.inventory.parameters.len();
        assert_eq!(named.inventory.parameters[..count], without.inventory.parameters);
        assert!(without.inventory.parameters.iter().all(|parameter| parameter.role != Role::Mtp));
        let predicted = &named.inventory.parameters[count..];
        assert_eq!(predicted.len(), stored.len() - base.len());
        assert!(predicted.iter().all(|parameter| parameter.role == Role::Mtp));
        assert!(predicted.iter().filter(|p| p.name.starts_with(own)).all(|p| p.layer == Some(outline.layers)));
        for (name, _, is_linear) in extra {
            let id = named.inventory.find(&full(name)).unwrap();
            assert_eq!(named.inventory.parameter(id).is_linear, *is_linear, "{name}");
        }
        let gate = named.inventory.find(&format!("{own}mlp.experts.0.gate_proj.weight")).unwrap();
        assert!(named.inventory.parameter(gate).is_linear && named.inventory.parameter(gate).pair.is_some());

        // A predicted layer is whole or absent.
        let norm = format!("{own}input_layernorm.weight");
        stored.remove(&norm);
        match inventory(&outline, &headers(&stored)) {
            Err(NamesError::Missing { tensors, .. }) => assert_eq!(tensors, [norm]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_pattern_is_parsed_as_itself() {
    for (_, family) in Family::ARCHITECTURES {
        let patterns = family.patterns();
        assert!(patterns.len() >= 20, "{}", family.name());
        for pattern in patterns {
            let name = pattern.replace("{L}", "12").replace("{E}", "7");
            let parsed = match family.parse(&name) {
                Err(NamesError::Unreadable { .. }) => continue,
                other => other.unwrap(),
            };
            assert_eq!(parsed.canonical, name);
            assert_eq!(parsed.layer, pattern.contains("{L}").then_some(12), "{name}");
            assert_eq!(parsed.expert, pattern.contains("{E}").then_some(7), "{name}");
        }
    }
}

#[test]
fn unknown_names_come_with_the_nearest_known_one() {
    for (name, nearest) in [
        ("model.layers.3.self_attn.q_porj.weight", "model.layers.{L}.self_attn.q_proj.weight"),
        ("model.layers.3.mlp.experts.9.w1.weight", "model.layers.{L}.mlp.experts.{E}.up_proj.weight"),
        ("model.layers.03.self_attn.q_proj.weight", "model.layers.{L}.self_attn.q_proj.weight"),
        ("model.layers.3.mlp.experts.{E}.up_proj.weight", "model.layers.{L}.mlp.experts.{E}.up_proj.weight"),
        ("model.layers.3.linear_attn.A_log", "model.layers.{L}.input_layernorm.weight"),
        ("", "model.embed_tokens.weight"),
    ] {
        match Family::Qwen3Moe.parse(name) {
            Err(error @ NamesError::UnknownTensor { .. }) => {
                let text = error.to_string();
                assert!(text.contains(&format!("`{name}`")) && text.contains("Qwen3-MoE"), "{text}");
                let NamesError::UnknownTensor { nearest: found, .. } = error else { unreachable!() };
                assert_eq!(found, nearest, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let kind = |name: &str| Family::DeepseekV3.parse(name).unwrap().kind;
    let of = "model.layers.0.self_attn.o_proj.weight".to_owned();
    assert_eq!(kind("model.layers.0.self_attn.o_proj.weight_scale_inv"), Kind::Scale { of });
    assert_eq!(kind("model.layers.0.self_attn.rotary_emb.inv_freq"), Kind::Recomputed);
    assert!(Family::DeepseekV3.parse("model.layers.0.input_layernorm.weight_scale_inv").is_err());
}

#[test]
fn what_does_not_fit_the_model_is_refused_by_name() {
    let described = Described::of("glm4-moe");
    let outline = described.outline();
    let refused = |change: &dyn Fn(&mut Shapes)| {
        let mut stored = described.stored.clone();
        change(&mut stored);
        inventory(&outline, &headers(&stored)).unwrap_err()
    };
    let expert = |number: usize| format!("model.layers.1.mlp.experts.{number}.up_proj.weight");
    let error = refused(&|stored| drop(stored.remove(&expert(1))));
    assert_eq!(error, NamesError::Missing { place: "layer 1".into(), tensors: vec![expert(1)] });
    let error = refused(&|stored| drop(stored.insert(expert(2), vec![12, 16])));
    assert_eq!(error, NamesError::NoSuchExpert { tensor: expert(2), expert: 2, experts: 2 });
    let error = refused(&|stored| drop(stored.insert(expert(1), vec![12, 17])));
    assert!(matches!(error, NamesError::WrongShape { tensor, .. } if tensor == expert(1)));
    let dense = "model.layers.1.mlp.up_proj.weight".to_owned();
    let error = refused(&|stored| drop(stored.insert(dense.clone(), vec![24, 16])));
    assert_eq!(error, NamesError::Mixed { place: "layer 1".into(), tensors: vec![dense.clone()] });
    let far = "model.layers.9.input_layernorm.weight".to_owned();
    let error = refused(&|stored| drop(stored.insert(far.clone(), vec![16])));
    assert_eq!(error, NamesError::NoSuchLayer { tensor: far.clone(), layer: 9, layers: 2, predicted: 1 });
    let early = "model.layers.1.enorm.weight".to_owned();
    let error = refused(&|stored| drop(stored.insert(early.clone(), vec![16])));
    assert!(matches!(error, NamesError::UnknownTensor { tensor, .. } if tensor == early));
    let error = refused(&|stored| drop(stored.remove("lm_head.weight")));
    assert!(matches!(error, NamesError::Missing { tensors, .. } if tensors == ["lm_head.weight"]));
    let error = refused(&|stored| drop(stored.insert("layers.1.input_layernorm.weight".into(), vec![16])));
    assert!(
        matches!(error, NamesError::Duplicate { parameter, .. } if parameter == "model.layers.1.input_layernorm.weight")
    );
    let error = refused(&|stored| stored.extend(described.in_memory.clone()));
    assert!(matches!(error, NamesError::Duplicate { second, .. } if second.ends_with("_proj")), "both layouts at once");
    let scale = "model.layers.1.mlp.shared_experts.up_proj.weight_scale_inv".to_owned();
    let error = refused(&|stored| {
        stored.retain(|name, _| !name.contains("shared_experts"));
        stored.insert(scale.clone(), vec![1, 1]);
    });
    assert!(matches!(error, NamesError::OrphanScale { scale: found, .. } if found == scale));
    let error = refused(&|stored| drop(stored.insert("model.norm.weight".into(), vec![1 << 40, 1 << 40])));
    assert!(matches!(error, NamesError::WrongShape { .. }));
    let error = Family::GptOss.parse("model.layers.0.mlp.experts.down_proj_blocks").unwrap_err();
    assert!(error.to_string().contains("MXFP4"), "{error}");
    let oss = Described::of("gpt-oss");
    let mut stored = oss.stored.clone();
    stored.get_mut("model.layers.0.mlp.experts.gate_up_proj").unwrap().swap(1, 2);
    let error = inventory(&oss.outline(), &headers(&stored)).unwrap_err();
    assert!(matches!(error, NamesError::WrongShape { expected, .. } if expected == "[2, 16, 48]"));
}

#[test]
fn scales_and_tied_heads_belong_to_a_parameter() {
    let (json, network) = fixture("llama-tied");
    let outline = Outline::from_json(Path::new("config.json"), &json).unwrap();
    assert!(outline.tie_word_embeddings);
    let mut stored = shapes(&network);
    let embedding = stored["model.embed_tokens.weight"].clone();
    stored.insert("lm_head.weight".into(), embedding);
    stored.insert("model.layers.0.mlp.up_proj.weight_scale_inv".into(), vec![1, 1]);
    let stored = headers(&stored);
    let named = inventory(&outline, &stored).unwrap();
    assert_eq!(named.inventory.parameters, network.parameters);
    assert_eq!(stored[named.tied_head.unwrap()].name, "lm_head.weight");
    let up = &named.places[network.find("model.layers.0.mlp.up_proj.weight").unwrap().index()];
    assert!(up.scales.len() == 1 && stored[up.scales[0]].name.ends_with("up_proj.weight_scale_inv"));
}

#[test]
fn an_unknown_family_and_a_missing_size_name_file_and_key() {
    let described = Described::of("qwen3.5-moe");
    let outline = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut json = described.config.clone();
        change(&mut json);
        Outline::from_json(Path::new("dir/config.json"), &json).map_err(|error| error.to_string())
    };
    assert_eq!(outline(&|_| ()).unwrap().hidden_size, 16);
    let error =
        outline(&|json| drop(json.insert("architectures".into(), Value::from(vec!["GptOsForCausalLM"])))).unwrap_err();
    assert!(error.contains("dir/config.json") && error.contains("did you mean `GptOssForCausalLM`?"), "{error}");
    let error = outline(&|json| {
        json["text_config"].as_object_mut().unwrap().remove("moe_intermediate_size");
    })
    .unwrap_err();
    assert!(error.contains("`text_config.moe_intermediate_size` is missing"), "{error}");
    let error = outline(&|json| json["text_config"]["num_experts"] = Value::from(1 << 27)).unwrap_err();
    assert!(error.contains("num_experts") && error.contains("at most"), "{error}");
}
