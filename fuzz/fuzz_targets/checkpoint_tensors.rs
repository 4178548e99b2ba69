//! Checkpoint directories that nearly fit their `config.json`: real names and shapes, any bytes, a few defects.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use miles_core::checkpoint::Checkpoint;
use miles_core::format::ScaleKind;
use miles_core::format::{QuantizeSpec, builtin_rule};
use miles_core::model::huggingface::{HuggingFaceConfig, StoredLayout};
use miles_core::network::{Network, Role};
use miles_core::policy::PolicyVersion;
use miles_fuzz::{Scratch, tiled};
use serde_json::{Map, Value, json};

#[derive(Debug, Arbitrary)]
struct Case {
    model: u8,
    layout: Option<u8>,
    defects: Vec<Defect>,
    high_precision: u8,
    bytes: Vec<u8>,
}

#[derive(Debug, Arbitrary)]
struct Defect {
    tensor: u8,
    kind: Kind,
}

#[derive(Debug, Arbitrary)]
enum Kind {
    Missing,
    Renamed,
    Dtype(u8),
    Shape(Vec<u16>),
    Transposed,
    Offset(u8),
}

struct Stored {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    offset: u64,
}

const CONFIGS: [&str; 3] = [
    include_str!("../seeds/model_config/llama.json"),
    include_str!("../seeds/model_config/qwen3-moe.json"),
    include_str!("../seeds/model_config/deepseek.json"),
];
const LAYOUTS: [StoredLayout; 4] = [
    StoredLayout::Fp8Block { pow2_scales: false },
    StoredLayout::Fp8Block { pow2_scales: true },
    StoredLayout::Mxfp8,
    StoredLayout::Nvfp4,
];
const DTYPES: [(&str, usize); 8] =
    [("BF16", 16), ("F16", 16), ("F32", 32), ("F8_E4M3", 8), ("U8", 8), ("F8_E8M0", 8), ("I64", 64), ("F4", 4)];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("checkpoint-tensors"));

fuzz_target!(|case: Case| {
    let mut config: Map<String, Value> = serde_json::from_str(CONFIGS[usize::from(case.model) % 3]).unwrap();
    let layout = case.layout.map(|layout| LAYOUTS[usize::from(layout) % 4]);
    if let Some(layout) = layout {
        config.insert("quantization_config".to_owned(), declared(layout));
    }
    let parsed = HuggingFaceConfig::from_json(Path::new("config.json"), config.clone()).unwrap();
    assert_eq!(parsed.layout(), layout);
    let network = Network::new(parsed.model());
    let mut tensors = stored(&network, layout, DTYPES[usize::from(case.high_precision % 3)].0);
    for defect in &case.defects {
        let index = usize::from(defect.tensor) % tensors.len().max(1);
        apply(&mut tensors, index, &defect.kind);
    }
    let weights = file(&tensors, &case.bytes);
    let config = Value::Object(config).to_string();
    let dir = SCRATCH.fill([&("config.json", config.as_bytes()), &("model.safetensors", weights.as_slice())]);
    let checkpoint = match Checkpoint::open(dir) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert!(!case.defects.is_empty(), "without a defect: {error}"),
    };
    let mut values = Vec::new();
    for id in network.ids() {
        if checkpoint.read_f32(id, &mut values).is_ok() {
            assert_eq!(values.len(), network.parameter(id).elements());
            assert!(values.iter().all(|value| value.is_finite()));
        }
    }
    let _ = checkpoint.snapshot_as_stored(PolicyVersion(0));
});

fn declared(layout: StoredLayout) -> Value {
    match layout {
        StoredLayout::Fp8Block { pow2_scales } => {
            let format = if pow2_scales { "ue8m0" } else { "float" };
            json!({ "quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": format })
        }
        StoredLayout::Mxfp8 => json!({ "quant_method": "mxfp8", "weight_block_size": [1, 32] }),
        StoredLayout::Nvfp4 => json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16 }),
    }
}

/// What a checkpoint of `network` holds: matrices of the MLPs in `layout`, everything else in `dense`.
fn stored(network: &Network, layout: Option<StoredLayout>, dense: &'static str) -> Vec<Stored> {
    let mut tensors = Vec::new();
    let mut push = |name: String, dtype, shape| tensors.push(Stored { name, dtype, shape, offset: 0 });
    for parameter in &network.parameters {
        let name = parameter.name.clone();
        let quantized = layout.filter(|_| {
            matches!(
                parameter.role,
                Role::MlpGate | Role::MlpUp | Role::MlpDown | Role::ExpertGate | Role::ExpertUp | Role::ExpertDown
            )
        });
        let Some(layout) = quantized else {
            push(name, dense, parameter.shape.clone());
            continue;
        };
        let (rows, cols) = parameter.rows_cols();
        let rule = builtin_rule(&layout.format()).unwrap();
        let sizes = rule.layout(rows, cols, &QuantizeSpec::weight(layout.format())).unwrap();
        let base = name.strip_suffix(".weight").unwrap();
        let scales = vec![sizes.scale_rows, sizes.scale_cols];
        match sizes.scale_kind {
            ScaleKind::E4m3 => {
                push(format!("{base}.weight_scale"), "F8_E4M3", scales);
                push(format!("{base}.weight_scale_2"), "F32", Vec::new());
                push(name.clone(), "U8", vec![rows, cols / 2]);
            }
            kind => {
                let dtype = if kind == ScaleKind::F32 { "F32" } else { "U8" };
                push(format!("{base}.weight_scale_inv"), dtype, scales);
                push(name.clone(), "F8_E4M3", vec![rows, cols]);
            }
        }
    }
    tensors
}

fn apply(tensors: &mut Vec<Stored>, index: usize, kind: &Kind) {
    let Some(tensor) = tensors.get_mut(index) else { return };
    match kind {
        Kind::Missing => drop(tensors.remove(index)),
        Kind::Renamed => tensor.name.push('x'),
        Kind::Dtype(dtype) => tensor.dtype = DTYPES[usize::from(*dtype) % DTYPES.len()].0,
        Kind::Shape(shape) => tensor.shape = shape.iter().map(|extent| usize::from(*extent)).collect(),
        Kind::Transposed => tensor.shape.reverse(),
        Kind::Offset(offset) => tensor.offset = u64::from(*offset),
    }
}

/// A safetensors file whose data is `bytes` over and over, cut at 1 MiB.
fn file(tensors: &[Stored], bytes: &[u8]) -> Vec<u8> {
    let mut header = Map::new();
    let mut start = 0_u64;
    for Stored { name, dtype, shape, offset } in tensors {
        let bits = DTYPES.iter().find(|(name, _)| name == dtype).unwrap().1 as u64;
        let elements = shape.iter().fold(1_u64, |product, extent| product.saturating_mul(*extent as u64));
        let end = start.saturating_add(elements.saturating_mul(bits) / 8);
        let offsets = [start.saturating_add(*offset), end];
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        start = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend(tiled(bytes, start.min(1 << 20) as usize));
    file
}
