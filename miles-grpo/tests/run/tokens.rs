//! Token in, token out.

use std::collections::BTreeSet;

use async_trait::async_trait;
use miles_core::plugin::{Reward, RewardError, RewardInput};
use miles_grpo::data::TextTokenizer;

use crate::fake::{Workspace, finish};

/// Likes `ab`, however it is cut into tokens.
struct LikesAb;

#[async_trait]
impl Reward for LikesAb {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        Ok(f32::from(u8::from(input.completion.contains("ab"))))
    }
}

/// O18: where decoding and encoding again gives other ids, the ids that are trained on are the sampled ones.
#[test]
fn o18_the_sampled_ids_are_trained_on_not_their_text_encoded_again() {
    let workspace = Workspace::new();
    finish(workspace.builder("out", &["run.steps=20", "eval.every=0"]).reward(LikesAb)).unwrap();
    let tokenizer = TextTokenizer::read(&workspace.path("model")).unwrap();
    let sampled: BTreeSet<Vec<u32>> = workspace.probe.sampled.lock().unwrap().iter().cloned().collect();
    let trained = workspace.probe.trained.lock().unwrap();
    assert_eq!(trained.len(), 20 * 4 * 8);
    let mut changed_by_text = 0;
    for sample in trained.iter() {
        let completion = &sample.tokens[sample.prompt_tokens..];
        assert!(sampled.contains(completion), "{completion:?} was never sampled");
        let again = tokenizer.encode(&tokenizer.decode(completion).unwrap(), false).unwrap();
        changed_by_text +=
            usize::from(!again.is_empty() && again != completion && completion.windows(2).any(|w| w == [13, 14]));
    }
    assert!(changed_by_text > 0, "the test sampled nothing that its text would have changed");
}
