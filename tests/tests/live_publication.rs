//! Versions that a trainer publishes while completions run: every token says which version it was drawn from, and the
//! trainer's weights of that version give exactly its logprob.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_lite::future::block_on;
use miles_backend_cpu_ref::{CpuEngine, CpuTrainer};
use miles_core::plugin::{
    ActivationDtype, CancelToken, Completion, EngineOptions, FinishReason, GenerateRequest, PromptRequest,
    PublicationMode, Rollout, RolloutEngine, Sampling, ScoredPolicy, TrainBatch, TrainSample, Trainer,
};
use miles_core::policy::{MemoryStore, PolicyStore, PolicyVersion, Snapshot};
use miles_core::precision::Recipe;
use miles_grpo::loss::Clipped;

use crate::support::parts::{batch, current, generate, options, publish, random_ids, trainer};
use crate::support::workspace::{Workspace, finish};
use crate::support::{bits, checkpoint, cpu};

const VERSIONS: u64 = 4;

/// Version `version` as a trainer of its own comes to it: that many updates after version 0.
fn trained(family: &str, recipe: Recipe, version: u64) -> CpuTrainer {
    let checkpoint = checkpoint(family);
    let mut trainer = trainer(&cpu(2), &checkpoint, recipe, options(4096));
    for version in 0..version {
        let published = current(&trainer);
        let request = request_of(checkpoint.network().config.vocab_size, 2, 4);
        let sampled = generate(engine(&published, PublicationMode::Finish).as_ref(), &request);
        trainer.update(&batch(&sampled, published.stamp()), &Clipped::default(), 0.02).unwrap();
        publish(&mut trainer, version + 1);
    }
    trainer
}

/// An engine that decodes 12 completions at a time.
fn engine(first: &Arc<Snapshot>, publication: PublicationMode) -> Arc<CpuEngine> {
    let options = EngineOptions {
        network: Arc::clone(first.network()),
        activations: ActivationDtype::Bf16,
        max_running: 12,
        context_tokens: 256,
        threads: None,
        partition: first.map().plan(),
        publication,
    };
    let engine = Arc::new(cpu(2).engine(options).unwrap());
    block_on(engine.load(Arc::clone(first))).unwrap();
    engine
}

/// Eight groups of `completions`. The prompts of three groups are longer together than one forward's share of prompt
/// tokens; end tokens make the completions of different lengths.
fn request_of(vocab_size: usize, completions: usize, max_new_tokens: usize) -> GenerateRequest {
    let lengths = [201, 3, 217, 180, 1, 190, 64, 205];
    let prompt =
        |(key, &tokens): (u64, &usize)| PromptRequest { key, tokens: random_ids(key, tokens, vocab_size), completions };
    GenerateRequest {
        prompts: (20..).zip(&lengths).map(prompt).collect(),
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_new_tokens,
            eos_token_ids: (0..4).collect(),
        },
        seed: 11,
        step: 5,
    }
}

/// Generates while versions go to a store and from there to the engine, each before the forward of its number.
fn generate_while_publishing(
    engine: &Arc<CpuEngine>,
    request: &GenerateRequest,
    versions: &[(usize, Arc<Snapshot>)],
    stop: Option<usize>,
) -> Rollout {
    let (loader, versions, store, forwards) =
        (Arc::clone(engine), versions.to_vec(), MemoryStore::new(2), AtomicUsize::new(0));
    let cancel = CancelToken::when(move || {
        let forward = forwards.fetch_add(1, Ordering::Relaxed);
        for (_, snapshot) in versions.iter().filter(|(at, _)| *at == forward) {
            block_on(store.publish(Arc::clone(snapshot))).unwrap();
            let newest = block_on(store.latest()).unwrap().unwrap();
            block_on(loader.load(newest)).unwrap();
        }
        stop == Some(forward)
    });
    block_on(engine.generate(request, &cancel)).unwrap()
}

fn completions(rollout: &Rollout) -> impl Iterator<Item = &Completion> {
    rollout.groups.iter().flat_map(|group| &group.completions)
}

