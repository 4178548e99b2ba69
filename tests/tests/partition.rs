//! Trainer and engine cut routed experts by one plan, which is part of the precision map; a plan that differs is refused
//! with both before anything changes.

use std::sync::Arc;

use futures_lite::future::block_on;
use miles_backend_cpu_ref::{CpuEngine, CpuTrainer};
use miles_core::Error as CoreError;
use miles_core::checkpoint::{CheckpointError, WriteOptions, write_checkpoint};
use miles_core::format::{Partition, shards};
use miles_core::network::Role;
use miles_core::plugin::{
    ActivationDtype, Backend, EngineOptions, PublicationMode, RolloutEngine, TrainError, Trainer, TrainerInputs,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyError, PolicyTensor, PolicyVersion, Snapshot, quantize_policy};
use miles_core::precision::{
    PartitionAxis, PartitionPlan, PrecisionError, PrecisionMap, PrecisionTable, Recipe, resolve_with,
};
use miles_grpo::Error;
use miles_grpo::checkpoint::ResumeError;

use crate::support::parts::{engine, generate, options, publish, request};
use crate::support::workspace::{Workspace, finish};
use crate::support::{backend, checkpoint, cpu};

const MODEL: &str = "qwen3-moe";
const DOWN: &str = "model.layers.0.mlp.experts.0.down_proj.weight";

fn plan(shards: u16, axis: PartitionAxis) -> PartitionPlan {
    PartitionPlan::new(shards, axis).unwrap()
}

fn two() -> PartitionPlan {
    plan(2, PartitionAxis::Intermediate)
}

fn map(recipe: Recipe, plan: PartitionPlan) -> Result<Arc<PrecisionMap>, PrecisionError> {
    resolve_with(checkpoint(MODEL).network(), recipe, &[], &[], plan).map(Arc::new)
}

fn trainer(recipe: Recipe, plan: PartitionPlan) -> Result<CpuTrainer, CoreError> {
    let (cpu, checkpoint) = (cpu(2), checkpoint(MODEL));
    let inputs = TrainerInputs {
        network: Arc::clone(checkpoint.network()),
        map: map(recipe, plan).unwrap(),
        weights: &checkpoint,
        quantizer: Arc::new(cpu.quantizer().unwrap()),
        options: options(4096),
        scratch: None,
    };
    CpuTrainer::new(inputs, &cpu.context().unwrap())
}

fn snapshot(recipe: Recipe, plan: PartitionPlan, version: u64) -> Arc<Snapshot> {
    let (checkpoint, ledger, version) = (checkpoint(MODEL), Ledger::discard(), PolicyVersion(version));
    let context = PolicyContext { run: "test", step: 0, version, ledger: &ledger };
    let (network, quantizer) = (checkpoint.network(), cpu(2).quantizer().unwrap());
    Arc::new(quantize_policy(network, &map(recipe, plan).unwrap(), &quantizer, &checkpoint, context).unwrap())
}

/// The codes and scales of every tensor of a version, without headers.
fn parts(snapshot: &Snapshot) -> Vec<Vec<u8>> {
    let bytes = |tensor: &PolicyTensor| match tensor {
        PolicyTensor::Dense(dense) => dense.bytes().to_vec(),
        PolicyTensor::Quantized(tensor) => tensor.canonical_bytes()[56..].to_vec(),
    };
    snapshot.network().ids().map(|id| bytes(snapshot.tensor(id))).collect()
}

#[test]
fn a_plan_is_part_of_the_map_its_digest_and_its_table() {
    let network = checkpoint(MODEL).network().clone();
    let plans = [PartitionPlan::WHOLE, two(), plan(2, PartitionAxis::Hidden), plan(1, PartitionAxis::Hidden)];
    let maps = plans.map(|plan| map(Recipe::Mxfp8, plan).unwrap());
    assert_eq!(maps[0].digest(), maps[3].digest(), "one shard is the whole along any axis");
    assert!(maps[0].digest() != maps[1].digest() && maps[1].digest() != maps[2].digest());
    // A plan of one shard adds nothing.
    assert_eq!(maps[0].digest().to_string(), DIGEST_WITHOUT_A_PLAN);
    let table = PrecisionTable::new(&network, &maps[1]).to_string();
    assert!(table.contains("expert tensor parallel 2 along intermediate"), "{table}");
    for id in network.ids() {
        let is_cut = !maps[1].partition(&network, id).is_whole();
        let role = network.parameter(id).role;
        let quantized_expert = matches!(role, Role::ExpertGate | Role::ExpertUp | Role::ExpertDown)
            && network.parameter(id).layer != Some(3);
        assert_eq!(is_cut, quantized_expert, "{}", network.parameter(id).name);
    }
}

