//! Everything that a user can get wrong before the first step: a typed error that names the culprit, and an output
//! directory that was not touched, whether it was empty or held another run that may be overwritten.

use std::fs;

use futures_lite::future::block_on;
use miles_core::checkpoint::{CheckpointError, StoredForm, WriteOptions, write_values};
use miles_core::model::ModelError;
use miles_core::tensor::Dtype;
use miles_grpo::checkpoint::ResumeError;
use miles_grpo::config::{ConfigErrors, Why};
use miles_grpo::data::DataError;
use miles_grpo::{Error, OutputError, Plan, Run, RunConfig};
use safetensors::Dtype as Stored;
use serde_json::json;

use crate::support::backend;
use crate::support::files::{edit_json, edit_tensors, tree};
use crate::support::workspace::Workspace;

const INDEX: &str = "model/model.safetensors.index.json";
const SHARD: &str = "model/model-00002-of-00005.safetensors";
const WEIGHTS: &str = "model/model.safetensors";
const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";

/// What stops a run from being built; nothing was written, nothing was deleted.
pub fn refused(workspace: &Workspace, overrides: &[&str]) -> Error {
    let old = workspace.path("old");
    fs::create_dir_all(old.join("policy")).unwrap();
    fs::write(old.join("metrics.jsonl"), "{\"step\":0}\n").unwrap();
    fs::write(old.join("policy/model.safetensors"), "dear").unwrap();
    let before = tree(&old);
    let build = |config: RunConfig| -> Error {
        let plan = match Plan::new(&config) {
            Ok(plan) => plan,
            Err(errors) => return errors.into(),
        };
        match block_on(Run::builder(plan).backend(backend(2)).build()) {
            Ok(_) => panic!("the run was built"),
            Err(error) => error,
        }
    };
    let overwriting = [overrides, &["run.existing=overwrite"]].concat();
    let error = build(workspace.config("old", &overwriting));
    assert!(tree(&old) == before, "an older run was touched before the error: {error}");
    let error = build(workspace.config("new", overrides));
    assert!(!workspace.path("new").exists(), "the output directory was made before the error: {error}");
    error
}

fn checkpoint_error(error: Error) -> CheckpointError {
    match error {
        Error::Core(miles_core::Error::Checkpoint(error)) => error,
        other => panic!("{other}"),
    }
}

/// What is wrong with a config.
pub fn config_errors(error: Error) -> ConfigErrors {
    match error {
        Error::Config(errors) => errors,
        other => panic!("{other}"),
    }
}

#[test]
fn a_missing_shard() {
    let workspace = Workspace::new("qwen3-moe-sharded");
    fs::remove_file(workspace.path(SHARD)).unwrap();
    let error = checkpoint_error(refused(&workspace, &[]));
    assert!(matches!(&error, CheckpointError::MissingShard { shard, .. } if SHARD.ends_with(shard)), "{error}");
}

#[test]
fn a_truncated_shard() {
    let workspace = Workspace::new("qwen3-moe-sharded");
    let whole = fs::read(workspace.path(SHARD)).unwrap();
    for kept_bytes in [whole.len() - 1, whole.len() / 2, 100, 4, 0] {
        fs::write(workspace.path(SHARD), &whole[..kept_bytes]).unwrap();
        let error = checkpoint_error(refused(&workspace, &[]));
        assert!(matches!(&error, CheckpointError::Truncated { path, .. } if path.ends_with(SHARD)), "{error}");
    }
}

#[test]
fn an_index_that_names_a_file_which_is_not_there() {
    let workspace = Workspace::new("qwen3-moe-sharded");
    edit_json(&workspace.path(INDEX), |index| index["weight_map"][QUERY] = json!("gone.safetensors"));
    let error = checkpoint_error(refused(&workspace, &[]));
    let CheckpointError::MissingShard { shard, tensor, .. } = &error else { panic!("{error}") };
    assert_eq!((shard.as_str(), tensor.as_str()), ("gone.safetensors", QUERY));
}

#[test]
fn a_tensor_of_the_wrong_shape_or_type() {
    let workspace = Workspace::new("qwen3");
    let whole = fs::read(workspace.path(WEIGHTS)).unwrap();
    edit_tensors(&workspace.path(WEIGHTS), |tensors| tensors.get_mut(QUERY).unwrap().shape.swap(0, 1));
    let error = checkpoint_error(refused(&workspace, &[]));
    assert!(matches!(&error, CheckpointError::WrongShape { tensor, .. } if tensor == QUERY), "{error}");
    for dtype in [Stored::I16, Stored::U16] {
        fs::write(workspace.path(WEIGHTS), &whole).unwrap();
        edit_tensors(&workspace.path(WEIGHTS), |tensors| tensors.get_mut(QUERY).unwrap().dtype = dtype);
        let error = checkpoint_error(refused(&workspace, &[]));
        assert!(matches!(&error, CheckpointError::WrongDtype { tensor, .. } if tensor == QUERY), "{error}");
    }
}