/// Every token of a rollout against the trainer of its version, which scores whole sequences in batches of its own.
/// Returns how many tokens each version has.
fn check_tokens(rollout: &Rollout, trainers: &mut [CpuTrainer], what: &str) -> Vec<usize> {
    rollout.check_versions().unwrap();
    let drawn: Vec<(&[u32], &Completion)> = rollout
        .groups
        .iter()
        .flat_map(|group| group.completions.iter().map(|completion| (group.prompt_tokens.as_slice(), completion)))
        .filter(|(_, completion)| !completion.tokens.is_empty())
        .collect();
    let sample = |(prompt, completion): &(&[u32], &Completion)| TrainSample {
        tokens: [prompt, completion.tokens.as_slice()].concat(),
        prompt_tokens: prompt.len(),
        rollout_logprobs: completion.logprobs.clone(),
        reference_logprobs: None,
        advantage: 1.0,
    };
    let samples: Vec<TrainSample> = drawn.iter().map(sample).collect();
    let mut counts = vec![0; trainers.len()];
    for (version, trainer) in trainers.iter_mut().enumerate() {
        let stamp = current(trainer).stamp();
        let is_used = drawn.iter().any(|(_, completion)| completion.versions.contains(&stamp.version));
        assert_eq!(rollout.stamps.contains(&stamp), is_used, "{what}: {stamp}");
        if !is_used {
            continue;
        }
        let batch = TrainBatch::new(samples.clone(), stamp, rollout.logprob_temperature).unwrap();
        let scores = trainer.score(ScoredPolicy::Current, &batch).unwrap();
        for ((_, completion), scores) in drawn.iter().zip(&scores) {
            let (recorded, scored) = (bits(&completion.logprobs), bits(&scores.logprobs));
            for token in (0..recorded.len()).filter(|&token| completion.versions[token] == stamp.version) {
                assert_eq!(recorded[token], scored[token], "{what}: token {token} of {stamp}");
                counts[version] += 1;
            }
        }
    }
    let drawn: usize = completions(rollout).map(|completion| completion.tokens.len()).sum();
    assert_eq!(counts.iter().sum::<usize>(), drawn, "{what}: every token is of one of the versions");
    counts
}

/// "What it must show" 6: 32 completions, one to three versions published at different moments, in every mode.
#[test]
fn every_token_has_the_logprob_that_its_version_gives_it() {
    for family in ["qwen3", "qwen3-moe"] {
        for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4HighPrecision] {
            let mut trainers: Vec<CpuTrainer> = (0..VERSIONS).map(|version| trained(family, recipe, version)).collect();
            let versions: Vec<Arc<Snapshot>> = trainers.iter().map(current).collect();
            let request = request_of(versions[0].network().config.vocab_size, 4, 24);
            let short = request_of(versions[0].network().config.vocab_size, 1, 2);
            for moments in [vec![10], vec![3, 25], vec![1, 14, 40]] {
                let published: Vec<_> = moments.iter().copied().zip(versions[1..].iter().cloned()).collect();
                for mode in PublicationMode::ALL {
                    let what = format!("{family} {recipe} {mode} {moments:?}");
                    let engine = engine(&versions[0], mode);
                    let rollout = generate_while_publishing(&engine, &request, &published, None);
                    assert_eq!(engine.loaded(), Some(versions[moments.len()].stamp()), "{what}");
                    assert_eq!(completions(&rollout).count(), 32, "{what}");
                    let counts = check_tokens(&rollout, &mut trainers, &what);
                    check_mode(mode, &rollout, &counts, moments.len(), &what);
                    // O11: what comes after begins from nothing that an old version left.
                    let after = generate(engine.as_ref(), &short);
                    assert_eq!(after.stats.cached_tokens, 0, "{what}");
                    assert_eq!(after.stamps, [versions[moments.len()].stamp()], "{what}");
                }
            }
        }
    }
}

