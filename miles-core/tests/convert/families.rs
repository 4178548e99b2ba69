//! Families without a forward pass, in every way in which they are stored.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use miles_core::checkpoint::{ContractSidecar, StoredModel};
use miles_core::convert::verify;
use miles_core::format::{QuantizeSpec, Source, builtin_rule};
use miles_core::names::{Outline, StoredTensor, inventory};
use miles_core::precision::{Recipe, TensorFormat};
use safetensors::Dtype;
use serde_json::{Map, Value};

use crate::files::{Tensor, Tensors, bf16, copy, edit, fixture, load, store};
use crate::support::{contents, noise, options, run, weights};

const FAMILIES: [(&str, &str); 5] = [
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
    fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap()
    }

    /// The model with its experts packed, as it is in memory.
    fn packed(&self) -> Shapes {
        let mut shapes = self.stored.clone();
        shapes.retain(|name, _| self.in_memory.is_empty() || !name.contains(".experts."));
        shapes.extend(self.in_memory.clone());
        shapes
    }

    /// A directory of tensors of these shapes: every parameter has the same values however it is stored.
    fn write(&self, shapes: &Shapes, dir: &Path) {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("config.json"), serde_json::to_vec(&self.config).unwrap()).unwrap();
        let outline = Outline::from_json(Path::new("config.json"), &self.config).unwrap();
        let headers: Vec<StoredTensor> = shapes
            .iter()
            .map(|(name, shape)| StoredTensor { name: name.clone(), dtype: Dtype::BF16, shape: shape.clone() })
            .collect();
        let named = inventory(&outline, &headers).unwrap();
        let mut values: Vec<Vec<f32>> = headers.iter().map(|t| noise(&t.name, t.shape.iter().product())).collect();
        for (parameter, place) in named.inventory.parameters.iter().zip(&named.places) {
            let own = noise(&parameter.name, parameter.elements());
            let stored = &mut values[place.tensor];
            let Some(slab) = place.slab else {
                *stored = own;
                continue;
            };
            let span: Vec<u8> = slab.span().flat_map(|index| (index as u32).to_le_bytes()).collect();
            let places = slab.gather(&span, 4);
            for (value, place) in own.iter().zip(places.chunks_exact(4)) {
                stored[u32::from_le_bytes(place.try_into().unwrap()) as usize] = *value;
            }
        }
        let mut files = [Tensors::new(), Tensors::new()];
        let mut index = Map::new();
        for (number, (header, values)) in headers.iter().zip(values).enumerate() {
            let file = number % 2;
            index.insert(header.name.clone(), format!("{file}.safetensors").into());
            let tensor = Tensor { dtype: Dtype::BF16, shape: header.shape.clone(), bytes: bf16(&values) };
            files[file].insert(header.name.clone(), tensor);
        }
        files.iter().enumerate().for_each(|(file, tensors)| store(&dir.join(format!("{file}.safetensors")), tensors));
        let index = serde_json::json!({ "weight_map": index });
        fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// Field case O9: the same model stored apart and packed, its tensors strewn over two files, is the same directory.
#[test]
fn o9_packed_and_single_experts_become_the_same_directory() {
    let out = tempfile::tempdir().unwrap();
    for (family, text) in FAMILIES {
        let described = Described::of(text);
        let dir = |what: &str| out.path().join(format!("{family}-{what}"));
        described.write(&described.stored, &dir("apart"));
        described.write(&described.packed(), &dir("packed"));
        for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized] {
            let (one, other) = (dir(&format!("apart-{recipe}")), dir(&format!("packed-{recipe}")));
            let converted = run(&dir("apart"), recipe, &one, &options(2)).unwrap();
            run(&dir("packed"), recipe, &other, &options(3)).unwrap();
            assert!(contents(&one) == contents(&other), "{family} {recipe}");
            assert_eq!(verify(&one, &options(2), &|_| {}).unwrap().contract, converted.contract);
            assert!(check_values(&one) > 0 || recipe != Recipe::Mxfp8, "{family}: nothing is quantized");
        }
    }
}

/// Every quantized tensor of a converted directory is what its format's rule makes of the values, pairs together. Returns
/// how many there are.
fn check_values(dir: &Path) -> usize {
    let model = StoredModel::open(dir).unwrap();
    let mut quantized = 0;
    for id in model.inventory().ids() {
        let parameter = model.inventory().parameter(id);
        let found = model.read_stored(id).unwrap();
        let TensorFormat::Quantized(format) = model.stored_format(id) else { continue };
        let members = match parameter.pair {
            Some(other) if other < id => vec![other, id],
            Some(other) => vec![id, other],
            None => vec![id],
        };
        let values: Vec<Vec<u8>> = members
            .iter()
            .map(|id| {
                let parameter = model.inventory().parameter(*id);
                bf16(&noise(&parameter.name, parameter.elements()))
            })
            .collect();
        let (rows, cols) = parameter.rows_cols();
        let sources: Vec<Source<'_>> =
            values.iter().map(|bytes| Source::bf16(bytes.as_chunks().0, rows, cols, None).unwrap()).collect();
        let rule = builtin_rule(&format).unwrap();
        let made = rule.quantize_joint(&sources, &QuantizeSpec::weight(format)).unwrap();
        let own = members.iter().position(|member| *member == id).unwrap();
        assert_eq!(found.digest(), made[own].digest(), "{}", parameter.name);
        quantized += 1;
    }
    quantized
}

