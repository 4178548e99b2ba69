//! Every stored layout is the policy it was written from: one forward, to the bit, before and after a directory.

use std::sync::Arc;

use miles_core::checkpoint::{Checkpoint, Mxfp8Layout, StoredForm, WriteOptions, write_checkpoint, write_values};
use miles_core::format::{FormatId, QuantizedTensor, builtin_rule};
use miles_core::model::huggingface::StoredLayout;
use miles_core::network::{Network, ParamId};
use miles_core::policy::{
    Ledger, PolicyContext, PolicyTensor, PolicyVersion, RuleQuantizer, Snapshot, WeightSource, quantize_policy,
};
use miles_core::precision::{Recipe, Rule, TensorFormat, resolve};
use miles_core::tensor::Dtype;

use crate::support::files::{edit_tensors, load};
use crate::support::parts::{engine, random_ids};
use crate::support::{FAMILIES, bits, checkpoint, cpu};

/// The format of every layout, and variants of which a layout shows no name.
const FORMATS: [&str; 14] = [
    "fp8-block",
    "fp8-block/power-of-two",
    "fp8-block/deepgemm",
    "mxfp8",
    "mxfp8/even",
    "nvfp4",
    "nvfp4/te-2.13",
    "nvfp4/four-over-six-mae-448/16x16",
    "fp8-channel",
    "fp8-tensor",
    "int8-channel",
    "int4-group/32",
    "int4-group/64",
    "int4-group/128",
];

/// The codes of every linear layer whose rows the format takes, but the head's.
fn quantized(checkpoint: &Checkpoint, format: &FormatId) -> Option<Snapshot> {
    let network = checkpoint.network();
    let group = StoredLayout::of(format).unwrap().int4_group().unwrap_or(1);
    let takes = |id: ParamId| {
        let parameter = network.parameter(id);
        let pair = parameter.pair.map_or(0, |pair| network.parameter(pair).rows_cols().1);
        let cols = parameter.rows_cols().1;
        parameter.is_linear && id != network.head.weight && cols.is_multiple_of(group) && pair.is_multiple_of(group)
    };
    let of_name = |id| Rule::name(&network.parameter(id).name, TensorFormat::Quantized(format.clone()));
    let rules: Vec<Rule> = network.ids().filter(|id| takes(*id)).map(of_name).collect();
    if rules.is_empty() {
        return None;
    }
    Some(with_rules(network, checkpoint, &rules))
}

fn with_rules(network: &Arc<Network>, source: &dyn WeightSource, rules: &[Rule]) -> Snapshot {
    let map = Arc::new(resolve(network, Recipe::Bf16, rules).unwrap());
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "test", step: 0, version: PolicyVersion(0), ledger: &ledger };
    quantize_policy(network, &map, &RuleQuantizer, source, context).unwrap()
}

/// Logits of the reference forward, as bits.
fn logits(snapshot: Snapshot) -> Vec<u32> {
    let snapshot = Arc::new(snapshot);
    let tokens = random_ids(3, 17, snapshot.network().config.vocab_size);
    bits(&engine(&cpu(2), &snapshot, 1).logits(&tokens).unwrap())
}

/// The values that the products of a version multiply, from the codes in memory.
struct Decoded<'a>(&'a Snapshot);

impl WeightSource for Decoded<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        *into = match self.0.tensor(id).as_ref() {
            PolicyTensor::Dense(tensor) => tensor.to_f32(),
            PolicyTensor::Quantized(tensor) => {
                let mut parts = tensor.to_parts();
                // No product reads the amax, and no directory holds it.
                parts.amax.clear();
                let rule = builtin_rule(tensor.format()).unwrap();
                rule.dequantize(&QuantizedTensor::from_parts(rule, None, parts).unwrap())?
            }
        };
        Ok(())
    }
}

/// A version in F32.
fn in_f32(checkpoint: &Checkpoint, source: &dyn WeightSource) -> Snapshot {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("f32");
    let options = WriteOptions { form: StoredForm::Dense(Dtype::F32), ..WriteOptions::default() };
    write_values(source, &checkpoint.template(), &target, &options).unwrap();
    Checkpoint::open(&target).unwrap().snapshot_as_stored(PolicyVersion(0)).unwrap()
}

