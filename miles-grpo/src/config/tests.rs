//! Reading, refusing, checking; everything at once.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{ConfigErrors, ConfigFingerprint, OnRewardError, Plan, RunConfig, Why};

fn owned(overrides: &[&str]) -> Vec<String> {
    overrides.iter().map(|&text| text.to_owned()).collect()
}

fn parse(text: &str, overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    RunConfig::parse(text, &owned(overrides))
}

fn keys(errors: &ConfigErrors) -> Vec<&str> {
    errors.issues.iter().map(|issue| issue.key.as_str()).collect()
}

/// A directory with a model config of 32 tokens context and a data file, and the two keys that name them.
fn with_model(test: impl FnOnce(&Path, &str)) {
    let dir = tempfile::tempdir().unwrap();
    let model = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 17, "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32, "rope_theta": 10000.0, "eos_token_id": [0, 16], "hidden_act": "silu"
    });
    fs::write(dir.path().join("config.json"), model.to_string()).unwrap();
    fs::write(dir.path().join("train.jsonl"), "{\"prompt\":\"1\"}\n").unwrap();
    let text = format!(
        "model.dir = {:?}\ndata.train = {:?}\nrollout.max_new_tokens = 8\n",
        dir.path(),
        dir.path().join("train.jsonl")
    );
    test(dir.path(), &text);
}

fn plan(text: &str, overrides: &[&str]) -> Result<Plan, ConfigErrors> {
    Plan::new(&parse(text, overrides)?)
}

#[test]
fn the_empty_file_gives_every_default_and_toml_gives_them_back() {
    let config = parse("", &[]).unwrap();
    assert_eq!(config, RunConfig::default());
    assert_eq!(parse(&config.to_toml(), &[]).unwrap(), config);
}

#[test]
fn sections_and_dotted_keys_and_overrides_are_one_language() {
    let by_section = parse("[rollout]\ntemperature = 0.5\n[loss.options]\neps_high = 0.28\n", &[]).unwrap();
    let by_dots = parse("rollout.temperature = 0.5\nloss.options.eps_high = 0.28\n", &[]).unwrap();
    let by_override = parse("", &["rollout.temperature=0.5", "loss.options.eps_high=0.28"]).unwrap();
    assert_eq!(by_section, by_dots);
    assert_eq!(by_section, by_override);
    assert_eq!(by_section.loss.options["eps_high"], 0.28);
}

#[test]
fn later_overrides_win_and_take_the_type_of_their_key() {
    let overrides = [
        "run.steps=5",
        "run.steps=7",
        "run.name=12",
        "precision.recipe=nvfp4-dequantized",
        "rollout.temperature=1",
        "data.chat_template=true",
        "data.eval = held out.jsonl",
        "run.threads=3",
    ];
    let config = parse("run.steps = 3", &overrides).unwrap();
    assert_eq!((config.run.steps, config.run.name.as_str()), (7, "12"));
    assert_eq!(config.precision.recipe, "nvfp4-dequantized");
    assert!(config.data.chat_template);
    assert_eq!(config.data.eval.as_deref(), Some(Path::new("held out.jsonl")));
    assert_eq!(config.run.threads, Some(3));
}

#[test]
fn every_fault_of_reading_is_reported_with_its_key() {
    let text = "
steps = 5
[run]
sed = 1
steps = \"many\"
[rollout]
temprature = 1.0
temperature = nan
[rolout]
group_size = 4
[train]
mini_batches = -1
";
    let errors = parse(text, &[]).unwrap_err();
    let mut found = keys(&errors);
    found.sort_unstable();
    let expected =
        ["rollout.temperature", "rollout.temprature", "rolout", "run.sed", "run.steps", "steps", "train.mini_batches"];
    assert_eq!(found, expected);
    let text = errors.to_string();
    for hint in ["`run.steps`", "`run.seed`", "`rollout.temperature`", "many", "finite"] {
        assert!(text.contains(hint), "{hint} in {text}");
    }
}

#[test]
fn overrides_are_refused_like_keys() {
    let errors = parse("", &["run.steps", "run.stepz=4", "train.beta1=fast", "rollout.group_size=2.5"]).unwrap_err();
    assert_eq!(keys(&errors), ["run.steps", "run.stepz", "train.beta1", "rollout.group_size"]);
    assert!(matches!(errors.issues[0].why, Why::NotAnOverride));
    assert!(matches!(&errors.issues[1].why, Why::UnknownKey { nearest: Some(key) } if key == "run.steps"));
}

#[test]
fn what_is_not_toml_is_one_error() {
    let errors = parse("run.steps = = 3", &[]).unwrap_err();
    assert!(matches!(errors.issues[..], [super::ConfigIssue { why: Why::NotToml(_), .. }]));
    let errors = RunConfig::read(Path::new("no/such/file.toml"), &[]).unwrap_err();
    assert!(matches!(errors.issues[..], [super::ConfigIssue { why: Why::Unreadable(_), .. }]));
}

#[test]
fn a_good_config_becomes_a_plan() {
    with_model(|_, text| {
        let plan = plan(text, &["reward.on_error=0.25", "train.clip_grad_norm=0", "run.steps=3"]).unwrap();
        assert_eq!(plan.model.context_tokens, 32);
        assert_eq!(plan.rollout.sampling.eos_token_ids, [0, 16]);
        assert_eq!(plan.on_reward_error, OnRewardError::Score(0.25));
        assert_eq!(plan.train.max_grad_norm, None);
        assert!(plan.evaluation.is_none());
    });
}

