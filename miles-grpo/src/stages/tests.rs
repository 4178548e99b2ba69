//! Each stage by itself, with an engine and a reward that say what they are told.

use std::sync::Arc;

use async_trait::async_trait;
use futures_lite::future::{block_on, yield_now};
use miles_core::digest::Digest;
use miles_core::plugin::{
    Advantage, CancelToken, Completion, CompletionGroup, FinishReason, GenerateRequest, Reward, RewardError,
    RewardInput, Rollout, RolloutEngine, RolloutError, RolloutStats, Sampling,
};
use miles_core::policy::{PolicyError, PolicyStamp, PolicyVersion, Snapshot};

use super::{
    Credited, Judge, Outcome, Rewarded, RolloutRequest, Sampled, StageError, advantage, batch, reward, rollout,
};
use crate::Error;
use crate::advantage::Centered;
use crate::config::OnRewardError;
use crate::data::{Fields, PromptReader, PromptSet, TextTokenizer};

struct Fixture {
    tokenizer: TextTokenizer,
    prompts: PromptSet,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), include_str!("../../tests/data/tokenizer.json")).unwrap();
    let path = dir.path().join("data.jsonl");
    std::fs::write(&path, "{\"prompt\":\"1\",\"answer\":\"1\"}\n{\"prompt\":\"2\",\"answer\":\"2\"}\n").unwrap();
    let tokenizer = TextTokenizer::read(dir.path()).unwrap();
    let fields = Fields { prompt: "prompt".into(), answer: "answer".into(), messages: "messages".into() };
    let (context_tokens, max_new_tokens, vocab_size) = (16, 4, 17);
    let reader = PromptReader {
        tokenizer: &tokenizer,
        template: None,
        fields: &fields,
        context_tokens,
        max_new_tokens,
        vocab_size,
    };
    let prompts = reader.read(&path).unwrap();
    Fixture { tokenizer, prompts }
}

fn stamp(version: u64) -> PolicyStamp {
    PolicyStamp { version: PolicyVersion(version), digest: Digest::of(&version.to_le_bytes()) }
}

/// Two completions per prompt: the prompt's digit, and `3`, each with an end token.
fn told(prompts: &PromptSet) -> Rollout {
    let completion = |token: u32| Completion {
        tokens: vec![token, 0],
        logprobs: vec![-0.5, -0.25],
        versions: vec![PolicyVersion(1); 2],
        finish: FinishReason::Eos,
    };
    let group = |key: usize| CompletionGroup {
        key: key as u64,
        prompt_tokens: prompts.prompts()[key].tokens.clone(),
        completions: vec![completion(key as u32 + 2), completion(4)],
    };
    Rollout {
        groups: vec![group(1), group(0)],
        stamp: stamp(1),
        stamps: vec![stamp(1)],
        logprob_temperature: 1.0,
        stats: RolloutStats::default(),
    }
}

struct Told(Rollout);

#[async_trait]
impl RolloutEngine for Told {
    async fn load(&self, _snapshot: Arc<Snapshot>) -> miles_core::Result<()> {
        Ok(())
    }

    fn loaded(&self) -> Option<PolicyStamp> {
        Some(self.0.stamp)
    }

    async fn generate(&self, _request: &GenerateRequest, _cancel: &CancelToken) -> miles_core::Result<Rollout> {
        Ok(self.0.clone())
    }
}

fn sample(fixture: &Fixture, rollout: Rollout, live: PolicyStamp) -> Result<Sampled, Error> {
    let sampling =
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens: 4, eos_token_ids: vec![0] };
    let (prompts, indices) = (&fixture.prompts, &[1, 0][..]);
    let request = RolloutRequest { prompts, indices, completions: 2, sampling: &sampling, seed: 0, step: 0 };
    block_on(rollout::sample(&Told(rollout), request, live))
}

fn judged(fixture: &Fixture, by: &dyn Reward, on_error: OnRewardError) -> Result<Rewarded, Error> {
    let sampled = sample(fixture, told(&fixture.prompts), stamp(1)).unwrap();
    let judge = Judge { reward: by, tokenizer: &fixture.tokenizer, on_error };
    block_on(reward::judge(judge, &fixture.prompts, sampled))
}