/// Codes multiplied as codes, and their values multiplied as values: the same logits from memory and from the directory.
#[test]
fn every_layout_gives_the_logits_of_our_own_forward_after_a_round_trip() {
    for family in FAMILIES {
        let original = checkpoint(family);
        let dense = logits(original.snapshot_as_stored(PolicyVersion(0)).unwrap());
        for format in FORMATS {
            let Some(snapshot) = quantized(&original, &format.parse().unwrap()) else { continue };
            for mxfp8 in [Mxfp8Layout::ScaleInv, Mxfp8Layout::ModelOpt] {
                if mxfp8 == Mxfp8Layout::ModelOpt && !format.starts_with("mxfp8") {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                let target = dir.path().join("policy");
                let options = WriteOptions { mxfp8, ..WriteOptions::default() };
                write_checkpoint(&snapshot, &original.template(), &target, &options).unwrap();
                let stored = Checkpoint::open(&target).unwrap();
                let back = stored.snapshot_as_stored(PolicyVersion(0)).unwrap();
                let of_codes = logits(snapshot.clone());
                assert!(of_codes != dense, "{family} {format}: nothing was quantized");
                // A variant also says how activations are quantized, which the bytes of weights do not show.
                let is_variant = StoredLayout::of(&format.parse().unwrap()).unwrap().format().as_str() != format;
                assert!(is_variant || logits(back) == of_codes, "{family} {format}: codes");
                let values = logits(in_f32(&original, &stored));
                assert!(values == logits(in_f32(&original, &Decoded(&snapshot))), "{family} {format}: values");
            }
        }
    }
}

/// O5: gate and up with outer scales of their own. Doubling the up half and halving the down projection cancel exactly, so
/// an engine that multiplied both halves by one scale would show.
#[test]
fn o5_two_outer_scales_of_a_pair_give_the_logits_of_both() {
    let original = checkpoint("qwen3-moe");
    let snapshot = quantized(&original, &FormatId::nvfp4()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("policy");
    write_checkpoint(&snapshot, &original.template(), &target, &WriteOptions::default()).unwrap();
    let file = target.join("model.safetensors");
    let scale = |name: &str, factor: f32| {
        edit_tensors(&file, |tensors| {
            let mut changed = 0;
            for (_, tensor) in tensors.iter_mut().filter(|(stored, _)| stored.ends_with(name)) {
                let value = f32::from_le_bytes(tensor.bytes[..].try_into().unwrap());
                tensor.bytes = (factor * value).to_le_bytes().to_vec();
                changed += 1;
            }
            assert!(changed > 0, "{name}");
        });
    };
    let read = || Checkpoint::open(&target).unwrap();
    let as_stored = |checkpoint: &Checkpoint| logits(checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap());
    let (codes, values) = (as_stored(&read()), logits(in_f32(&original, &read())));
    scale("up_proj.weight_scale_2", 2.0);
    let outer =
        |matrix: &str| load(&file)[&format!("model.layers.0.mlp.experts.0.{matrix}.weight_scale_2")].bytes.clone();
    assert_ne!(outer("gate_proj"), outer("up_proj"));
    assert_ne!(as_stored(&read()), codes, "the doubled half shows");
    scale("down_proj.weight_scale_2", 0.5);
    assert_eq!(as_stored(&read()), codes);
    assert_eq!(logits(in_f32(&original, &read())), values);
    // Quantized again, the two halves are one pair with one outer scale, that of the larger half.
    let foreign = read();
    let rules = [Rule::name("*.mlp.experts.*", TensorFormat::Quantized(FormatId::nvfp4()))];
    let joint = with_rules(foreign.network(), &foreign, &rules);
    let outer_of = |name: &str| match joint.tensor(foreign.network().find(name).unwrap()).as_ref() {
        PolicyTensor::Quantized(tensor) => tensor.outer().to_vec(),
        PolicyTensor::Dense(_) => panic!("{name} is dense"),
    };
    let experts = "model.layers.0.mlp.experts.0";
    let gate = outer_of(&format!("{experts}.gate_proj.weight"));
    assert_eq!(gate, outer_of(&format!("{experts}.up_proj.weight")));
}

/// O3: what a directory holds is made from the BF16 rounding of the masters, as the operand of the forward is; masters in
/// F32 whose extra bits would change codes do not.
#[test]
fn o3_a_directory_holds_the_codes_of_the_bf16_rounding_in_every_layout() {
    let original = checkpoint("qwen3-moe");
    /// The checkpoint's values moved by a third of the last bit of BF16.
    struct Finer<'a>(&'a Checkpoint);
    impl WeightSource for Finer<'_> {
        fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
            self.0.read_f32(id, into)?;
            into.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits() + 0x5555));
            Ok(())
        }
    }
    for format in FORMATS {
        let format: FormatId = format.parse().unwrap();
        let Some(expected) = quantized(&original, &format) else { continue };
        let (network, map) = (original.network(), expected.map());
        let ledger = Ledger::discard();
        let context = PolicyContext { run: "test", step: 0, version: PolicyVersion(0), ledger: &ledger };
        let finer = quantize_policy(network, map, &RuleQuantizer, &Finer(&original), context).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("policy");
        write_checkpoint(&finer, &original.template(), &target, &WriteOptions::default()).unwrap();
        let back = Checkpoint::open(&target).unwrap().snapshot_as_stored(PolicyVersion(0)).unwrap();
        let mut differs = false;
        for id in network.ids() {
            let name = &network.parameter(id).name;
            let PolicyTensor::Quantized(held) = expected.tensor(id).as_ref() else { continue };
            let PolicyTensor::Quantized(stored) = back.tensor(id).as_ref() else { panic!("{name} is dense") };
            assert!(stored.codes() == held.codes() && stored.scales() == held.scales(), "{format}: {name}");
            assert_eq!(stored.outer(), held.outer(), "{format}: {name}");
            differs |= unrounded(&Finer(&original), network, id, &format).codes() != held.codes();
        }
        assert!(differs, "{format}: the extra bits change no code, so nothing is shown");
    }
}

/// A tensor quantized from F32 values without rounding them first: what must not happen.
fn unrounded(source: &dyn WeightSource, network: &Network, id: ParamId, format: &FormatId) -> QuantizedTensor {
    use miles_core::format::{QuantizeSpec, Source, SourceDtype};
    let mut values = Vec::new();
    source.read(id, &mut values).unwrap();
    let (rows, cols) = network.parameter(id).rows_cols();
    let source = Source::new(&values, rows, cols, SourceDtype::F32, None).unwrap();
    builtin_rule(format).unwrap().quantize(&source, &QuantizeSpec::weight(format.clone())).unwrap()
}
