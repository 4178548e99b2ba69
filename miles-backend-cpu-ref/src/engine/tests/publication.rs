//! Versions that are loaded while a request runs, in every publication mode. Nothing here depends on time: a version is
//! loaded before the forward of a given number.

use miles_core::plugin::{FinishReason, RolloutError};
use miles_core::random::Coordinates;

use super::super::batch::Batch;
use super::super::cache::KvCache;
use super::super::sampler::Sampler;
use super::*;

/// Version `version` of a fixture: other weights in every matrix.
fn version(name: &str, recipe: Recipe, version: u64) -> Arc<Snapshot> {
    scaled(name, recipe, version, 1.0 + 0.25 * version as f32, |role| role != Role::Norm)
}

fn running(first: &Arc<Snapshot>, publication: PublicationMode, setup: Setup) -> Arc<CpuEngine> {
    Arc::new(loaded(first, &Setup { publication, ..setup }))
}

fn tight() -> Setup {
    Setup { max_running: 3, prefill_tokens: 4, ..Setup::default() }
}

/// Every token is the one that the weights of its version draw after the tokens before it, with its logprob: all of it
/// from unshared forwards of whole sequences.
fn check_tokens(rollout: &Rollout, request: &GenerateRequest, versions: &[Arc<Snapshot>], what: &str) {
    let sampler = Sampler { sampling: &request.sampling, seed: request.seed, isa: Isa::detect() };
    let vocab_size = versions[0].network().config.vocab_size;
    for snapshot in versions {
        let (engine, stamp) = (loaded(snapshot, &Setup::default()), snapshot.stamp());
        for group in &rollout.groups {
            for (sample, completion) in group.completions.iter().enumerate() {
                if !completion.versions.contains(&stamp.version) {
                    continue;
                }
                let ids: Vec<u32> = group.prompt_tokens.iter().chain(&completion.tokens).copied().collect();
                let logits = engine.logits(&ids).unwrap();
                let logprobs = engine.next_token_logprobs(&ids, &logits, rollout.logprob_temperature).unwrap();
                let before = group.prompt_tokens.len() - 1;
                for (token, &version) in completion.versions.iter().enumerate() {
                    if version != stamp.version {
                        continue;
                    }
                    let what = format!("{what}: prompt {}, completion {sample}, token {token} of {stamp}", group.key);
                    let (step, prompt) = (request.step, group.key);
                    let at = Coordinates { step, prompt, sample: sample as u32, token: token as u32 };
                    let row = before + token;
                    let drawn = sampler.draw(&logits[row * vocab_size..(row + 1) * vocab_size], at).unwrap();
                    assert_eq!(completion.tokens[token], drawn, "{what}");
                    assert_eq!(completion.logprobs[token].to_bits(), logprobs[row].to_bits(), "{what}");
                }
            }
        }
    }
}

fn versions_of(completion: &Completion) -> Vec<u64> {
    completion.versions.iter().map(|version| version.0).collect()
}

#[test]
fn a_request_that_continues_draws_every_token_from_the_version_it_names() {
    let loads = [vec![(4, 1)], vec![(1, 1), (7, 2)], vec![(2, 1), (3, 2), (9, 3)], (0..40).zip(1..).collect()];
    for (name, recipe) in [("qwen3", Recipe::Mxfp8), ("qwen3-moe", Recipe::Nvfp4HighPrecision)] {
        for loads in &loads {
            let newest = loads.iter().map(|(_, version)| *version).max().unwrap();
            let versions: Vec<_> = (0..=newest).map(|number| version(name, recipe, number)).collect();
            let at: Vec<_> = loads.iter().map(|(at, number)| (*at, Arc::clone(&versions[*number as usize]))).collect();
            let engine = running(&versions[0], PublicationMode::Continue, tight());
            let rollout = generate_while_loading(&engine, &request(1.0, 8), &at, None);
            let what = format!("{name} {recipe} {loads:?}");
            check_tokens(&rollout, &request(1.0, 8), &versions, &what);
            let mixed = completions(&rollout).iter().filter(|c| c.versions.first() != c.versions.last()).count();
            assert!(mixed > 0, "{what}: no completion went on");
            assert!(completions(&rollout).iter().all(|completion| completion.tokens.len() == 8), "{what}");
            assert!(rollout.stats.recomputed_tokens > 0, "{what}");
            assert_eq!(rollout.stats.generated_tokens, 8 * 8, "{what}");
            assert_eq!((rollout.stats.cached_tokens, rollout.stats.aborted_tokens), (0, 0), "{what}");
            assert_eq!(rollout.stats.prefilled_tokens, 5 + 1 + 11, "{what}: what is computed again counts apart");
        }
    }
}

