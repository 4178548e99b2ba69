//! `run.toml` of any content with any overrides: read, checked, written, read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use miles_grpo::config::ConfigFingerprint;
use miles_grpo::{Plan, RunConfig};

fuzz_target!(|text: &str| {
    // Lines that begin with a dash are overrides.
    let (overrides, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('-'));
    let overrides: Vec<String> = overrides.into_iter().map(|line| line[1..].to_owned()).collect();
    let toml = lines.join("\n");
    if let Err(errors) = Plan::read(RunConfig::default(), &toml, &overrides) {
        assert!(!errors.issues.is_empty() && !errors.to_string().is_empty());
    }
    let Ok(config) = RunConfig::parse(&toml, &overrides) else { return };
    let written = config.to_toml().expect("what was read from TOML can be written");
    let again = RunConfig::parse(&written, &[]).unwrap_or_else(|errors| panic!("{errors}\n{written}"));
    let (before, after) = (ConfigFingerprint::of(&config), ConfigFingerprint::of(&again));
    assert_eq!(before.differences(&after), Vec::<String>::new());
    assert_eq!(before.digest(), after.digest());
});
