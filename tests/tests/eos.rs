//! Every end-of-sequence id ends a completion, and the engine's word for why it ended is what counts.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use miles_core::plugin::{Completion, FinishReason, Reward, RewardError, RewardInput};
use serde_json::json;

use crate::support::backend;
use crate::support::files::edit_json;
use crate::support::spy::{Log, logged};
use crate::support::workspace::{Workspace, finish};

/// Ids of a completion, and whether it ended by itself.
type Ended = (Vec<u32>, bool);

/// What the reward saw of each completion.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Ended>>>);

#[async_trait]
impl Reward for Seen {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        self.0.lock().unwrap().push((input.completion_tokens.to_vec(), input.finished));
        Ok(input.completion_tokens[0] as f32)
    }
}

/// A run of one step with these ids in `generation_config.json` (and another one in `config.json`).
struct OneStep {
    workspace: Workspace,
    log: Log,
    seen: Seen,
}

impl OneStep {
    fn new(eos_token_ids: &[u32]) -> Self {
        let workspace = Workspace::new("qwen3-moe");
        edit_json(&workspace.path("model/generation_config.json"), |config| {
            config["eos_token_id"] = json!(eos_token_ids);
        });
        let (log, seen) = (Log::default(), Seen::default());
        let overrides = ["run.steps=1", "rollout.max_new_tokens=24", "rollout.prompts_per_step=6"];
        let run = workspace.builder_on(logged(&backend(2), &log), "out", &overrides).reward(seen.clone());
        finish(run).unwrap();
        OneStep { workspace, log, seen }
    }

    fn completions(&self) -> Vec<Completion> {
        let rollouts = self.log.rollouts.lock().unwrap();
        assert_eq!(rollouts.len(), 1);
        rollouts[0].groups.iter().flat_map(|group| group.completions.clone()).collect()
    }
}

/// O17: three ids in `generation_config.json`; completions that end with the second one are terminated, not truncated.
#[test]
fn o17_the_second_of_three_eos_ids_ends_a_completion() {
    // Draws depend on their coordinates alone, so a run without any id that ends shows what will be drawn.
    let endless = OneStep::new(&[]).completions();
    assert!(endless.iter().all(|completion| completion.finish == FinishReason::Length));
    let drawn = |id: u32| endless.iter().filter(|completion| completion.tokens[1..23].contains(&id)).count();
    let never: Vec<u32> = (0..160).filter(|&id| endless.iter().all(|c| !c.tokens.contains(&id))).collect();
    let second = (never[0] + 1..*never.last().unwrap()).max_by_key(|&id| drawn(id)).unwrap();
    assert!(drawn(second) >= 3, "no id is drawn often enough to test with");

    let run = OneStep::new(&[never[0], second, *never.last().unwrap()]);
    let completions = run.completions();
    let mut terminated = 0;
    for (completion, whole) in completions.iter().zip(&endless) {
        match whole.tokens.iter().position(|&id| id == second) {
            Some(at) => {
                assert_eq!(completion.tokens, whole.tokens[..=at], "the id itself is part of the completion");
                assert_eq!(completion.finish, FinishReason::Eos);
                terminated += 1;
            }
            None => {
                assert_eq!(completion.tokens, whole.tokens);
                assert_eq!(completion.finish, FinishReason::Length);
            }
        }
    }
    assert!(terminated >= 3 && terminated < completions.len(), "{terminated} of {}", completions.len());

    let record = &run.workspace.metrics("out")[0];
    let truncated = (completions.len() - terminated) as f64 / completions.len() as f64;
    assert_eq!(record.number("rollout/truncated_fraction"), Some(truncated));
    let tokens: usize = completions.iter().map(|completion| completion.tokens.len()).sum();
    let mean = tokens as f64 / completions.len() as f64;
    assert_eq!(record.number("rollout/response_tokens_mean"), Some(mean));

    let seen = run.seen.0.lock().unwrap();
    assert_eq!(seen.len(), completions.len());
    for (completion, (ids, finished)) in completions.iter().zip(seen.iter()) {
        assert_eq!((&completion.tokens, completion.finish == FinishReason::Eos), (ids, *finished));
    }
    let batches = run.log.batches.lock().unwrap();
    for (sample, completion) in batches[0].samples().iter().zip(&completions) {
        assert_eq!(sample.tokens[sample.prompt_tokens..], completion.tokens, "the mask ends with the ending id");
    }
}