#[test]
fn a_version_that_arrives_within_a_prefill_takes_over_from_its_first_token() {
    let versions = [0, 1].map(|number| version("qwen3", Recipe::Bf16, number));
    let mut asked = request(1.0, 3);
    asked.prompts.swap(0, 2);
    // The first prompt has 11 tokens, of which a forward computes 4: it is within its second chunk.
    let engine = running(&versions[0], PublicationMode::Continue, tight());
    let rollout = generate_while_loading(&engine, &asked, &[(2, Arc::clone(&versions[1]))], None);
    assert_eq!(rollout.groups, generate(&loaded(&versions[1], &Setup::default()), &asked).groups);
    assert_eq!((rollout.stamps.as_slice(), rollout.stamp), ([versions[1].stamp()].as_slice(), versions[1].stamp()));
    assert_eq!(rollout.stats.recomputed_tokens, 8);
}

#[test]
fn a_request_that_finishes_is_of_the_version_that_it_began_with() {
    let versions = [0, 1].map(|number| version("qwen3-moe", Recipe::Mxfp8, number));
    let engine = running(&versions[0], PublicationMode::Finish, tight());
    let rollout = generate_while_loading(&engine, &request(1.0, 6), &[(3, Arc::clone(&versions[1]))], None);
    assert_eq!(rollout, generate(&loaded(&versions[0], &tight()), &request(1.0, 6)));
    assert_eq!(rollout.stats.recomputed_tokens, 0);
    assert_eq!(engine.loaded(), Some(versions[1].stamp()), "for requests that begin later");
    let later = generate(&engine, &request(1.0, 6));
    assert_eq!(later, generate(&loaded(&versions[1], &tight()), &request(1.0, 6)));
}

#[test]
fn an_aborted_group_is_wholly_of_the_new_version() {
    let versions: Vec<_> = (0..3).map(|number| version("qwen3-moe", Recipe::Nvfp4HighPrecision, number)).collect();
    let fresh: Vec<_> = versions.iter().map(|v| generate(&loaded(v, &Setup::default()), &request(1.0, 8))).collect();
    let mut kept_and_new = 0;
    for loads in [vec![(3, 1)], vec![(14, 1)], vec![(14, 1), (17, 2)], vec![(4, 1), (30, 2)]] {
        let at: Vec<_> = loads.iter().map(|&(at, number)| (at, Arc::clone(&versions[number]))).collect();
        let engine = running(&versions[0], PublicationMode::AbortAndResubmit, tight());
        let rollout = generate_while_loading(&engine, &request(1.0, 8), &at, None);
        check_tokens(&rollout, &request(1.0, 8), &versions, &format!("{loads:?}"));
        for (index, group) in rollout.groups.iter().enumerate() {
            let of = group.completions[0].versions[0];
            assert_eq!(*group, fresh[of.0 as usize].groups[index], "{loads:?}: as if no other version had been");
        }
        let returned: usize = completions(&rollout).iter().map(|completion| completion.tokens.len()).sum();
        assert_eq!(rollout.stats.generated_tokens, returned + rollout.stats.aborted_tokens, "{loads:?}");
        assert!(rollout.stats.aborted_completions > 0 && rollout.stats.aborted_tokens > 0, "{loads:?}");
        kept_and_new += usize::from(rollout.stamps.len() > 1);
    }
    assert!(kept_and_new > 0, "in some of them a whole group was kept");
}

#[test]
fn a_cancelled_request_returns_the_tokens_that_it_has_with_their_versions() {
    let versions = [0, 1].map(|number| version("llama-tied", Recipe::Bf16, number));
    for publication in PublicationMode::ALL {
        let engine = running(&versions[0], publication, tight());
        let rollout = generate_while_loading(&engine, &request(1.0, 30), &[(6, Arc::clone(&versions[1]))], Some(16));
        check_tokens(&rollout, &request(1.0, 30), &versions, publication.name());
        let cancelled = |completion: &&&Completion| completion.finish == FinishReason::Cancelled;
        assert!(completions(&rollout).iter().filter(cancelled).count() > 4, "{publication}");
        assert!(completions(&rollout).iter().any(|completion| !completion.tokens.is_empty()), "{publication}");
    }
}