#[test]
fn a_tensor_that_is_missing_and_one_that_is_left_over() {
    let workspace = Workspace::new("qwen3");
    let whole = fs::read(workspace.path(WEIGHTS)).unwrap();
    edit_tensors(&workspace.path(WEIGHTS), |tensors| drop(tensors.remove(QUERY)));
    let error = checkpoint_error(refused(&workspace, &[]));
    assert!(matches!(&error, CheckpointError::MissingTensors { tensors, .. } if tensors == &[QUERY]), "{error}");
    fs::write(workspace.path(WEIGHTS), &whole).unwrap();
    edit_tensors(&workspace.path(WEIGHTS), |tensors| {
        let copy = tensors[QUERY].clone();
        tensors.insert("model.layers.9.self_attn.q_proj.weight".to_owned(), copy);
    });
    let error = checkpoint_error(refused(&workspace, &[]));
    assert!(matches!(&error, CheckpointError::UnexpectedTensors { tensors, .. } if tensors.len() == 1), "{error}");
    assert!(error.to_string().contains("layers.9"), "{error}");
}

#[test]
fn an_orphan_scale() {
    let workspace = Workspace::new("qwen3");
    let scale = format!("{QUERY}_scale_inv");
    edit_tensors(&workspace.path(WEIGHTS), |tensors| {
        let mut one = tensors["model.norm.weight"].clone();
        (one.shape, one.dtype) = (vec![1, 1], Stored::F32);
        one.bytes = 1.0f32.to_le_bytes().to_vec();
        tensors.insert(scale.clone(), one);
    });
    let error = checkpoint_error(refused(&workspace, &[]));
    assert!(error.to_string().contains(&scale), "{error}");
}

