//! The suite for rewards.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::wait::{together, wait};
use super::{Failure, Report, Suite, Verdict};
use crate::plugin::{Reward, RewardError, RewardInput};

/// The groups of the reward suite, in order.
pub const REWARD_GROUPS: &[&str] = &["judging", "hostile", "threads"];

/// A reward with what its task says about it: the suite cannot know what a reward is for.
#[derive(Clone)]
pub struct RewardSubject {
    /// Name in the report.
    pub name: String,
    /// The reward.
    pub reward: Arc<dyn Reward>,
    /// Samples with the reward that they get, to the bit.
    pub known: Vec<(RewardSample, f32)>,
    /// Samples that it cannot judge: it has to answer an error. Empty for a reward that judges everything.
    pub refused: Vec<RewardSample>,
}

/// What a reward sees, owned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardSample {
    /// The prompt.
    pub prompt: String,
    /// The completion as text.
    pub completion: String,
    /// The completion's token ids.
    pub completion_tokens: Vec<u32>,
    /// The expected answer, if any.
    pub answer: Option<String>,
    /// Whether the completion ended by itself.
    pub finished: bool,
    /// The data row.
    pub row: Map<String, Value>,
}

impl RewardSample {
    /// A finished completion of a prompt with an expected answer. The data row holds `prompt` and `answer`; the token
    /// ids are the bytes of the completion.
    #[must_use]
    pub fn new(prompt: &str, completion: &str, answer: Option<&str>) -> Self {
        let mut row = Map::from_iter([("prompt".to_owned(), Value::from(prompt))]);
        row.extend(answer.map(|answer| ("answer".to_owned(), Value::from(answer))));
        RewardSample {
            prompt: prompt.to_owned(),
            completion: completion.to_owned(),
            completion_tokens: completion.bytes().map(u32::from).collect(),
            answer: answer.map(str::to_owned),
            finished: true,
            row,
        }
    }

    /// The sample as a reward sees it.
    #[must_use]
    pub fn input(&self) -> RewardInput<'_> {
        RewardInput {
            prompt: &self.prompt,
            completion: &self.completion,
            completion_tokens: &self.completion_tokens,
            answer: self.answer.as_deref(),
            finished: self.finished,
            row: &self.row,
        }
    }
}

/// Runs the whole reward suite.
#[must_use]
pub fn rewards(subject: &RewardSubject) -> Report {
    run(subject, Suite::new(format!("reward {}", subject.name)))
}

/// Runs one group of the reward suite, or the one case of that name.
#[must_use]
pub fn reward_group(subject: &RewardSubject, group: &str) -> Report {
    run(subject, Suite::new(format!("reward {}", subject.name)).only(group))
}

fn run(subject: &RewardSubject, mut suite: Suite) -> Report {
    let reward = subject.reward.as_ref();
    suite.case("judging/known", || known_samples_get_their_reward(subject));
    suite.case("judging/repeatable", || the_same_sample_gets_the_same_reward(subject));
    if subject.refused.is_empty() {
        suite.unsupported("judging/refused", || Ok("the subject declares that it judges everything".to_owned()));
    } else {
        suite.case("judging/refused", || what_cannot_be_judged_is_an_error(subject));
    }
    suite.case("hostile/completions", || hostile_text_is_judged_or_refused(reward, &of_completions()));
    suite.case("hostile/rows", || hostile_text_is_judged_or_refused(reward, &of_rows()));
    suite.case("threads/any", || every_thread_gets_the_same(subject));
    suite.finish()
}

fn known_samples_get_their_reward(subject: &RewardSubject) -> Verdict {
    Failure::unless(!subject.known.is_empty(), || "the subject names no sample with a known reward".to_owned())?;
    for (sample, expected) in &subject.known {
        let found =
            wait(subject.reward.score(&sample.input())).map_err(|error| Failure::from(error).at(quoted(sample)))?;
        let right = found.to_bits() == expected.to_bits();
        Failure::unless(right, || format!("{} gets {found}, not {expected}", quoted(sample)))?;
    }
    Ok(())
}

