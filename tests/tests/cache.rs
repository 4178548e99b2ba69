//! Keys and values of one version are never used with the weights of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_lite::future::block_on;
use miles_core::plugin::{GenerateRequest, Rollout, RolloutEngine, Trainer};
use miles_core::policy::Snapshot;
use miles_core::precision::Recipe;
use miles_grpo::loss::Clipped;

use crate::support::parts::{batch, current, engine, generate, options, publish, request, trainer};
use crate::support::{FAMILIES, bits, checkpoint, cpu};

/// A version, the next one after an update, and a request for them.
fn two_versions(family: &str, recipe: Recipe) -> (Arc<Snapshot>, Arc<Snapshot>, GenerateRequest) {
    let checkpoint = checkpoint(family);
    let mut trainer = trainer(&cpu(2), &checkpoint, recipe, options(4096));
    let old = current(&trainer);
    let request = request(checkpoint.network().config.vocab_size, 1.0, 8, &[]);
    let rollout = generate(&engine(&cpu(2), &old, 8), &request);
    trainer.update(&batch(&rollout, old.stamp()), &Clipped::default(), 0.02).unwrap();
    (old, publish(&mut trainer, 1), request)
}

/// Ids and logprob bits of every completion.
fn drawn(rollout: &Rollout) -> Vec<(Vec<u32>, Vec<u32>)> {
    let completions = rollout.groups.iter().flat_map(|group| &group.completions);
    completions.map(|completion| (completion.tokens.clone(), bits(&completion.logprobs))).collect()
}

/// O11: the same prompts after an update give what an engine gives that has never seen the old version; nothing of the
/// old prefixes is taken from a cache.
#[test]
fn o11_no_cached_prefix_survives_an_update() {
    for family in FAMILIES {
        for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
            let what = format!("{family} {recipe}");
            let (old, new, request) = two_versions(family, recipe);
            let engine_kept = engine(&cpu(2), &old, 3);
            let before = generate(&engine_kept, &request);
            block_on(engine_kept.load(Arc::clone(&new))).unwrap();
            let after = generate(&engine_kept, &request);
            let fresh = generate(&engine(&cpu(1), &new, 3), &request);
            assert!(drawn(&after) == drawn(&fresh), "{what}: old keys and values were used");
            assert!(drawn(&after) != drawn(&before), "{what}: the update changed nothing");
            let prompt_tokens: usize = request.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
            assert_eq!((after.stats.cached_tokens, after.stats.prefilled_tokens), (0, prompt_tokens), "{what}");
            for (rollout, stamp) in [(&before, old.stamp()), (&after, new.stamp())] {
                let versions = rollout.groups.iter().flat_map(|group| &group.completions).flat_map(|c| &c.versions);
                assert_eq!(rollout.stamp, stamp, "{what}");
                assert!(versions.into_iter().all(|version| *version == stamp.version), "{what}");
            }
        }
    }
}

/// O11 under load: versions change while requests run. Every rollout is wholly of the version that its stamp names.
#[test]
fn o11_a_version_that_arrives_during_a_rollout_does_not_mix_into_it() {
    let (old, new, request) = two_versions("qwen3-moe", Recipe::Mxfp8);
    let expected =
        [&old, &new].map(|version| (version.stamp(), drawn(&generate(&engine(&cpu(1), version, 8), &request))));
    let engine = engine(&cpu(2), &old, 2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                if done.load(Ordering::Acquire) {
                    break;
                }
                block_on(engine.load(Arc::clone(if turn % 2 == 0 { &new } else { &old }))).unwrap();
            }
        });
        for _ in 0..20 {
            let rollout = generate(&engine, &request);
            let (_, wanted) = expected.iter().find(|(stamp, _)| *stamp == rollout.stamp).unwrap();
            assert!(drawn(&rollout) == *wanted, "{}", rollout.stamp);
            let tokens = rollout.groups.iter().flat_map(|group| &group.completions).flat_map(|c| &c.versions);
            assert!(tokens.into_iter().all(|version| *version == rollout.stamp.version));
        }
        done.store(true, Ordering::Release);
    });
}
