//! What a completion is, and that its draws depend on their coordinates alone.

use std::collections::BTreeMap;

use super::super::fixture::{Family, logprobs, policy};
use super::super::{Failure, Suite, Verdict};
use super::bench::{Bench, completions, generate, same, work};
use crate::plugin::{ActivationDtype, EngineOptions, GenerateRequest, PromptRequest, Rollout, Sampling};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    suite.case("sampling/shape", || {
        bench.everywhere(|family, recipe| groups_are_those_asked_for(bench, family, recipe))
    });
    suite.case("sampling/repeatable", || {
        bench.everywhere(|family, recipe| a_request_is_repeatable(bench, family, recipe))
    });
    suite.case("sampling/coordinates", || draws_depend_on_seed_step_and_key(bench));
    suite.case("sampling/greedy", || {
        bench.everywhere(|family, recipe| greedy_takes_the_likeliest(bench, family, recipe))
    });
    suite.case("sampling/temperature", || {
        bench.everywhere(|family, recipe| logprobs_are_those_of_the_scaled_distribution(bench, family, recipe))
    });
    if bench.backend.capabilities.activations.contains(&ActivationDtype::F32) {
        suite.case("sampling/network", || logprobs_are_those_of_the_network(bench));
    }
    suite.case("sampling/truncation", || truncation_changes_draws_and_no_logprob(bench));
}

/// Groups, completions and counts of tokens are those asked for, which every rollout is held to; ids inside the vocabulary; one finite logprob of at most 0 per token; counts that add up.
fn groups_are_those_asked_for(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let request = work(family, 6);
    let rollout = generate(engine.as_ref(), &request)?;
    let vocab_size = family.config().vocab_size;
    for completion in completions(&rollout) {
        let outside = completion.tokens.iter().find(|&&id| id as usize >= vocab_size);
        Failure::unless(outside.is_none(), || format!("id {outside:?} is outside the vocabulary of {vocab_size}"))?;
        let wrong = completion.logprobs.iter().find(|logprob| !(logprob.is_finite() && **logprob <= 0.0));
        Failure::unless(wrong.is_none(), || format!("a logprob is {wrong:?}, not finite and at most 0"))?;
    }
    let drawn: usize = completions(&rollout).map(|completion| completion.tokens.len()).sum();
    let counted = rollout.stats.generated_tokens;
    Failure::unless(counted == drawn, || format!("counts {counted} generated tokens of {drawn}"))?;
    let temperature = rollout.logprob_temperature;
    Failure::unless(temperature == 1.0, || format!("logprobs are said to be scaled by {temperature}, not 1"))
}

/// The same bits again, and from another engine.
fn a_request_is_repeatable(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let request = work(family, 8);
    let engine = bench.loaded(family, recipe)?;
    let first = generate(engine.as_ref(), &request)?;
    same(&generate(engine.as_ref(), &request)?, &first, "the same request again")?;
    same(&generate(bench.loaded(family, recipe)?.as_ref(), &request)?, &first, "the same request to another engine")
}

fn draws_depend_on_seed_step_and_key(bench: &Bench<'_>) -> Verdict {
    let family = Family::Dense;
    let engine = bench.loaded(family, Recipe::Bf16)?;
    let request = work(family, 8);
    let first = generate(engine.as_ref(), &request)?;
    let rekeyed = |by: u64| {
        let mut other = request.clone();
        other.prompts.iter_mut().for_each(|prompt| prompt.key += by);
        other
    };
    let seeded = |by: u64| GenerateRequest { seed: request.seed + by, ..request.clone() };
    let stepped = |by: u64| GenerateRequest { step: request.step + by, ..request.clone() };
    // Every bit of a coordinate counts, not those of its lowest bytes alone.
    let distances = [1, 100, 1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 48];
    let others = distances.into_iter().flat_map(|by| {
        [
            (format!("seed + {by}"), seeded(by)),
            (format!("step + {by}"), stepped(by)),
            (format!("key + {by}"), rekeyed(by)),
        ]
    });
    for (what, other) in others {
        let found = generate(engine.as_ref(), &other)?;
        let equal = completions(&found).zip(completions(&first)).filter(|(a, b)| a.tokens == b.tokens).count();
        // Ten completions of eight tokens: none is expected to be drawn twice by chance.
        Failure::unless(equal < 5, || format!("{what} draws the same tokens in {equal} of 10 completions"))?;
    }
    let samples: Vec<_> = first.groups[0].completions.iter().map(|completion| &completion.tokens).collect();
    Failure::unless(samples[0] != samples[1], || "two completions of one prompt draw the same tokens".to_owned())
}