#[test]
fn a_plan_that_does_not_come_out_even_is_refused_by_name() {
    // 64 inputs of down are two blocks of 32: two shards, not four; and no two tiles of 128.
    for (recipe, shards, format) in [(Recipe::Mxfp8HighPrecision, 4, "mxfp8"), (Recipe::Fp8Block, 2, "fp8-block")] {
        let error = map(recipe, plan(shards, PartitionAxis::Intermediate)).unwrap_err();
        let PrecisionError::Uncuttable { tensor, plan, format: found, shape, .. } = &error else { panic!("{error}") };
        assert!(tensor.contains("experts.0."), "{tensor}");
        assert_eq!((plan.expert_tensor_parallel(), found.as_str(), shape.as_slice()), (shards, format, &[64, 64][..]));
        let text = error.to_string();
        assert!(text.contains("[64, 64]") && text.contains(&format!("parallel {shards}")), "{text}");
    }
    let dense = checkpoint("qwen3");
    let error = resolve_with(dense.network(), Recipe::Mxfp8, &[], &[], two()).unwrap_err();
    assert!(matches!(error, PrecisionError::NothingToCut { plan } if plan == two()), "{error}");
}

#[test]
fn a_cut_policy_is_the_join_of_shards_that_ranks_quantize_alone() {
    for plan in [two(), plan(2, PartitionAxis::Hidden)] {
        let (cut, whole) = (snapshot(Recipe::Mxfp8, plan, 0), snapshot(Recipe::Mxfp8, PartitionPlan::WHOLE, 0));
        assert_eq!(parts(&cut), parts(&whole), "without outer scales a cut changes no code and no scale");
        assert_ne!(cut.stamp().digest, whole.stamp().digest);
        let rule = miles_core::format::builtin_rule(&miles_core::format::FormatId::mxfp8()).unwrap();
        let id = cut.network().find(DOWN).unwrap();
        let PolicyTensor::Quantized(down) = cut.tensor(id).as_ref() else { panic!("{DOWN} is not quantized") };
        assert_eq!(down.partition(), plan.partition(Role::ExpertDown));
        let mut apart = shards::split(rule, down, Some(DOWN)).unwrap();
        apart.reverse();
        let joined = shards::join(rule, &apart, Some(DOWN)).unwrap();
        assert_eq!(joined.digest(), cut.tensor_digest(id));
        let error = CoreError::from(shards::join(rule, &apart[1..], Some(DOWN)).unwrap_err());
        assert!(error.to_string().contains(DOWN) && error.to_string().contains("shard 1 of 2"), "{error}");
    }
}

#[test]
fn an_engine_of_another_plan_refuses_a_version_and_keeps_the_old_one() {
    let (whole, cut) = (snapshot(Recipe::Mxfp8, PartitionPlan::WHOLE, 0), snapshot(Recipe::Mxfp8, two(), 1));
    for (loaded, offered) in [(&whole, &cut), (&cut, &whole)] {
        let engine: CpuEngine = engine(&cpu(2), loaded, 4);
        let before = generate(&engine, &request(160, 1.0, 4, &[]));
        let error = block_on(engine.load(Arc::clone(offered))).unwrap_err();
        let CoreError::Policy(PolicyError::PartitionMismatch { trainer, engine: of_engine }) = &error else {
            panic!("{error}")
        };
        assert_eq!((*trainer, *of_engine), (offered.map().plan(), loaded.map().plan()));
        let text = error.to_string();
        assert!(text.contains("expert tensor parallel 1") && text.contains("parallel 2 along intermediate"), "{text}");
        assert_eq!(engine.loaded(), Some(loaded.stamp()));
        assert_eq!(generate(&engine, &request(160, 1.0, 4, &[])), before);
    }
}

/// A backend whose engines are told another plan than the map's.
fn misled(backend: &Backend, partition: PartitionPlan) -> Backend {
    let engine = Arc::clone(&backend.engine);
    Backend { engine: Arc::new(move |options| engine(EngineOptions { partition, ..options })), ..backend.clone() }
}

#[test]
fn a_run_whose_engine_has_another_plan_stops_before_its_first_step() {
    let workspace = Workspace::new(MODEL);
    let overrides = ["precision.recipe=mxfp8", "precision.expert_tensor_parallel=2"];
    let misled = misled(&backend(2), PartitionPlan::WHOLE);
    let error = finish(workspace.builder_on(misled, "out", &overrides)).unwrap_err();
    let Error::Core(CoreError::Policy(PolicyError::PartitionMismatch { trainer, engine })) = error else {
        panic!("{error}")
    };
    assert_eq!((trainer, engine), (two(), PartitionPlan::WHOLE));
    assert!(workspace.metrics("out").is_empty());
}

#[test]
fn an_mxfp8_run_in_two_shards_reaches_the_bytes_of_the_whole_run() {
    let workspace = Workspace::new(MODEL);
    for axis in ["intermediate", "hidden"] {
        let axis = format!("precision.partition_axis={axis}");
        let whole = ["precision.recipe=mxfp8", "run.existing=overwrite"];
        let cut = ["precision.recipe=mxfp8", "run.existing=overwrite", "precision.expert_tensor_parallel=2", &axis];
        workspace.run("whole", &whole).unwrap();
        workspace.run("cut", &cut).unwrap();
        for (whole, cut) in workspace.metrics("whole").iter().zip(workspace.metrics("cut")) {
            let differing: Vec<&String> =
                whole.values.keys().filter(|key| whole.values.get(*key) != cut.values.get(*key)).collect();
            assert_eq!(differing, ["policy_digest"], "step {}", whole.step);
        }
        let weights = |out: &str| std::fs::read(workspace.path(out).join("policy/model.safetensors")).unwrap();
        assert!(weights("whole") == weights("cut"), "the exported policies differ");
    }
}

