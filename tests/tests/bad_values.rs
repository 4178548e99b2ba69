//! Numbers beyond every limit, keys given twice and inputs that the run would replace: refused by name before the output
//! directory is touched.

use std::fs;
use std::path::Path;

use miles_core::plugin::limits::{MAX_COMPLETIONS, MAX_THREADS};
use miles_core::policy::LedgerFile;
use miles_grpo::config::Why;
use miles_grpo::track::read_metrics;

use crate::bad_input::{config_errors, refused};
use crate::support::files::tree;
use crate::support::workspace::Workspace;

/// Writes the first key of the first object in a file a second time.
fn double_first_key(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let open = text.find('{').unwrap();
    let key = text[open..].split('"').nth(1).unwrap().to_owned();
    fs::write(file, format!("{}{{\"{key}\": null, {}", &text[..open], &text[open + 1..])).unwrap();
    key
}

#[test]
fn counts_and_threads_of_any_size_are_refused_before_anything_is_made() {
    let workspace = Workspace::new("qwen3");
    for key in [
        "rollout.group_size",
        "rollout.prompts_per_step",
        "rollout.max_running",
        "rollout.top_k",
        "eval.samples",
        "run.threads",
        "run.steps",
        "train.micro_batch_tokens",
        "train.mini_batches",
        "train.warmup_steps",
        "checkpoint.keep_last",
        "store.keep_last",
        "model.context_tokens",
        "rollout.max_new_tokens",
    ] {
        let errors = config_errors(refused(&workspace, &[&format!("{key}={}", i64::MAX)]));
        assert_eq!(errors.issues.iter().filter(|issue| issue.key == key).count(), 1, "{errors}");
    }
    let errors = config_errors(refused(&workspace, &[&format!("run.threads={}", MAX_THREADS + 1)]));
    assert!(errors.to_string().contains("from 1 to 1024"), "{errors}");
    for key in ["rollout.temperature", "rollout.top_p", "rollout.min_p", "eval.temperature"] {
        for value in ["1e-300", "0.0000001", "1001", "-1", "1e300"] {
            let errors = config_errors(refused(&workspace, &[&format!("{key}={value}")]));
            assert_eq!(errors.issues[0].key, key, "{errors}");
        }
    }
}

#[test]
fn completions_of_all_held_out_prompts_together_have_a_limit() {
    let workspace = Workspace::new("qwen3");
    let eval = format!("data.eval={}", workspace.path("eval.jsonl").display());
    let samples = format!("eval.samples={}", MAX_COMPLETIONS / 2 + 1);
    let errors = config_errors(refused(&workspace, &[&eval, &samples, "eval.temperature=1"]));
    let [issue] = &errors.issues[..] else { panic!("{errors}") };
    assert_eq!(issue.key, "eval.samples");
    assert!(
        matches!(issue.why, Why::TooManyTogether { .. }) && errors.to_string().contains("data.eval = 2"),
        "{errors}"
    );
}

#[test]
fn a_key_given_twice_in_any_file_of_the_model_or_the_data_is_named() {
    for (file, overrides) in [
        ("model/config.json", &[][..]),
        ("model/generation_config.json", &[]),
        ("model/tokenizer.json", &[]),
        ("model/tokenizer_config.json", &["data.chat_template=true"]),
        ("model/model.safetensors.index.json", &[]),
        ("train.jsonl", &[]),
    ] {
        let workspace = Workspace::new("qwen3-moe-sharded");
        if !workspace.path(file).exists() {
            fs::write(workspace.path(file), "{\"chat_template\": \"{{ messages[0].content }}\"}").unwrap();
        }
        let key = double_first_key(&workspace.path(file));
        let error = refused(&workspace, overrides).to_string();
        let name = file.rsplit('/').next().unwrap();
        assert!(error.contains(name) && error.contains(&format!("`{key}` is given twice")), "{file}: {error}");
    }
}

#[test]
fn a_key_given_twice_in_a_file_of_the_run_is_named() {
    let workspace = Workspace::new("qwen3");
    workspace.run_until("out", &["run.steps=2"], 1).unwrap();
    let out = workspace.path("out");
    for file in ["checkpoints/step-00000001/trainer.json", "checkpoints/step-00000001/loop.json"] {
        let whole = fs::read(out.join(file)).unwrap();
        let key = double_first_key(&out.join(file));
        let before = tree(&out);
        let error = workspace.run("out", &["run.steps=2", "run.existing=resume"]).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(&format!("`{key}` is given twice")), "{error}");
        assert!(tree(&out) == before, "the run was touched before the error: {error}");
        fs::write(out.join(file), whole).unwrap();
    }
    let key = double_first_key(&out.join("metrics.jsonl"));
    let error = read_metrics(&out.join("metrics.jsonl")).unwrap_err().to_string();
    assert!(error.contains("metrics.jsonl:1") && error.contains(&format!("`{key}`")), "{error}");
    let key = double_first_key(&out.join("ledger.jsonl"));
    let error = LedgerFile::open(&out.join("ledger.jsonl")).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("ledger.jsonl") && error.contains(&format!("`{key}`")), "{error}");
}

#[test]
fn a_run_does_not_replace_the_policy_that_it_starts_from() {
    let workspace = Workspace::new("qwen3");
    workspace.run("out", &["run.steps=1"]).unwrap();
    let before = tree(&workspace.path("out"));
    fs::copy(workspace.path("model/tokenizer.json"), workspace.path("out/policy/tokenizer.json")).unwrap();
    let model = format!("model.dir={}", workspace.path("out/policy").display());
    for existing in ["run.existing=overwrite", "run.existing=resume"] {
        let errors = miles_grpo::Plan::new(&workspace.config("out", &[&model, existing])).unwrap_err();
        let [issue] = &errors.issues[..] else { panic!("{errors}") };
        assert!(issue.key == "model.dir" && matches!(issue.why, Why::Replaced { .. }), "{errors}");
    }
    assert!(tree(&workspace.path("out")).keys().eq(before.keys()));
}

#[test]
fn a_run_file_that_is_not_toml_is_named_when_it_is_read_back() {
    let workspace = Workspace::new("qwen3");
    workspace.run("out", &["run.steps=1"]).unwrap();
    let file = workspace.path("out/run.toml");
    fs::write(&file, "run.steps = = 1").unwrap();
    let error = miles_grpo::left_run::LeftRun::open(&workspace.path("out")).unwrap_err().to_string();
    assert!(error.contains(&file.display().to_string()), "{error}");
}