/// A multimodal wrapper keeps its prefixes and its other towers, and says that those are in high precision.
#[test]
fn a_wrapper_keeps_the_names_that_its_reader_expects() {
    let out = tempfile::tempdir().unwrap();
    let (_, text) = FAMILIES[4];
    let described = Described::of(text);
    let (model, output) = (out.path().join("model"), out.path().join("output"));
    described.write(&described.stored, &model);
    let converted = run(&model, Recipe::Mxfp8, &output, &options(2)).unwrap();
    let files = weights(&output);
    let tensors = crate::files::load(&output.join("model.safetensors"));
    let stored: Vec<&String> = described.stored.keys().filter(|name| !name.contains("experts")).collect();
    assert!(stored.iter().all(|name| tensors.contains_key(*name)), "{:?}", tensors.keys());
    let other: Vec<&String> = stored.into_iter().filter(|name| name.contains("visual")).collect();
    assert_eq!(converted.contract.beside.keys().collect::<Vec<_>>(), other);
    for name in &other {
        assert_eq!(tensors[*name].bytes, bf16(&noise(name, tensors[*name].shape.iter().product())));
    }
    let config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    let kept = config["quantization_config"]["modules_to_not_convert"].as_array().unwrap();
    let is_kept = |module: &str| kept.iter().any(|entry| entry == module);
    assert!(is_kept("model.language_model.layers.0.mlp.gate"), "{kept:?}");
    let visual = other.iter().find(|name| tensors[**name].shape.len() > 1 && name.ends_with(".weight")).unwrap();
    assert!(is_kept(visual.strip_suffix(".weight").unwrap()), "{kept:?}");
    assert!(output.join(ContractSidecar::FILE).exists());
}

/// The predicted layer of a model with a forward pass is no part of the policy; it is carried along in high precision.
#[test]
fn predicted_layers_are_carried_along_beside_the_policy() {
    let out = tempfile::tempdir().unwrap();
    let (plain, output) = (out.path().join("plain"), out.path().join("output"));
    let expected = run(&fixture("deepseek-v3"), Recipe::Mxfp8, &plain, &options(2)).unwrap();
    let model = copy("deepseek-v3");
    let mut beside = Tensors::new();
    edit(model.path(), |tensors| {
        let last: Vec<String> = tensors.keys().filter(|name| name.starts_with("model.layers.2.")).cloned().collect();
        for name in last {
            let (dtype, shape) = (tensors[&name].dtype, tensors[&name].shape.clone());
            let name = name.replace("layers.2.", "layers.3.");
            let values = noise(&name, shape.iter().product());
            let bytes = if dtype == Dtype::BF16 { bf16(&values) } else { f32_bytes(&values) };
            beside.insert(name, Tensor { dtype, shape, bytes });
        }
        for (name, shape) in [
            ("embed_tokens.weight", vec![160, 64]),
            ("enorm.weight", vec![64]),
            ("hnorm.weight", vec![64]),
            ("eh_proj.weight", vec![64, 128]),
            ("shared_head.norm.weight", vec![64]),
            ("shared_head.head.weight", vec![160, 64]),
        ] {
            let name = format!("model.layers.3.{name}");
            let bytes = bf16(&noise(&name, shape.iter().product()));
            beside.insert(name, Tensor { dtype: Dtype::BF16, shape, bytes });
        }
        for (name, Tensor { dtype, shape, bytes }) in &beside {
            let tensor = Tensor { dtype: *dtype, shape: shape.clone(), bytes: bytes.clone() };
            tensors.insert(name.clone(), tensor);
        }
    });
    let converted = run(model.path(), Recipe::Mxfp8, &output, &options(2)).unwrap();
    assert_eq!(converted.contract.policy, expected.contract.policy);
    assert_eq!(converted.contract.beside.len(), beside.len());
    let (tensors, without) = (load(&output.join("model.safetensors")), load(&plain.join("model.safetensors")));
    for (name, tensor) in &tensors {
        let same = beside.get(name).or_else(|| without.get(name)).unwrap();
        assert!((tensor.dtype, &tensor.shape, &tensor.bytes) == (same.dtype, &same.shape, &same.bytes), "{name}");
    }
    assert_eq!(tensors.len(), beside.len() + without.len());
    let verified = verify(&output, &options(2), &|_| {}).unwrap();
    assert_eq!(verified.tensors, without.keys().filter(|name| !name.ends_with("_scale_inv")).count() + beside.len());
    edit(&output, |tensors| tensors.get_mut("model.layers.3.eh_proj.weight").unwrap().bytes[0] ^= 1);
    let error = verify(&output, &options(2), &|_| {}).unwrap_err().to_string();
    assert!(error.contains("model.layers.3.eh_proj.weight"), "{error}");
    // A second conversion reads what the first one wrote.
    let again = out.path().join("again");
    edit(&output, |tensors| tensors.get_mut("model.layers.3.eh_proj.weight").unwrap().bytes[0] ^= 1);
    let recipe = Recipe::Fp8Block;
    assert_eq!(run(&output, recipe, &again, &options(2)).unwrap().contract.beside, converted.contract.beside);
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
