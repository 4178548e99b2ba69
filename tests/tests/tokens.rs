//! Token in, token out: what was sampled is what is trained on; text is for rewards and people.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_grpo::data::TextTokenizer;

use crate::support::backend;
use crate::support::files::LETTERS;
use crate::support::spy::{Log, logged};
use crate::support::workspace::{Workspace, finish};

/// Prefers letters, and remembers the text of every completion.
#[derive(Clone, Default)]
struct LikesLetters(Arc<Mutex<HashMap<Vec<u32>, String>>>);

#[async_trait]
impl Reward for LikesLetters {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        self.0.lock().unwrap().insert(input.completion_tokens.to_vec(), input.completion.to_owned());
        let letters = input.completion.chars().filter(|letter| LETTERS.contains(*letter)).count();
        Ok(letters as f32)
    }
}

/// O18: the tokenizer merges letters, also over an id that leaves no text, so decoding and encoding again gives other
/// ids for most completions. The trainer gets the sampled ids and their logprobs, id by id.
#[test]
fn o18_sampled_ids_are_trained_on_whatever_their_text_encodes_to() {
    let workspace = Workspace::new("qwen3-moe");
    let (log, reward) = (Log::default(), LikesLetters::default());
    let overrides = ["rollout.max_new_tokens=16", "rollout.prompts_per_step=6", "precision.recipe=nvfp4-dequantized"];
    let run = workspace.builder_on(logged(&backend(2), &log), "out", &overrides);
    finish(run.reward(reward.clone())).unwrap();

    let (rollouts, batches) = (log.rollouts.lock().unwrap(), log.batches.lock().unwrap());
    assert_eq!((rollouts.len(), batches.len()), (3, 3));
    let tokenizer = TextTokenizer::read(&workspace.path("model")).unwrap();
    let texts = reward.0.lock().unwrap();
    let (mut changed, mut over_special) = (0, 0);
    for (rollout, batch) in rollouts.iter().zip(batches.iter()) {
        assert_eq!(batch.stamp(), rollout.stamp);
        let sampled = rollout.groups.iter().flat_map(|group| group.completions.iter().map(move |c| (group, c)));
        let sampled: Vec<_> = sampled.collect();
        assert_eq!(batch.samples().len(), sampled.len());
        for (sample, (group, completion)) in batch.samples().iter().zip(sampled) {
            assert_eq!(sample.tokens[..sample.prompt_tokens], group.prompt_tokens);
            assert_eq!(sample.tokens[sample.prompt_tokens..], completion.tokens);
            assert_eq!(sample.rollout_logprobs, completion.logprobs);
            let again = tokenizer.encode(&texts[&completion.tokens], false).unwrap();
            changed += usize::from(again != completion.tokens);
            over_special += usize::from(completion.tokens.contains(&0) && again != completion.tokens);
        }
    }
    let total = 3 * 6 * 4;
    assert!(changed > total / 3, "only {changed} of {total} completions have text that encodes to other ids");
    assert!(over_special > 0, "no completion has a special token inside");
}

/// The vocabulary of the model may be larger than the tokenizer's; prompts outside it are refused with the file's name.
#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let workspace = Workspace::new("qwen3-moe");
    crate::support::files::write_tokenizer(&workspace.path("model"), 400);
    std::fs::write(workspace.path("train.jsonl"), "{\"prompt\":\"ab\"}\n{\"prompt\":\"cd\"}\n").unwrap();
    let error = workspace.run("out", &[]).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("vocabulary of 160"), "{error}");
    assert!(!workspace.path("out").exists());
}