/// Also after other samples, and in another order.
fn the_same_sample_gets_the_same_reward(subject: &RewardSubject) -> Verdict {
    let samples = every_sample(subject);
    let first: Vec<String> = samples.iter().map(|sample| outcome(subject.reward.as_ref(), sample)).collect();
    for (sample, first) in samples.iter().zip(&first).rev() {
        for _ in 0..2 {
            let again = outcome(subject.reward.as_ref(), sample);
            Failure::unless(again == *first, || format!("{} gets {first}, then {again}", quoted(sample)))?;
        }
    }
    Ok(())
}

fn what_cannot_be_judged_is_an_error(subject: &RewardSubject) -> Verdict {
    for sample in &subject.refused {
        match wait(subject.reward.score(&sample.input())) {
            Err(RewardError::Panicked { message }) => {
                return Err(Failure::new(format!("{}: panicked inside: {message}", quoted(sample))));
            }
            Err(error) => {
                Failure::unless(!error.to_string().is_empty(), || {
                    format!("{}: an error without words", quoted(sample))
                })?;
            }
            Ok(reward) => {
                return Err(Failure::new(format!("{} cannot be judged, but gets {reward}", quoted(sample))));
            }
        }
    }
    Ok(())
}

/// A reward or an error; never a panic, never a number that is not finite.
fn hostile_text_is_judged_or_refused(reward: &dyn Reward, samples: &[RewardSample]) -> Verdict {
    for sample in samples {
        if let Ok(found) = wait(reward.score(&sample.input())) {
            Failure::unless(found.is_finite(), || format!("{} gets {found}", quoted(sample)))?;
        }
    }
    Ok(())
}

fn every_thread_gets_the_same(subject: &RewardSubject) -> Verdict {
    let samples = every_sample(subject);
    let all = || -> Vec<String> { samples.iter().map(|sample| outcome(subject.reward.as_ref(), sample)).collect() };
    let here = all();
    let threads = (0..4).map(|_| Box::new(all) as Box<dyn FnOnce() -> Vec<String> + Send>).collect();
    for there in together(threads) {
        for ((sample, here), there) in samples.iter().zip(&here).zip(there) {
            let what = || format!("{} gets {here} on this thread and {there} on another", quoted(sample));
            Failure::unless(*here == there, what)?;
        }
    }
    Ok(())
}

fn every_sample(subject: &RewardSubject) -> Vec<RewardSample> {
    let known = subject.known.iter().map(|(sample, _)| sample.clone());
    known.chain(subject.refused.iter().cloned()).chain(of_completions()).collect()
}

/// The reward's bits, or that it is an error (two errors are the same outcome).
fn outcome(reward: &dyn Reward, sample: &RewardSample) -> String {
    match wait(reward.score(&sample.input())) {
        Ok(reward) => format!("{reward} ({:#010x})", reward.to_bits()),
        Err(_) => "an error".to_owned(),
    }
}

fn quoted(sample: &RewardSample) -> String {
    let short: String = sample.completion.chars().take(40).collect();
    format!("the completion {short:?} (answer {:?})", sample.answer)
}

fn of_completions() -> Vec<RewardSample> {
    let long = "9".repeat(20_000);
    let deep = "\\boxed{".repeat(3_000);
    let texts = [
        "",
        " ",
        "\n\n",
        "0",
        "-",
        "=",
        "\\boxed{",
        "}",
        "1e999999999",
        "-0",
        "NaN",
        "inf",
        "0x1F",
        "١٢",
        "７",
        "\u{0}",
        "\u{feff}7",
        "🦀=7",
        "a\u{301}",
        "1/0",
        "{}",
        "\"",
        "</s>",
        "7=7=7=",
        &long,
        &deep,
    ];
    texts.iter().map(|text| RewardSample::new("3+4=", text, Some("7"))).collect()
}

fn of_rows() -> Vec<RewardSample> {
    let mut samples: Vec<RewardSample> = [None, Some(""), Some(" "), Some("x"), Some("1e999999999"), Some("\u{0}")]
        .map(|answer| RewardSample::new("3+4=", "7", answer))
        .to_vec();
    samples.push(RewardSample::default());
    samples.push(RewardSample { finished: false, ..RewardSample::new("", "7", Some("7")) });
    samples.push(RewardSample { completion_tokens: vec![u32::MAX; 3], ..RewardSample::new("3+4=", "7", Some("7")) });
    let row = Map::from_iter([("answer".to_owned(), Value::from(vec![Value::Null; 3]))]);
    samples.push(RewardSample { row, ..RewardSample::new("3+4=", "7", Some("7")) });
    samples
}