#[test]
fn every_fault_of_checking_is_reported_at_once() {
    with_model(|_, text| {
        let faults = [
            ("run.name", ""),
            ("run.steps", "0"),
            ("run.threads", "0"),
            ("rollout.prompts_per_step", "0"),
            ("rollout.group_size", "1"),
            ("rollout.temperature", "-0.5"),
            ("rollout.top_p", "0"),
            ("rollout.min_p", "1"),
            ("rollout.max_running", "0"),
            ("rollout.max_new_tokens", "32"),
            ("train.learning_rate", "-1"),
            ("train.beta1", "1"),
            ("train.beta2", "-0.1"),
            ("train.eps", "0"),
            ("train.weight_decay", "-1"),
            ("train.clip_grad_norm", "-1"),
            ("train.micro_batch_tokens", "0"),
            ("train.mini_batches", "2"),
            ("eval.samples", "0"),
            ("eval.temperature", "-1"),
            ("checkpoint.keep_last", "0"),
            ("store.keep_last", "0"),
            ("store.bytes_per_second", "0"),
            ("data.eval", "no-such-file"),
            ("export.experts", "packed"),
            ("precision.recipe", "nvfp4-dequantised"),
            ("precision.expert_tensor_parallel", "0"),
            ("reward.on_error", "ignore"),
            ("data.date", "today"),
            ("reward.name", "arithmetik"),
            ("advantage.name", "group"),
            ("loss.options.eps_low", "2"),
            ("scheduler.name", "sync"),
        ];
        let overrides: Vec<String> = faults.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let config = RunConfig::parse(text, &overrides).unwrap();
        let errors = Plan::new(&config).unwrap_err();
        let found = keys(&errors);
        for (key, _) in faults {
            let key = if key.starts_with("loss.options") { "loss.options" } else { key };
            assert_eq!(found.iter().filter(|found| **found == key).count(), 1, "{key} in {found:?}");
        }
        assert_eq!(found.len(), faults.len(), "{found:?}");
        let text = errors.to_string();
        for hint in ["`nvfp4-dequantized`", "`arithmetic`", "group-normalized", "context of 32", "eps_low"] {
            assert!(text.contains(hint), "{hint} in {text}");
        }
    });
}

#[test]
fn faults_of_reading_and_of_checking_are_reported_together() {
    with_model(|_, text| {
        let text = format!("{text}rollout.group_size = 1\nrollout.temprature = 2.0\n");
        let errors = Plan::read(RunConfig::default(), &text, &owned(&["run.steps=0", "train.eps=tiny"])).unwrap_err();
        assert_eq!(keys(&errors), ["rollout.temprature", "train.eps", "run.steps", "rollout.group_size"]);
        let errors = Plan::read(RunConfig::default(), "data.train = 3\n", &[]).unwrap_err();
        assert_eq!(keys(&errors), ["data.train", "model.dir"], "an unreadable key is not also missing");
    });
}

#[test]
fn contradictions_name_both_sides() {
    with_model(|_, text| {
        for (overrides, key, with) in [
            (&["rollout.temperature=0"][..], "rollout.temperature", "rollout.group_size = 8"),
            (&["eval.samples=4"], "eval.temperature", "eval.samples = 4"),
            (&["train.mini_batches=9"], "train.mini_batches", "rollout.prompts_per_step = 8"),
            (&["model.context_tokens=64"], "model.context_tokens", "32 tokens"),
            (&["model.context_tokens=8"], "rollout.max_new_tokens", "context of 8"),
        ] {
            let errors = plan(text, overrides).unwrap_err();
            assert_eq!(keys(&errors), [key]);
            assert!(errors.to_string().contains(with), "{errors}");
        }
    });
}

#[test]
fn required_keys_are_asked_for() {
    let errors = Plan::new(&RunConfig::default()).unwrap_err();
    let missing: Vec<&str> = errors
        .issues
        .iter()
        .filter(|issue| matches!(issue.why, Why::Missing))
        .map(|issue| issue.key.as_str())
        .collect();
    assert_eq!(missing, ["model.dir", "data.train"]);
}

#[test]
fn a_model_that_cannot_be_read_is_one_of_the_errors() {
    with_model(|dir, text| {
        fs::write(dir.join("config.json"), "{\"architectures\":[\"GPT9\"]}").unwrap();
        let errors = plan(text, &["run.steps=0"]).unwrap_err();
        assert_eq!(keys(&errors), ["model.dir", "run.steps"]);
        assert!(errors.to_string().contains("LlamaForCausalLM"), "{errors}");
    });
}

#[test]
fn fingerprints_differ_in_keys_that_change_results_only() {
    let fingerprint = |overrides: &[&str]| ConfigFingerprint::of(&parse("", overrides).unwrap());
    let base = fingerprint(&[]);
    let free = fingerprint(&[
        "run.out=elsewhere",
        "run.threads=3",
        "checkpoint.every=5",
        "run.steps=7",
        "run.existing=resume",
    ]);
    assert_eq!(base.digest(), free.digest());
    let changed = fingerprint(&["run.seed=9", "loss.options.eps_low=0.1"]);
    assert_ne!(base.digest(), changed.digest());
    assert_eq!(base.differences(&changed), ["loss.options: {} -> {\"eps_low\":0.1}", "run.seed: 0 -> 9"]);
    let linear = fingerprint(&["train.schedule=linear"]);
    assert_eq!(linear.values.get("run.steps"), Some(&Value::from(100)), "the rate depends on the length of the run");
    assert_eq!(base.values.get("run.steps"), None);
}
