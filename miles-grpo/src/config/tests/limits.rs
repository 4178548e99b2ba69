//! The table of limits, and counts that are too large together.

use super::*;
use crate::config::limits::{LIMITS, Limit, OPTIONAL};

/// The table of limits is not written from the struct, so it could miss a key.
#[test]
fn every_key_that_takes_a_number_has_a_limit() {
    let takes_a_number = |key: &str| {
        [("1", "whole"), ("0.5", "fraction")]
            .into_iter()
            .any(|(value, _)| parse(&format!("{key} = {value}"), &[]).is_ok())
    };
    // A reward of any finite value, which has a check of its own.
    let free = |key: &String| key != "reward.on_error";
    let keys: Vec<String> = RunConfig::keys().into_iter().map(|(key, _)| key).filter(free).collect();
    let numbers: Vec<&str> = keys.iter().map(String::as_str).filter(|key| takes_a_number(key)).collect();
    assert_eq!(numbers, LIMITS.map(|(key, _)| key));
    let defaults = RunConfig::default().flattened();
    for (key, limit) in LIMITS {
        let (_, default) = defaults.iter().find(|(known, _)| known == key).unwrap();
        assert_eq!(default.is_null(), OPTIONAL.contains(&key), "{key}");
        assert!(default.is_null() || limit.holds(default), "the default of {key}, {default}, is not {limit}");
    }
}

#[test]
fn a_number_beyond_its_limit_is_refused_by_key_before_anything_is_made() {
    with_model(|dir, text| {
        for (key, limit) in LIMITS {
            let values: Vec<String> = match limit {
                Limit::Whole(low, high) => [low.checked_sub(1), high.checked_add(1), Some(i64::MAX as u64)]
                    .into_iter()
                    .flatten()
                    .filter(|value| !(low..=high).contains(value) && i64::try_from(*value).is_ok())
                    .map(|value| value.to_string())
                    .collect(),
                _ => ["-1e-3", "1e300", "-1e300", "1e7"].map(str::to_owned).to_vec(),
            };
            for value in values {
                // What a smaller type than the limit's cannot hold is refused when the text is read.
                let errors = match parse(text, &[&format!("{key}={value}")]) {
                    Ok(config) => Plan::new(&config).unwrap_err(),
                    Err(errors) => errors,
                };
                let issue = errors.issues.iter().find(|issue| issue.key == key).unwrap_or_else(|| panic!("{errors}"));
                assert!(matches!(issue.why, Why::OutOfRange { .. } | Why::WrongType(_)), "{errors}");
                let shown: f64 = issue.value.parse().unwrap();
                assert_eq!(shown, value.parse::<f64>().unwrap(), "{errors}");
            }
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2, "nothing was written");
    });
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_key_also_without_a_file() {
    with_model(|_, text| {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut config = parse(text, &[]).unwrap();
            config.rollout.temperature = value;
            config.rollout.top_p = value;
            config.rollout.min_p = value;
            config.eval.temperature = value;
            let train = &mut config.train;
            for number in [
                &mut train.learning_rate,
                &mut train.beta1,
                &mut train.beta2,
                &mut train.eps,
                &mut train.weight_decay,
                &mut train.clip_grad_norm,
            ] {
                *number = value;
            }
            let errors = Plan::new(&config).unwrap_err();
            let numbers = LIMITS.iter().filter(|(_, limit)| !matches!(limit, Limit::Whole(..))).map(|(key, _)| *key);
            assert_eq!(keys(&errors), numbers.collect::<Vec<_>>());
        }
        for value in ["inf", "nan", "-inf"] {
            for key in ["rollout.temperature", "train.eps", "reward.on_error"] {
                let errors = parse(&format!("{text}{key} = {value}\n"), &[]).unwrap_err();
                assert_eq!(keys(&errors), [key]);
            }
        }
    });
}

/// A number that becomes 0 or infinite on the way to F32 is refused as it was written.
#[test]
fn numbers_that_an_f32_cannot_hold_are_shown_as_they_were_written() {
    with_model(|_, text| {
        for key in ["rollout.temperature", "rollout.top_p", "rollout.min_p", "eval.temperature", "reward.on_error"] {
            for value in ["1e-300", "1e300"] {
                let errors = plan(text, &[&format!("{key}={value}")]).unwrap_err();
                assert_eq!(keys(&errors), [key]);
                assert!(errors.to_string().contains(value.trim_start_matches("1e")), "{errors}");
                assert_eq!(errors.issues[0].value.parse::<f64>().unwrap(), value.parse::<f64>().unwrap());
                assert!(matches!(errors.issues[0].why, Why::OutOfRange { .. }), "{errors}");
            }
        }
        let plan = plan(text, &["rollout.temperature=0.7", "reward.on_error=0.1"]).unwrap();
        assert_eq!(plan.rollout.sampling.temperature, 0.7);
        assert_eq!(plan.on_reward_error, OnRewardError::Score(0.1));
        assert!(plan.config_toml.contains("temperature = 0.7\n"), "{}", plan.config_toml);
    });
}

#[test]
fn counts_that_are_too_large_together_are_refused() {
    with_model(|_, text| {
        let wide = "rollout.max_new_tokens=30";
        for (overrides, key, with) in [
            (&["rollout.prompts_per_step=65536", "rollout.group_size=17"][..], "rollout.group_size", "65536"),
            (
                &["rollout.prompts_per_step=1048576", "rollout.group_size=1048576"],
                "rollout.group_size",
                "1099511627776",
            ),
        ] {
            let errors = plan(text, &[overrides, &[wide]].concat()).unwrap_err();
            assert_eq!(keys(&errors), [key]);
            assert!(matches!(errors.issues[0].why, Why::TooManyTogether { .. }) && errors.to_string().contains(with));
        }
        plan(text, &["rollout.prompts_per_step=65536", "rollout.group_size=16"]).unwrap();
        // Without a model nothing bounds the completion.
        let overrides = [
            "rollout.prompts_per_step=1024",
            "rollout.group_size=1024",
            "rollout.max_new_tokens=4097",
            "eval.samples=2",
        ];
        let errors = plan("", &overrides).unwrap_err();
        assert!(keys(&errors).contains(&"rollout.max_new_tokens"), "{errors}");
        let errors = plan("", &["eval.samples=1048576", "rollout.max_new_tokens=4097"]).unwrap_err();
        assert!(keys(&errors).contains(&"eval.samples"), "{errors}");
    });
}
