//! Reading, refusing, checking; everything at once.

mod limits;

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
    assert_eq!(parse(&config.to_toml().unwrap(), &[]).unwrap(), config);
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
fn an_input_that_the_run_would_replace_is_refused() {
    with_model(|dir, text| {
        let out = dir.join("out");
        let inside = |name: &str| out.join("policy").join(name);
        fs::create_dir_all(out.join("policy")).unwrap();
        for name in ["config.json", "train.jsonl"] {
            fs::copy(dir.join(name), inside(name)).unwrap();
        }
        fs::write(out.join("metrics.jsonl"), "{\"prompt\":\"1\"}\n").unwrap();
        let named = |key: &str, path: &Path| format!("{key}={}", path.display());
        for (key, path) in [
            ("model.dir", out.join("policy")),
            ("data.train", inside("train.jsonl")),
            ("data.eval", inside("../policy/train.jsonl")),
            ("data.eval", out.join("metrics.jsonl")),
        ] {
            let overrides = [named("run.out", &dir.join("./out")), named(key, &path)];
            let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
            let errors = plan(text, &overrides).unwrap_err();
            assert_eq!(keys(&errors), [key]);
            assert!(matches!(errors.issues[0].why, Why::Replaced { .. }), "{errors}");
            // Beside what the run replaces, an input is safe.
            plan(text, &[&named("run.out", dir), overrides[1]]).unwrap();
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(out.join("policy"), dir.join("link")).unwrap();
            let overrides = [named("run.out", &out), named("model.dir", &dir.join("link"))];
            let errors = plan(text, &[&overrides[0], &overrides[1]]).unwrap_err();
            assert_eq!(keys(&errors), ["model.dir"]);
        }
    });
}

#[test]
fn an_override_is_one_value_and_cannot_set_another_key() {
    for text in ["run.steps=1\nrun.name=\"x\"", "run.steps=1 2", "run.steps=1\n[data]\ntrain = \"x\"", "run.steps=1]"] {
        let errors = parse("", &[text]).unwrap_err();
        assert_eq!(keys(&errors), ["run.steps"]);
        assert_eq!(errors.to_string().lines().count(), 2, "{errors}");
    }
    // A text of several lines stays the text that it is.
    let config = parse("", &["run.name=1\nrun.steps = 7", "run.steps= 3 "]).unwrap();
    assert_eq!((config.run.name.as_str(), config.run.steps), ("1\nrun.steps = 7", 3));
    let config = parse("", &["loss.options.denominator=\"a\"", "precision.rules=[{ format = \"bf16\" }]"]).unwrap();
    assert_eq!((config.loss.options["denominator"].as_str(), config.precision.rules.len()), (Some("a"), 1));
    let errors = parse("", &["run.na\nme=1"]).unwrap_err();
    assert_eq!(errors.to_string().lines().count(), 2, "{errors}");
}

#[test]
fn a_file_that_is_not_toml_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    for (content, why) in
        [(&b"run.steps = = 3"[..], "line 1"), (b"run.steps = 1\nrun.steps = 2", "duplicate"), (b"\xff", "UTF-8")]
    {
        fs::write(&path, content).unwrap();
        let by_config = RunConfig::read(&path, &[]).unwrap_err();
        let by_plan = Plan::read_file(RunConfig::default(), &path, &owned(&["run.steps=0"])).unwrap_err();
        for errors in [&by_config, &by_plan] {
            assert_eq!(errors.issues[0].key, path.display().to_string());
            assert!(errors.to_string().contains(why), "{errors}");
        }
        assert!(keys(&by_plan).contains(&"run.steps"), "the overrides are read as well: {by_plan}");
    }
    let absent = dir.path().join("absent.toml");
    let errors = Plan::read_file(RunConfig::default(), &absent, &[]).unwrap_err();
    assert_eq!(errors.issues[0].key, absent.display().to_string());
}

#[test]
fn a_config_that_toml_cannot_hold_is_refused_and_not_written_empty() {
    with_model(|_, text| {
        let mut config = parse(text, &[]).unwrap();
        config.scheduler.options.insert("none".to_owned(), Value::Null);
        assert!(matches!(config.to_toml(), Err(Why::NotWritable(_))));
        assert!(keys(&Plan::new(&config).unwrap_err()).contains(&"(config)"));
        let mut config = parse(text, &[]).unwrap();
        config.run.seed = u64::MAX;
        assert!(parse(&config.to_toml().unwrap(), &[]).is_err(), "no TOML reader takes this number");
        assert_eq!(keys(&Plan::new(&config).unwrap_err()), ["run.seed"]);
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
            (&["rollout.top_k=1"], "rollout.top_k", "rollout.group_size = 8"),
            (&["rollout.min_p=1"], "rollout.min_p", "rollout.group_size = 8"),
            (&["train.learning_rate=10", "train.weight_decay=0.2"], "train.weight_decay", "train.learning_rate = 10.0"),
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