/// Judges by text; panics, fails or returns NaN where told.
struct ByText(fn(&str) -> Result<f32, RewardError>);

#[async_trait]
impl Reward for ByText {
    async fn score(&self, input: &RewardInput<'_>) -> Result<f32, RewardError> {
        yield_now().await;
        assert!(input.finished && input.completion_tokens.last() == Some(&0));
        (self.0)(input.completion)
    }
}

#[test]
fn samples_of_another_policy_are_refused() {
    let fixture = fixture();
    let rollout = || told(&fixture.prompts);
    assert!(sample(&fixture, rollout(), stamp(1)).is_ok());
    let other_bytes = PolicyStamp { digest: Digest::of(b"other"), ..stamp(1) };
    for live in [stamp(2), other_bytes] {
        let error = sample(&fixture, rollout(), live).unwrap_err();
        let stale = matches!(
            &error,
            Error::Core(miles_core::Error::Policy(PolicyError::StaleVersion { expected, .. })) if *expected == live
        );
        assert!(stale, "{error}");
    }
}

#[test]
fn completions_that_do_not_belong_to_their_prompt_are_refused() {
    let fixture = fixture();
    type Spoil = fn(&mut Rollout);
    let spoils: [(Spoil, &str); 8] = [
        (|r| r.groups.swap(0, 1), "group of prompt"),
        (|r| drop(r.groups.pop()), "1 groups for 2"),
        (|r| r.groups[0].prompt_tokens.push(3), "prompt ids"),
        (|r| drop(r.groups[1].completions.pop()), "1 completions, 2 asked"),
        (|r| r.groups[0].completions[1].tokens.clear(), "no tokens"),
        (|r| r.groups[0].completions[1].logprobs.truncate(1), "1 logprobs"),
        (|r| r.groups[0].completions[1].versions[1] = PolicyVersion(0), "token 1 was drawn from version 0"),
        (|r| r.groups[0].completions[0].finish = FinishReason::Cancelled, "cancelled"),
    ];
    for (spoil, word) in spoils {
        let mut rollout = told(&fixture.prompts);
        spoil(&mut rollout);
        let error = sample(&fixture, rollout, stamp(1)).unwrap_err().to_string();
        assert!(error.contains(word), "{word} in {error}");
    }
}

/// O10: the token that gives a lagging engine away is named; so is one that belongs to no policy of the rollout.
#[test]
fn o10_a_token_of_another_version_is_named() {
    let fixture = fixture();
    let mut lagging = told(&fixture.prompts);
    lagging.groups[1].completions[1].versions[1] = PolicyVersion(0);
    let error = sample(&fixture, lagging, stamp(1)).unwrap_err();
    let Error::Stage(StageError::ForeignToken { prompt: 0, sample: 1, token: 1, version, expected }) = error else {
        panic!("{error}")
    };
    assert_eq!((version, expected), (PolicyVersion(0), PolicyVersion(1)));

    let undeclared = Rollout { stamps: Vec::new(), ..told(&fixture.prompts) };
    let error = sample(&fixture, undeclared, stamp(1)).unwrap_err();
    let named = matches!(
        &error,
        Error::Core(miles_core::Error::Rollout(RolloutError::UndeclaredVersion { key: 1, sample: 0, token: 0, .. }))
    );
    assert!(named, "{error}");

    let other_bytes = PolicyStamp { digest: Digest::of(b"other"), ..stamp(1) };
    for stamps in [vec![other_bytes], vec![stamp(0), stamp(1)]] {
        let error = sample(&fixture, Rollout { stamps, ..told(&fixture.prompts) }, stamp(1)).unwrap_err();
        let stale = matches!(&error, Error::Core(miles_core::Error::Policy(PolicyError::StaleVersion { .. })));
        assert!(stale, "{error}");
    }
}

#[test]
fn rewards_see_text_without_the_end_token_and_keep_their_place() {
    let fixture = fixture();
    let by = ByText(|text| Ok(text.parse::<f32>().unwrap()));
    let rewarded = judged(&fixture, &by, OnRewardError::Fail).unwrap();
    assert_eq!(rewarded.rewards().collect::<Vec<_>>(), [2.0, 3.0, 1.0, 3.0]);
    assert_eq!(rewarded.prompt_rewards(), [(1, 2.5), (0, 2.0)]);
}