#[test]
fn outer_scales_of_shards_are_unsupported_before_the_run_and_in_stored_layouts() {
    let error = trainer(Recipe::Nvfp4Dequantized, two()).map(drop).unwrap_err();
    let CoreError::Unsupported { operation, backend: name, .. } = &error else { panic!("{error}") };
    assert!(operation.contains("experts.0.") && operation.contains("nvfp4") && name == "cpu-ref", "{error}");
    let workspace = Workspace::new(MODEL);
    let overrides = ["precision.recipe=nvfp4-dequantized", "precision.expert_tensor_parallel=2"];
    let error = finish(workspace.builder("out", &overrides)).unwrap_err();
    assert!(matches!(error, Error::Core(CoreError::Unsupported { .. })), "{error}");
    assert!(!workspace.path("out").exists(), "nothing was written");

    let error =
        block_on(cpu(2).engine(engine_options(two())).unwrap().load(snapshot(Recipe::Nvfp4Dequantized, two(), 0)));
    assert!(matches!(error, Err(CoreError::Unsupported { .. })), "{error:?}");

    let (dir, template) = (tempfile::tempdir().unwrap(), checkpoint(MODEL).template());
    let target = dir.path().join("out");
    let cut = snapshot(Recipe::Nvfp4Dequantized, two(), 0);
    let error = write_checkpoint(&cut, &template, &target, &WriteOptions::default()).unwrap_err();
    let CheckpointError::NoLayout { tensor, why, .. } = &error else { panic!("{error}") };
    assert!(tensor.contains("experts.0.") && why.contains("per shard"), "{error}");
    assert!(!target.exists());
}

fn engine_options(partition: PartitionPlan) -> EngineOptions {
    let network = Arc::clone(checkpoint(MODEL).network());
    let activations = ActivationDtype::Bf16;
    let publication = PublicationMode::Finish;
    EngineOptions { network, activations, max_running: 2, context_tokens: 64, threads: None, partition, publication }
}

#[test]
fn a_trainer_and_a_run_refuse_what_was_saved_under_another_plan() {
    let dir = tempfile::tempdir().unwrap();
    let mut cut = trainer(Recipe::Mxfp8, two()).unwrap();
    publish(&mut cut, 0);
    cut.save(dir.path()).unwrap();
    trainer(Recipe::Mxfp8, two()).unwrap().restore(dir.path()).unwrap();
    let error = trainer(Recipe::Mxfp8, PartitionPlan::WHOLE).unwrap().restore(dir.path()).unwrap_err();
    let CoreError::Train(TrainError::PartitionMismatch { file, saved, trainer }) = &error else { panic!("{error}") };
    assert!(file.ends_with("state.json"), "{file}");
    assert_eq!((*saved, *trainer), (two(), PartitionPlan::WHOLE));

    let workspace = Workspace::new(MODEL);
    let cut = ["precision.recipe=mxfp8", "precision.expert_tensor_parallel=2"];
    workspace.run_until("out", &cut, 1).unwrap();
    let whole = ["precision.recipe=mxfp8", "run.existing=resume"];
    let error = finish(workspace.builder("out", &whole)).unwrap_err();
    let Error::Resume(ResumeError::ConfigChanged { differences, .. }) = &error else { panic!("{error}") };
    assert_eq!(differences, &["precision.expert_tensor_parallel: 2 -> 1"]);
    workspace.run("out", &[cut[0], cut[1], "run.existing=resume"]).unwrap();
}

#[test]
fn a_snapshot_whose_tensors_are_cut_otherwise_than_its_map_says_is_refused() {
    let whole = snapshot(Recipe::Mxfp8, PartitionPlan::WHOLE, 0);
    let tensors = whole.network().ids().map(|id| Arc::clone(whole.tensor(id))).collect();
    let map = map(Recipe::Mxfp8, two()).unwrap();
    let error = Snapshot::new(PolicyVersion(0), Arc::clone(whole.network()), map, tensors).unwrap_err();
    let PolicyError::TensorMismatch { tensor, why } = &error else { panic!("{error}") };
    assert!(tensor.contains("experts.0.") && why.contains("whole") && why.contains("x 2"), "{error}");
    assert_eq!(Partition::WHOLE.to_string(), "whole");
}

/// BLAKE3 over the sorted lines `name [shape] format backward`, computed apart from this library.
const DIGEST_WITHOUT_A_PLAN: &str = "a5369db1a021da9d1362bf6a12c206fdfd3e6cff3494269eae51ef94fe9fbbd3";
