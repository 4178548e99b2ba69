//! Rewards on any completion and answer: a number or an error, and what was given as the answer scores as such.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use futures_lite::future::block_on;
use libfuzzer_sys::fuzz_target;
use miles_core::plugin::{Reward, RewardInput};
use miles_core::registry;
use miles_grpo::reward::Number;

#[derive(Debug, Arbitrary)]
struct Case<'a> {
    completion: &'a str,
    answer: Option<&'a str>,
}

static REWARDS: LazyLock<Vec<Box<dyn Reward>>> = LazyLock::new(|| {
    let options = serde_json::Value::Null;
    registry::reward_names().into_iter().map(|name| registry::reward(name, &options).unwrap()).collect()
});

fuzz_target!(|case: Case| {
    let Case { completion, answer } = case;
    let row = serde_json::Map::new();
    let input = RewardInput { prompt: "", completion, completion_tokens: &[], answer, finished: true, row: &row };
    assert!(REWARDS.len() >= 2, "the rewards are not linked");
    for reward in REWARDS.iter() {
        if let Ok(score) = block_on(reward.score(&input)) {
            assert!((0.0..=1.0).contains(&score));
        }
    }
    for number in [Number::first_in(completion), Number::last_in(completion), Number::parse(completion)] {
        if let Some(number) = number {
            assert_eq!(Number::parse(&number.to_string()), Some(number), "written and read again");
        }
    }
});