#[test]
fn a_running_request_never_goes_back() {
    let [old, live, newer] = [1, 2, 3].map(|number| version("qwen3", Recipe::Bf16, number));
    let other_bytes = scaled("qwen3", Recipe::Bf16, 2, 3.0, |role| role != Role::Norm);
    for publication in [PublicationMode::Continue, PublicationMode::AbortAndResubmit] {
        for snapshot in [&old, &live, &other_bytes] {
            let engine = running(&live, publication, tight());
            let rollout = generate_while_loading(&engine, &request(1.0, 4), &[(5, Arc::clone(snapshot))], None);
            assert_eq!(rollout, generate(&loaded(&live, &tight()), &request(1.0, 4)), "{publication}");
            assert_eq!(engine.loaded(), Some(snapshot.stamp()));
        }
        // Nor does it move for a version that arrives after its last token.
        let engine = running(&live, publication, tight());
        let forwards = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&forwards);
        let count = CancelToken::when(move || counted.fetch_add(1, Ordering::Relaxed) == usize::MAX);
        let undisturbed = block_on(engine.generate(&request(1.0, 4), &count)).unwrap();
        let last = forwards.load(Ordering::Relaxed) - 1;
        let rollout = generate_while_loading(&engine, &request(1.0, 4), &[(last, Arc::clone(&newer))], None);
        assert_eq!(rollout, undisturbed, "{publication}");
        assert_eq!(engine.loaded(), Some(newer.stamp()));
    }
}

/// O11: two requests in a row with the same prompts, a version in between.
#[test]
fn o11_no_prefix_of_an_old_version_is_found_again() {
    let versions = [0, 1].map(|number| version("qwen3", Recipe::Mxfp8, number));
    for publication in PublicationMode::ALL {
        let engine = running(&versions[0], publication, Setup::default());
        let before = generate(&engine, &request(1.0, 6));
        block_on(engine.load(Arc::clone(&versions[1]))).unwrap();
        let after = generate(&engine, &request(1.0, 6));
        assert_eq!(after, generate(&loaded(&versions[1], &Setup::default()), &request(1.0, 6)));
        assert_ne!(drawn(&after), drawn(&before));
        assert_eq!((after.stats.cached_tokens, after.stats.prefilled_tokens), (0, 5 + 1 + 11));
    }
}

/// O11, tried on purpose: a forward of one policy over a cache that another one filled.
#[test]
fn o11_a_forward_over_the_keys_of_another_policy_is_refused() {
    let [old, new] = [0, 1].map(|number| loaded(&version("qwen3", Recipe::Bf16, number), &Setup::default()));
    let [old, new] = [&old, &new].map(|engine| engine.live.policy().unwrap());
    let layers = old.network().config.layer_count();
    let mut cache = KvCache::new(old.activations());
    let prompt = cache.open(old.stamp(), layers);
    let mut batch = Batch::default();
    batch.push(&[1, 2, 3], 0, None, prompt, true);
    old.forward(&batch, &mut cache).unwrap();
    let own = cache.open(new.stamp(), layers);
    for (prefix, run) in [(None, prompt), (Some(prompt), own)] {
        let mut batch = Batch::default();
        batch.push(&[4], 3, prefix, run, true);
        let error = new.forward(&batch, &mut cache).unwrap_err();
        let miles_core::Error::Rollout(RolloutError::MissingKeys { policy }) = error else { panic!("{error}") };
        assert_eq!(policy, new.stamp());
    }
}

#[test]
fn versions_grow_within_a_completion() {
    let versions: Vec<_> = (0..4).map(|number| version("llama-tied", Recipe::Bf16, number)).collect();
    let at: Vec<_> = [4, 9, 14].into_iter().zip(versions[1..].iter().cloned()).collect();
    let engine = running(&versions[0], PublicationMode::Continue, Setup { max_running: 2, ..tight() });
    let rollout = generate_while_loading(&engine, &request(1.0, 12), &at, None);
    let first = versions_of(completions(&rollout)[0]);
    assert!(first.is_sorted() && first.first() == Some(&0) && first.last() == Some(&3), "{first:?}");
    assert_eq!(rollout.stamps, versions.iter().map(|version| version.stamp()).collect::<Vec<_>>());
}