/// Temperature 0 takes the likeliest token and reports its logprob in the unscaled distribution.
fn greedy_takes_the_likeliest(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let mut request = one_prompt(family, 1, 48);
    let drawn = first_tokens(&generate(engine.as_ref(), &request)?)?;
    request.sampling.temperature = 0.0;
    let greedy = generate(engine.as_ref(), &request)?;
    let temperature = greedy.logprob_temperature;
    Failure::unless(temperature == 1.0, || format!("greedy logprobs are said to be scaled by {temperature}, not 1"))?;
    let greedy = first_tokens(&greedy)?;
    let Some((&token, &logprob)) = greedy.first_key_value().filter(|_| greedy.len() == 1) else {
        return Err(Failure::new(format!(
            "greedy completions of one prompt begin with {} different tokens",
            greedy.len()
        )));
    };
    for (&other, &found) in &drawn {
        Failure::unless(found <= logprob, || {
            format!("greedy takes token {token} ({logprob}), but token {other} is likelier ({found})")
        })?;
    }
    match drawn.get(&token) {
        Some(found) => Failure::unless(found.to_bits() == logprob.to_bits(), || {
            format!("the logprob of token {token} is {logprob:e} when greedy and {found:e} at temperature 1")
        }),
        None => Err(Failure::new(format!("48 draws at temperature 1 never take the likeliest token {token}"))),
    }
}

/// O14: at temperature T the logprobs of two tokens differ by 1/T of what they differ by at temperature 1, and the
/// probabilities of different tokens add up to no more than 1.
fn logprobs_are_those_of_the_scaled_distribution(bench: &Bench<'_>, family: Family, recipe: Recipe) -> Verdict {
    let engine = bench.loaded(family, recipe)?;
    let at = |temperature: f32| -> Result<BTreeMap<u32, f32>, Failure> {
        let mut request = one_prompt(family, 1, 96);
        request.sampling.temperature = temperature;
        let rollout = generate(engine.as_ref(), &request)?;
        let named = rollout.logprob_temperature;
        Failure::unless(named == temperature, || {
            format!("logprobs at {temperature} are said to be scaled by {named}")
        })?;
        first_tokens(&rollout)
    };
    let unscaled = at(1.0)?;
    for (temperature, least) in [(0.3, 2), (0.6, 3), (1.0, 3), (1.7, 3), (4.0, 3)] {
        let scaled = at(temperature)?;
        let total: f64 = scaled.values().map(|&logprob| f64::from(logprob).exp()).sum();
        Failure::unless(total <= 1.0 + TOLERANCE, || {
            format!("at temperature {temperature} some tokens' probabilities add up to {total}")
        })?;
        let both: Vec<(u32, f64, f64)> = scaled
            .iter()
            .filter_map(|(&id, &logprob)| Some((id, f64::from(logprob), f64::from(*unscaled.get(&id)?))))
            .collect();
        Failure::unless(both.len() >= least, || {
            format!("96 draws at temperature {temperature} take too few tokens to compare")
        })?;
        let (first, first_scaled, first_unscaled) = both[0];
        for &(id, logprob, unscaled) in &both[1..] {
            let found = logprob - first_scaled;
            let expected = (unscaled - first_unscaled) / f64::from(temperature);
            Failure::unless((found - expected).abs() <= TOLERANCE, || {
                format!(
                    "at temperature {temperature} tokens {id} and {first} differ by {found} in logprob, not by {expected}"
                )
            })?;
        }
    }
    Ok(())
}

