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

use crate::files::{Tensor, Tensors, bf16, store};
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
            check_values(&one, recipe);
        }
    }
}

/// Every tensor of a converted directory is what its format's rule makes of the values, pairs together.
fn check_values(dir: &Path, recipe: Recipe) {
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
    assert_eq!(quantized > 0, recipe != Recipe::Bf16);
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