/// O20: an error of a reward is not a 0. A panic in one sample leaves the others judged, on any thread.
#[test]
fn o20_reward_errors_and_panics_are_outcomes_of_their_own() {
    let panicking = ByText(|text| if text == "2" { panic!("verifier died") } else { Ok(1.0) });
    let failing = ByText(|text| if text == "2" { Err(RewardError::Other("timeout".into())) } else { Ok(1.0) });
    let not_a_number = ByText(|text| Ok(if text == "2" { f32::NAN } else { 1.0 }));
    for (by, word) in [(panicking, "verifier died"), (failing, "timeout"), (not_a_number, "NaN")] {
        let from_thread = std::thread::spawn(move || {
            let fixture = fixture();
            let dropped = judged(&fixture, &by, OnRewardError::Drop).unwrap();
            assert_eq!(dropped.errors(), 1);
            assert_eq!(dropped.outcomes()[0], [Outcome::Dropped, Outcome::Reward(1.0)]);
            assert_eq!(dropped.rewards().count(), 3);
            let scored = judged(&fixture, &by, OnRewardError::Score(-2.0)).unwrap();
            assert_eq!((scored.errors(), scored.outcomes()[0][0]), (1, Outcome::Reward(-2.0)));
            judged(&fixture, &by, OnRewardError::Fail).unwrap_err()
        });
        let error = from_thread.join().unwrap();
        assert!(matches!(error, Error::Stage(StageError::Reward { prompt: 1, sample: 0, .. })), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

fn credited(on_error: OnRewardError) -> Credited {
    let by = ByText(|text| if text == "2" { Err(RewardError::Other("no".into())) } else { Ok(f32::from(text == "1")) });
    advantage::credit(&Centered, judged(&fixture(), &by, on_error).unwrap()).unwrap()
}

#[test]
fn dropped_completions_take_no_part_in_advantage_and_batch() {
    let credited = credited(OnRewardError::Drop);
    assert_eq!(credited.advantages(), [vec![None, Some(0.0)], vec![Some(0.5), Some(-0.5)]]);
    let packed = batch::pack(&credited, 7).unwrap();
    let advantages: Vec<f32> = packed.batch().samples().iter().map(|sample| sample.advantage).collect();
    assert_eq!(advantages, [0.0, 0.5, -0.5]);
    assert_eq!(packed.cut(2).iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(packed.cut(1).iter().map(Vec::len).collect::<Vec<_>>(), [3]);
}

#[test]
fn the_batch_holds_the_sampled_ids_and_logprobs() {
    let packed = batch::pack(&credited(OnRewardError::Score(1.0)), 0).unwrap();
    let sample = &packed.batch().samples()[0];
    assert_eq!((sample.tokens.as_slice(), sample.prompt_tokens), (&[16, 3, 3, 0][..], 2));
    assert_eq!(sample.rollout_logprobs, [-0.5, -0.25]);
    assert_eq!(packed.batch().stamp(), stamp(1));
}

#[test]
fn a_step_in_which_nothing_was_judged_is_an_error() {
    let by = ByText(|_| Err(RewardError::Other("no".into())));
    let rewarded = judged(&fixture(), &by, OnRewardError::Drop).unwrap();
    let credited = advantage::credit(&Centered, rewarded).unwrap();
    let error = batch::pack(&credited, 3).unwrap_err();
    assert!(matches!(error, Error::Stage(StageError::NothingJudged { step: 3, completions: 4 })), "{error}");
}

struct Crooked(fn(&[f32]) -> Vec<f32>);

impl Advantage for Crooked {
    fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
        (self.0)(rewards)
    }
}

#[test]
fn advantages_that_are_not_one_finite_number_per_reward_are_refused() {
    for crooked in [Crooked(|_| vec![0.0]), Crooked(|rewards| vec![f32::NAN; rewards.len()])] {
        let rewarded = judged(&fixture(), &ByText(|_| Ok(1.0)), OnRewardError::Fail).unwrap();
        let error = advantage::credit(&crooked, rewarded).unwrap_err();
        assert!(matches!(error, StageError::BadAdvantages { prompt: 1, .. }), "{error}");
    }
}
