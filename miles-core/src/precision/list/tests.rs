use proptest::prelude::*;

use super::super::tests::{BF16, deepseek, dense};
use super::super::{
    Layers, MapDocument, PartitionAxis, PartitionPlan, PrecisionMap, PrecisionTable, Recipe, RulePartition,
    ShapeCondition, TensorFormat, check_backend, resolve, resolve_list, resolve_with,
};
use super::*;
use crate::format::{FormatId, Partition};
use crate::network::Role;
use crate::tensor::Dtype;

fn format(name: &str) -> TensorFormat {
    name.parse().unwrap()
}

fn two() -> PartitionPlan {
    PartitionPlan::new(2, PartitionAxis::Intermediate).unwrap()
}

fn list(rules: Vec<Rule>) -> RuleList {
    RuleList { name: "own".to_owned(), backward: BackwardMode::Dequantized, rules }
}

fn resolved(inventory: &Inventory, list: &RuleList) -> Result<PrecisionMap, PrecisionError> {
    resolve_list(inventory, list, &[], PartitionPlan::WHOLE)
}

#[test]
fn a_recipe_is_a_list_that_is_printed_read_and_resolved_to_the_same_map() {
    let model = deepseek(8);
    for recipe in Recipe::ALL {
        let list = recipe.list(&model);
        assert_eq!((list.name.as_str(), &list.rules), (recipe.name(), &recipe.rules(&model)));
        let text = toml::to_string(&list).unwrap();
        let read: RuleList = toml::from_str(&text).unwrap();
        assert_eq!(read, list, "{text}");
        let map = resolved(&model, &RuleList { name: "edited".to_owned(), ..read }).unwrap();
        assert_eq!(map.recipe(), "edited");
        assert_eq!(map.digest(), resolve(&model, recipe, &[]).unwrap().digest(), "{recipe}");
    }
    for wrong in ["name = \"x\"\nrules = []", "name = \"x\"\nbackward = \"quantized\"\nrules = []\nrecipe = \"mxfp8\""]
    {
        assert!(toml::from_str::<RuleList>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_list_that_leaves_a_tensor_out_names_it() {
    let model = dense(2, 64);
    match resolved(&model, &list(vec![Rule::name("model.*", BF16)])) {
        Err(PrecisionError::Undecided { list, tensor }) => assert_eq!((&*list, &*tensor), ("own", "lm_head.weight")),
        other => panic!("{other:?}"),
    }
    let head = model.find("lm_head.weight").unwrap();
    assert!(matches!(list(Vec::new()).why(&model, head), Err(PrecisionError::Undecided { .. })));
}

#[test]
fn why_names_the_deciding_rule_and_those_that_come_later() {
    let model = deepseek(8);
    let overrides = [Rule::name("*.experts.3.*", format("mxfp8"))];
    let list = Recipe::Nvfp4Dequantized.list(&model).with_overrides(&overrides);
    let id = model.find("model.layers.7.mlp.experts.3.gate_proj.weight").unwrap();
    let why = list.why(&model, id).unwrap();
    assert_eq!((why.decided.position, why.rules), (1, list.rules.len()));
    let later: Vec<&str> = why.later.iter().map(|rule| rule.rule.as_str()).collect();
    let all = ["last 15 % of layers -> bf16", "expert-gate+expert-up+expert-down -> nvfp4", "everything -> bf16"];
    assert_eq!(later, all);
    let map = resolved(&model, &list).unwrap();
    assert_eq!(map.entry(id).rule, why.decided.rule);
    let text = why.to_string();
    assert!(
        text.starts_with("model.layers.7.mlp.experts.3.gate_proj.weight: decided by rule 1, `*.experts.3.*"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 4);
}

#[test]
fn uses_tell_idle_rules_apart() {
    let model = dense(4, 64);
    let list = list(vec![
        Rule::roles(&[Role::MlpGate, Role::MlpUp], BF16),
        Rule { layers: Layers::First(2), ..Rule::name("*.mlp.*", BF16) },
        Rule::name("*.mlp.gate_proj.*", BF16),
        Rule::roles(&[Role::ExpertGate], BF16),
        Rule::everything(BF16),
    ]);
    let uses = list.uses(&model);
    let counts: Vec<(usize, usize)> = uses.iter().map(|rule_use| (rule_use.matched, rule_use.decided)).collect();
    let all = model.parameters.len();
    assert_eq!(counts, [(8, 8), (6, 2), (4, 0), (0, 0), (all, all - 10)]);
    assert_eq!(uses[3].no_effect(), Some(NoEffect::MatchesNothing));
    match uses[2].no_effect() {
        Some(NoEffect::Taken { tensors: 4, by }) => assert_eq!(by, [list.at(0)]),
        other => panic!("{other:?}"),
    }
    assert_eq!(uses[1].no_effect(), None);
    assert_eq!(uses[4].taken_by, [list.at(0), list.at(1)]);
}

#[test]
fn shapes_are_conditions() {
    let model = deepseek(2);
    let narrow = ShapeCondition { max_rows: Some(4), min_cols: Some(32), ..ShapeCondition::default() };
    let rule = Rule::everything(format("f32")).with_shape(narrow);
    assert_eq!(rule.to_string(), "rows <= 4, cols >= 32 -> f32");
    for parameter in &model.parameters {
        let (rows, cols) = parameter.rows_cols();
        assert_eq!(rule.matches(parameter, 2), rows <= 4 && cols >= 32, "{}", parameter.name);
    }
    let text = "shape = { min-rows = 48, cols-multiple-of = 32 }\nformat = \"mxfp8\"";
    let rule: Rule = toml::from_str(text).unwrap();
    assert_eq!(toml::from_str::<Rule>(&toml::to_string(&rule).unwrap()).unwrap(), rule);
    let shape = rule.shape.clone().unwrap();
    assert_eq!((shape.min_rows, shape.cols_multiple_of, shape.max_cols), (Some(48), Some(32), None));
    for wrong in ["min_rows = 1", "rows = 1", "min-rows = -1", "min-rows = \"1\""] {
        assert!(toml::from_str::<Rule>(&format!("shape = {{ {wrong} }}\nformat = \"bf16\"")).is_err(), "{wrong}");
    }
    for (wrong, why) in [
        ("", "asks nothing"),
        ("min-rows = 2, max-rows = 1", "larger than the largest"),
        ("min-cols = 2, max-cols = 1", "larger than the largest"),
        ("rows-multiple-of = 0", "multiple of 0"),
    ] {
        let rule: Rule = toml::from_str(&format!("shape = {{ {wrong} }}\nformat = \"bf16\"")).unwrap();
        let error = resolve(&model, Recipe::Bf16, &[rule]).unwrap_err();
        assert!(matches!(error, PrecisionError::BadRule { why: found, .. } if found.contains(why)), "{wrong}");
    }
}

#[test]
fn a_rule_keeps_tensors_whole_and_the_digest_says_so() {
    let model = deepseek(8);
    let cut = |overrides: &[Rule], plan| resolve_with(&model, Recipe::Mxfp8Dequantized, overrides, &[], plan);
    let down = Rule::roles(&[Role::ExpertDown], format("mxfp8"));
    let (plain, kept) =
        (cut(std::slice::from_ref(&down), two()).unwrap(), cut(&[down.clone().whole()], two()).unwrap());
    for id in model.ids() {
        let parameter = model.parameter(id);
        let planned = if matches!(plain.entry(id).format, TensorFormat::Quantized(_)) {
            two().partition(parameter.role)
        } else {
            Partition::WHOLE
        };
        assert_eq!(plain.partition(&model, id), planned, "{}", parameter.name);
        let expected = if parameter.role == Role::ExpertDown { Partition::WHOLE } else { planned };
        assert_eq!(kept.partition(&model, id), expected, "{}", parameter.name);
    }
    assert_ne!(plain.digest(), kept.digest());
    // Without a cut there is nothing to keep.
    let whole = |rule: Rule| cut(&[rule], PartitionPlan::WHOLE).unwrap().digest();
    assert_eq!(whole(down.clone()), whole(down.clone().whole()));
    // Gate and up share an outer scale, and so their cut.
    let gate = Rule::roles(&[Role::ExpertGate], format("mxfp8")).whole();
    let error = cut(&[gate], two()).unwrap_err();
    assert!(matches!(error, PrecisionError::PairSplit { .. }), "{error}");
    assert!(error.to_string().contains("by rule `expert-gate -> mxfp8, whole`"), "{error}");
    // A cut through blocks is no error for what is kept.
    let three = PartitionPlan::new(3, PartitionAxis::Intermediate).unwrap();
    assert!(matches!(cut(&[], three), Err(PrecisionError::Uncuttable { .. })));
    let experts = Rule::roles(&[Role::ExpertGate, Role::ExpertUp, Role::ExpertDown], format("mxfp8")).whole();
    assert!(cut(&[experts], three).is_ok());
    let read: Rule = toml::from_str("format = \"mxfp8\"\npartition = \"whole\"").unwrap();
    assert_eq!(read, Rule::everything(format("mxfp8")).whole());
    assert!(toml::from_str::<Rule>("format = \"mxfp8\"\npartition = \"rows\"").is_err());
}

#[test]
fn predicted_layers_are_behind_the_last_one_and_stay_in_high_precision() {
    let network = deepseek(8);
    let mut parameters = network.parameters.clone();
    let mut predicted = parameters[network.find("model.layers.7.self_attn.o_proj.weight").unwrap().index()].clone();
    predicted.name = "model.layers.8.self_attn.o_proj.weight".to_owned();
    (predicted.role, predicted.layer) = (Role::Mtp, Some(8));
    parameters.push(predicted.clone());
    let model = Inventory::new(parameters, 8);
    for layers in [Layers::First(100), Layers::LastPercent(100)] {
        assert!(!Rule::layers(layers, BF16).matches(&predicted, 8));
    }
    assert!(Rule::layers(Layers::Range(8, 9), BF16).matches(&predicted, 8));
    let id = model.find(&predicted.name).unwrap();
    for recipe in Recipe::ALL {
        assert_eq!(resolve(&model, recipe, &[]).unwrap().entry(id).format, BF16, "{recipe}");
    }
    let asked = resolve(&model, Recipe::Mxfp8, &[Rule::roles(&[Role::Mtp], format("mxfp8"))]).unwrap();
    assert_eq!(asked.entry(id).format, format("mxfp8"));
    predicted.is_linear = false;
    let model = Inventory::new(vec![predicted], 8);
    let error = resolve(&model, Recipe::Bf16, &[Rule::roles(&[Role::Mtp], format("mxfp8"))]).unwrap_err();
    assert!(matches!(error, PrecisionError::NotQuantizable { role: Role::Mtp, .. }), "{error}");
}

#[test]
fn a_format_that_a_backend_lacks_is_refused_with_group_rule_and_what_it_can() {
    let model = deepseek(8);
    let map = resolve(&model, Recipe::Nvfp4Dequantized, &[]).unwrap();
    let can = [FormatId::mxfp8(), FormatId::fp8_block()];
    let error = check_backend(&model, &map, "cpu", &can).unwrap_err();
    let PrecisionError::BackendLacks { format, role, tensors, rule, tensor, .. } = &error else { panic!("{error:?}") };
    assert_eq!((format.as_str(), *role, *tensors), ("nvfp4", Role::ExpertGate, 20));
    assert_eq!(&**rule, "expert-gate+expert-up+expert-down -> nvfp4");
    assert_eq!(tensor, "model.layers.1.mlp.experts.0.gate_proj.weight");
    assert!(error.to_string().ends_with("(it can: mxfp8, fp8-block)"), "{error}");
    check_backend(&model, &map, "cpu", &[FormatId::nvfp4()]).unwrap();
}

#[test]
fn the_document_has_every_tensor_and_the_totals_of_the_table() {
    let model = deepseek(8);
    let map = resolve_with(&model, Recipe::Nvfp4Dequantized, &[], &[], two()).unwrap();
    let document = MapDocument::new(&model, &map);
    let table = PrecisionTable::new(&model, &map);
    assert_eq!((document.bf16_bytes, document.bytes), (table.bf16_bytes(), table.bytes()));
    assert_eq!(document.tensors.iter().map(|tensor| tensor.bytes).sum::<Option<usize>>(), document.bytes);
    let json = serde_json::to_value(&document).unwrap();
    assert_eq!(json["tensors"].as_array().unwrap().len(), model.parameters.len());
    assert_eq!(json["digest"], map.digest().to_string());
    let gate = document.tensors.iter().position(|tensor| tensor.role == Role::ExpertGate).unwrap();
    let gate = &json["tensors"][gate];
    assert_eq!(
        (gate["layer"].as_u64(), gate["expert"].as_u64(), gate["role"].as_str()),
        (Some(1), Some(0), Some("expert-gate"))
    );
    assert_eq!((gate["format"].as_str(), gate["backward"].as_str()), (Some("nvfp4"), Some("dequantized")));
    // Codes, block scales and an outer scale for each of two shards.
    assert_eq!(gate["bytes"].as_u64(), Some(512 + 64 + 2 * 4));
    assert!(gate["pair"].as_str().unwrap().ends_with("up_proj.weight") && gate["partition"].is_string());
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let linear = [Role::AttentionO, Role::MlaQDown, Role::ExpertGate, Role::ExpertUp, Role::ExpertDown, Role::MlpDown];
    let layers = prop_oneof![
        Just(Layers::All),
        (1..5_usize).prop_map(Layers::First),
        (1..=100_u8).prop_map(Layers::LastPercent),
        (0..4_usize, 1..4_usize).prop_map(|(first, count)| Layers::Range(first, first + count)),
    ];
    let names = ["*", "*.experts.*", "*.experts.1.*", "model.layers.*", "*_proj.weight"];
    let shapes = [
        ShapeCondition { min_rows: Some(33), ..ShapeCondition::default() },
        ShapeCondition { cols_multiple_of: Some(32), ..ShapeCondition::default() },
    ];
    (
        prop::sample::subsequence(linear.to_vec(), 1..=6),
        layers,
        prop::option::of(prop::sample::select(names.to_vec())),
        prop::option::of(prop::sample::select(shapes.to_vec())),
        prop::sample::select(vec!["bf16", "f32", "mxfp8", "fp8-block", "nvfp4", "nvfp4/te-2.13"]),
        prop::option::of(prop::sample::select(vec![BackwardMode::HighPrecision, BackwardMode::Dequantized])),
        prop::option::of(Just(RulePartition::Whole)),
    )
        .prop_map(|(roles, layers, name, shape, given, backward, partition)| Rule {
            roles,
            layers,
            name: name.map(str::to_owned),
            shape,
            format: format(given),
            backward,
            partition,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn maps_are_total_the_first_match_wins_and_the_digest_is_the_decisions(
        lists in prop::collection::vec(prop::collection::vec(any_rule(), 0..4), 2),
        shards in 1..3_u16,
    ) {
        let model = deepseek(4);
        let plan = PartitionPlan::new(shards, PartitionAxis::Hidden).unwrap();
        let mut maps: Vec<PrecisionMap> = Vec::new();
        for mut rules in lists {
            rules.push(Rule::everything(TensorFormat::Dense(Dtype::Bf16)));
            let list = list(rules);
            let read: RuleList = toml::from_str(&toml::to_string(&list).unwrap()).unwrap();
            prop_assert_eq!(&read, &list);
            let map = match resolve_list(&model, &list, &[], plan) {
                Ok(map) => map,
                Err(PrecisionError::PairSplit { .. } | PrecisionError::Uncuttable { .. }) => return Ok(()),
                Err(error) => panic!("{error}"),
            };
            prop_assert_eq!(map.entries().len(), model.parameters.len());
            for id in model.ids() {
                let (parameter, entry) = (model.parameter(id), map.entry(id));
                let mut matching = list.rules.iter().filter(|rule| rule.matches(parameter, 4));
                let first = matching.next().unwrap();
                prop_assert_eq!(&entry.format, &first.format);
                prop_assert_eq!(&entry.rule, &first.to_string());
                let why = list.why(&model, id).unwrap();
                prop_assert_eq!(&why.decided.rule, &entry.rule);
                prop_assert_eq!(why.later.len(), matching.count());
                if let TensorFormat::Quantized(_) = entry.format {
                    prop_assert_eq!(entry.backward, first.backward.unwrap_or(list.backward));
                    let whole = first.partition.is_some() || plan.partition(parameter.role).is_whole();
                    prop_assert_eq!(entry.partition.is_whole(), whole);
                }
            }
            let uses = list.uses(&model);
            prop_assert_eq!(uses.iter().map(|rule_use| rule_use.decided).sum::<usize>(), model.parameters.len());
            maps.push(map);
        }
        let decisions = |map: &PrecisionMap| {
            let each = map.entries().iter().map(|entry| (entry.format.clone(), entry.backward, entry.partition));
            each.collect::<Vec<_>>()
        };
        prop_assert_eq!(maps[0].digest() == maps[1].digest(), decisions(&maps[0]) == decisions(&maps[1]));
    }

    /// One decision changed in any of its effects changes the digest.
    #[test]
    fn every_effect_changes_the_digest(rule in any_rule()) {
        let model = deepseek(4);
        let digest = |rule: Rule| {
            let list = list(vec![rule, Rule::everything(TensorFormat::Dense(Dtype::Bf16))]);
            let map = resolve_list(&model, &list, &[], two()).ok()?;
            let taken = list.uses(&model)[0].decided;
            Some((map.digest(), taken))
        };
        let rule = Rule { format: format("mxfp8"), backward: None, partition: None, ..rule };
        let Some((plain, taken)) = digest(rule.clone()) else { return Ok(()) };
        prop_assume!(taken > 0);
        let cuts = model.parameters.iter().any(|parameter| rule.matches(parameter, 4) && !two().partition(parameter.role).is_whole());
        for (changed, differs) in [
            (Rule { format: format("f32"), ..rule.clone() }, true),
            (rule.clone().with_backward(BackwardMode::HighPrecision), true),
            (rule.clone().with_backward(BackwardMode::Dequantized), false),
            (rule.clone().whole(), cuts),
        ] {
            let text = changed.to_string();
            if let Some((other, _)) = digest(changed) {
                prop_assert_eq!(other != plain, differs, "{}", text);
            }
        }
    }
}