fn check_mode(mode: PublicationMode, rollout: &Rollout, counts: &[usize], published: usize, what: &str) {
    let stats = rollout.stats;
    let mixed = completions(rollout).filter(|completion| completion.versions.first() != completion.versions.last());
    let mixed = mixed.count();
    match mode {
        PublicationMode::Finish => {
            assert_eq!((rollout.stamps.len(), rollout.stamp.version), (1, PolicyVersion(0)), "{what}");
            assert_eq!((stats.recomputed_tokens, stats.aborted_tokens), (0, 0), "{what}");
        }
        PublicationMode::Continue => {
            assert!(mixed > 0 && stats.recomputed_tokens > 0, "{what}: {mixed} completions went on");
            assert!(counts[published] > 0, "{what}: {counts:?}");
            assert_eq!(stats.aborted_tokens, 0, "{what}");
        }
        PublicationMode::AbortAndResubmit => {
            assert_eq!(mixed, 0, "{what}");
            for group in &rollout.groups {
                let mut versions = group.completions.iter().flat_map(|completion| &completion.versions);
                let first = versions.next();
                assert!(versions.all(|version| Some(version) == first), "{what}: the group of prompt {}", group.key);
            }
            assert!(stats.aborted_completions > 0 && stats.recomputed_tokens > 0, "{what}: {stats:?}");
            assert!(counts[published] > 0, "{what}: {counts:?}");
        }
    }
    let returned: usize = completions(rollout).map(|completion| completion.tokens.len()).sum();
    assert_eq!(stats.generated_tokens, returned + stats.aborted_tokens, "{what}");
}

/// A request beside another one that is cancelled on its way: versions arrive for both, each on its own thread.
#[test]
fn a_cancelled_request_and_the_one_beside_it_name_the_right_versions() {
    let (family, recipe) = ("qwen3-moe", Recipe::Mxfp8);
    let mut trainers: Vec<CpuTrainer> = (0..VERSIONS).map(|version| trained(family, recipe, version)).collect();
    let versions: Vec<Arc<Snapshot>> = trainers.iter().map(current).collect();
    let whole = request_of(versions[0].network().config.vocab_size, 4, 24);
    let other = GenerateRequest { step: 6, ..whole.clone() };
    let published: Vec<_> = [4, 17, 30].into_iter().zip(versions[1..].iter().cloned()).collect();
    for mode in PublicationMode::ALL {
        let engine = engine(&versions[0], mode);
        let (finished, cancelled) = std::thread::scope(|scope| {
            let beside = scope.spawn(|| generate_while_publishing(&engine, &other, &[], Some(20)));
            (generate_while_publishing(&engine, &whole, &published, None), beside.join().unwrap())
        });
        check_tokens(&finished, &mut trainers, mode.name());
        check_tokens(&cancelled, &mut trainers, mode.name());
        assert!(completions(&finished).all(|completion| completion.finish != FinishReason::Cancelled), "{mode}");
        assert!(completions(&cancelled).any(|completion| completion.finish == FinishReason::Cancelled), "{mode}");
    }
}

/// The mode is a key of the config; a loop that publishes between requests is the same run in every mode.
#[test]
fn a_loop_that_publishes_between_requests_is_the_same_run_in_every_mode() {
    let workspace = Workspace::new("qwen3");
    let mut digests = Vec::new();
    for mode in PublicationMode::ALL {
        let key = format!("rollout.publication={mode}");
        finish(workspace.builder(mode.name(), &["run.steps=2", &key])).unwrap();
        let records = workspace.metrics(mode.name());
        for record in &records {
            assert_eq!(record.number("rollout/recomputed_tokens"), Some(0.0), "{mode}");
            assert_eq!(record.number("rollout/aborted_completions"), Some(0.0), "{mode}");
            assert_eq!(record.number("rollout/aborted_tokens"), Some(0.0), "{mode}");
        }
        digests.push(records.iter().map(|record| record.values["policy_digest"].clone()).collect::<Vec<_>>());
    }
    assert!(digests.iter().all(|run| *run == digests[0]), "{digests:?}");
}