#[test]
fn a_weight_that_is_not_finite() {
    let workspace = Workspace::new("qwen3");
    let original = workspace.checkpoint();
    let target = workspace.path("model-f32");
    let high = WriteOptions { form: StoredForm::Dense(Dtype::F32), ..WriteOptions::default() };
    write_values(&original, &original.template(), &target, &high).unwrap();
    let model = format!("model.dir={}", target.display());
    let file = target.join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    let cols = 64;
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        fs::write(&file, &whole).unwrap();
        edit_tensors(&file, |tensors| {
            let at = 4 * (3 * cols + 5);
            tensors.get_mut(QUERY).unwrap().bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
        let error = checkpoint_error(refused(&workspace, &[&model]));
        let CheckpointError::NonFinite { tensor, row, column, path, .. } = &error else { panic!("{error}") };
        assert_eq!((tensor.as_str(), *row, *column), (QUERY, 3, 5), "{value}");
        assert_eq!(path, &file);
    }
}

/// A finite F32 weight that no BF16 number is near enough to: infinite after rounding, so it is refused by name as well.
#[test]
fn a_weight_that_is_not_finite_in_bf16() {
    let workspace = Workspace::new("qwen3");
    let original = workspace.checkpoint();
    let target = workspace.path("model-f32");
    let high = WriteOptions { form: StoredForm::Dense(Dtype::F32), ..WriteOptions::default() };
    write_values(&original, &original.template(), &target, &high).unwrap();
    for tensor in ["model.norm.weight", "model.layers.2.self_attn.o_proj.weight"] {
        let file = target.join("model.safetensors");
        let whole = fs::read(&file).unwrap();
        edit_tensors(&file, |tensors| {
            tensors.get_mut(tensor).unwrap().bytes[..4].copy_from_slice(&f32::MAX.to_le_bytes());
        });
        let model = format!("model.dir={}", target.display());
        let error = workspace.run("out", &[&model, "run.existing=overwrite"]).unwrap_err().to_string();
        assert!(error.contains(tensor), "{error}");
        fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let workspace = Workspace::new("qwen3");
    edit_json(&workspace.path("model/config.json"), |config| config["architectures"] = json!(["Qwen9ForCausalLM"]));
    let errors = config_errors(refused(&workspace, &[]));
    let [issue] = errors.issues.as_slice() else { panic!("{errors}") };
    let Why::Model(ModelError::UnknownArchitecture { found, known, .. }) = &issue.why else { panic!("{errors}") };
    assert_eq!((issue.key.as_str(), found.as_str()), ("model.dir", "Qwen9ForCausalLM"));
    for family in
        ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"]
    {
        assert!(known.contains(&family) && errors.to_string().contains(family), "{errors}");
    }
}

#[test]
fn an_unknown_recipe_reward_or_key_names_the_nearest() {
    let workspace = Workspace::new("qwen3");
    let errors = config_errors(refused(&workspace, &["precision.recipe=nvfp4-dequantised", "reward.name=exactmatch"]));
    let text = errors.to_string();
    assert!(text.contains("`nvfp4-dequantized`") && text.contains("`exact-match`"), "{text}");
    let errors = RunConfig::parse("[rolout]\ntemperature = 1.0\n[run]\nsteps = 3\nsede = 4\n", &[]).unwrap_err();
    let keys: Vec<&str> = errors.issues.iter().map(|issue| issue.key.as_str()).collect();
    assert_eq!(keys, ["rolout", "run.sede"]);
    assert!(errors.to_string().contains("`rollout`") && errors.to_string().contains("`run.seed`"), "{errors}");
}

#[test]
fn contradictions_are_all_found_at_once() {
    let workspace = Workspace::new("qwen3");
    let overrides =
        ["rollout.group_size=1", "rollout.prompts_per_step=0", "model.context_tokens=16", "rollout.max_new_tokens=16"];
    let errors = config_errors(refused(&workspace, &overrides));
    let keys: Vec<&str> = errors.issues.iter().map(|issue| issue.key.as_str()).collect();
    for key in ["rollout.group_size", "rollout.prompts_per_step", "rollout.max_new_tokens"] {
        assert!(keys.contains(&key), "{key} is not among {keys:?}");
    }
    assert!(errors.to_string().contains("context of 16"), "{errors}");
    let errors = config_errors(refused(&workspace, &["rollout.prompts_per_step=7"]));
    assert!(errors.to_string().contains("6 prompts"), "{errors}");
}

#[test]
fn prompts_that_cannot_be_used() {
    let workspace = Workspace::new("qwen3");
    let file = workspace.path("train.jsonl");
    let data_error = |content: &str, overrides: &[&str]| {
        fs::write(&file, content).unwrap();
        match refused(&workspace, overrides) {
            Error::Data(error) => {
                assert!(error.to_string().contains("train.jsonl"), "{error}");
                error
            }
            other => panic!("{other}"),
        }
    };
    for empty in ["", "\n\n  \n"] {
        assert!(matches!(data_error(empty, &[]), DataError::Empty { .. }));
    }
    let error = data_error("{\"prompt\":\"1\"}\n\n{\"prompt\": 2\n", &[]);
    assert!(matches!(error, DataError::MalformedLine { line: 3, .. }), "{error}");
    assert!(error.to_string().contains("train.jsonl:3"), "{error}");
    let error = data_error("{\"prompt\":\"1\"}\n[1, 2]\n", &[]);
    assert!(matches!(error, DataError::MalformedLine { line: 2, .. }), "{error}");
    let error = data_error("{\"question\":\"1\"}\n", &[]);
    assert!(matches!(&error, DataError::MissingField { line: 1, field, .. } if field == "prompt"), "{error}");
    let error = data_error("{\"prompt\":\"1\"}\n{\"prompt\":\"123456789\"}\n", &["model.context_tokens=14"]);
    assert!(matches!(error, DataError::PromptTooLong { line: 2, tokens: 9, room_tokens: 8, .. }), "{error}");
    let error = data_error("{\"prompt\":\"\"}\n", &[]);
    assert!(matches!(error, DataError::EmptyPrompt { line: 1, .. }), "{error}");
}

#[test]
fn held_out_prompts_that_cannot_be_used() {
    let workspace = Workspace::new("qwen3");
    let file = workspace.path("eval.jsonl");
    fs::write(&file, "{\"prompt\":\"1\"}\nnot json\n").unwrap();
    let error = refused(&workspace, &[&format!("data.eval={}", file.display())]);
    assert!(matches!(&error, Error::Data(DataError::MalformedLine { line: 2, .. })), "{error}");
    assert!(error.to_string().contains("eval.jsonl:2"), "{error}");
}

#[test]
fn a_model_without_tokenizer() {
    let workspace = Workspace::new("qwen3");
    fs::remove_file(workspace.path("model/tokenizer.json")).unwrap();
    let error = refused(&workspace, &[]);
    assert!(matches!(&error, Error::Data(DataError::Tokenizer { .. })), "{error}");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}

#[test]
fn an_output_directory_of_another_run() {
    let workspace = Workspace::new("qwen3");
    workspace.run("out", &["run.steps=1"]).unwrap();
    let before = tree(&workspace.path("out"));
    let error = workspace.run("out", &["run.steps=1"]).unwrap_err();
    assert!(matches!(&error, Error::Output(OutputError::Occupied { dir, .. }) if dir == &workspace.path("out")));
    assert!(error.to_string().contains("resume") && error.to_string().contains("overwrite"), "{error}");
    let other = ["run.existing=resume", "run.steps=2", "run.seed=5", "precision.recipe=mxfp8"];
    let error = workspace.run("out", &other).unwrap_err();
    let Error::Resume(ResumeError::ConfigChanged { differences, .. }) = &error else { panic!("{error}") };
    assert_eq!(differences.len(), 2, "{differences:?}");
    assert!(tree(&workspace.path("out")) == before, "the other run was touched");
}