/// top-k, top-p and min-p leave the likeliest token alone in the draw, and its logprob is that of the full vocabulary.
fn truncation_changes_draws_and_no_logprob(bench: &Bench<'_>) -> Verdict {
    let family = Family::Moe;
    let engine = bench.loaded(family, Recipe::Bf16)?;
    let of = |change: fn(&mut Sampling)| -> Result<BTreeMap<u32, f32>, Failure> {
        let mut request = one_prompt(family, 1, 24);
        change(&mut request.sampling);
        first_tokens(&generate(engine.as_ref(), &request)?)
    };
    let greedy = of(|sampling| sampling.temperature = 0.0)?;
    type Change = fn(&mut Sampling);
    let cases: [(&str, Change); 3] = [
        ("top_k = 1", |sampling| sampling.top_k = 1),
        ("top_p = 1e-6", |sampling| sampling.top_p = 1e-6),
        ("min_p = 1", |sampling| sampling.min_p = 1.0),
    ];
    for (what, change) in cases {
        let found = of(change)?;
        Failure::unless(found == greedy, || format!("{what} gives {found:?}, not {greedy:?} alone"))?;
    }
    let of_all = of(|_| {})?;
    let nothing = of(|sampling| sampling.top_k = 61)?;
    Failure::unless(nothing == of_all, || "top_k of the whole vocabulary changes what is drawn".to_owned())
}

/// With F32 activations every logprob is near that of the network in F64, for policies in high precision.
fn logprobs_are_those_of_the_network(bench: &Bench<'_>) -> Verdict {
    for family in Family::ALL {
        let snapshot = policy(family, Recipe::Bf16, 0)?;
        let options = EngineOptions { activations: ActivationDtype::F32, ..bench.options(family) };
        let engine = bench.loaded_with(options, &snapshot)?;
        for temperature in [1.0, 0.7, 0.3] {
            let mut request = work(family, 8);
            request.sampling.temperature = temperature;
            for group in &generate(engine.as_ref(), &request)?.groups {
                for completion in &group.completions {
                    let tokens = [group.prompt_tokens.as_slice(), &completion.tokens].concat();
                    let expected = logprobs(&snapshot, &tokens, temperature.into())?;
                    let expected = expected.iter().skip(group.prompt_tokens.len().saturating_sub(1));
                    for (token, (&found, expected)) in completion.logprobs.iter().zip(expected).enumerate() {
                        let near = (f64::from(found) - expected).abs() <= NETWORK_TOLERANCE;
                        Failure::unless(near, || {
                            format!("{family}, prompt {}, token {token}: logprob {found}, not {expected}", group.key)
                        })?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// One prompt with many completions.
fn one_prompt(family: Family, max_new_tokens: usize, completions: usize) -> GenerateRequest {
    let request = work(family, max_new_tokens);
    let prompts = vec![PromptRequest { completions, ..request.prompts[0].clone() }];
    GenerateRequest { prompts, ..request }
}

/// The first token of every completion with its logprob: one and the same for equal tokens of one prompt.
fn first_tokens(rollout: &Rollout) -> Result<BTreeMap<u32, f32>, Failure> {
    let mut found = BTreeMap::new();
    for completion in completions(rollout) {
        let (Some(&id), Some(&logprob)) = (completion.tokens.first(), completion.logprobs.first()) else {
            return Err(Failure::new("a completion has no token"));
        };
        let known = *found.entry(id).or_insert(logprob);
        let same = known.to_bits() == logprob.to_bits();
        Failure::unless(same, || format!("token {id} after one prompt has the logprobs {known:e} and {logprob:e}"))?;
    }
    Ok(found)
}

/// Four logprobs of magnitude below 32 meet in a comparison, each an F32 within a few units in the last place (2e-6),
/// multiplied by at most 1 / 0.3; the rest is room for another F32 order of sums.
const TOLERANCE: f64 = 1e-4;

/// Room for F32 in any order of sums: some hundred roundings of 6e-8 on values below 10 add up to less, while a wrong
/// mask, norm, position or head is off by far more.
pub(in crate::conformance) const NETWORK_TOLERANCE: f64 = 1e-3;
