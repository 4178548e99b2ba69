//! A completion does not depend on what runs beside it, nor on how its prompt was computed.

use super::*;

const SNAPSHOTS: [(&str, Recipe); 5] = [
    ("llama-tied", Recipe::Bf16),
    ("qwen3", Recipe::Mxfp8),
    ("qwen3-moe", Recipe::Nvfp4Dequantized),
    ("deepseek-v3", Recipe::Fp8Block),
    ("qwen2-bias", Recipe::Nvfp4Dequantized),
];

#[test]
fn continuous_batching_gives_the_same_bits_at_every_size() {
    for (name, recipe) in SNAPSHOTS {
        let snapshot = quantized(name, recipe);
        let want =
            drawn(&generate(&loaded(&snapshot, &Setup { max_running: 1, ..Setup::default() }), &request(1.0, 9)));
        assert_eq!(want.iter().map(|(tokens, _)| tokens.len()).collect::<Vec<_>>(), [9; 8]);
        for max_running in [2, 7] {
            let got =
                drawn(&generate(&loaded(&snapshot, &Setup { max_running, ..Setup::default() }), &request(1.0, 9)));
            assert_eq!(got, want, "{name}, {recipe:?}, {max_running} running");
        }
    }
}

#[test]
fn chunked_prefill_gives_the_bits_of_one_forward() {
    for (name, recipe) in SNAPSHOTS {
        let snapshot = quantized(name, recipe);
        let whole = generate(&loaded(&snapshot, &Setup::default()), &request(1.0, 4));
        for prefill_tokens in [1, 3] {
            let engine = loaded(&snapshot, &Setup { prefill_tokens, ..Setup::default() });
            let chunked = generate(&engine, &request(1.0, 4));
            assert_eq!(drawn(&chunked), drawn(&whole), "{name}, {recipe:?}, {prefill_tokens} tokens a forward");
            assert_eq!(chunked.stats, whole.stats);
        }
    }
}

#[test]
fn threads_and_instruction_set_change_no_bit() {
    for (name, recipe) in SNAPSHOTS {
        let snapshot = quantized(name, recipe);
        let want = drawn(&generate(&loaded(&snapshot, &Setup { threads: 1, ..Setup::default() }), &request(1.0, 4)));
        for setup in [Setup { threads: 3, ..Setup::default() }, Setup { isa: Isa::SCALAR, ..Setup::default() }] {
            assert_eq!(drawn(&generate(&loaded(&snapshot, &setup), &request(1.0, 4))), want, "{name}, {recipe:?}");
        }
    }
}

#[test]
fn a_completion_does_not_depend_on_the_other_prompts() {
    let snapshot = quantized("qwen3-moe", Recipe::Nvfp4Dequantized);
    let engine = loaded(&snapshot, &Setup::default());
    let all = generate(&engine, &request(1.0, 6));
    for (index, group) in all.groups.iter().enumerate() {
        let mut alone = request(1.0, 6);
        alone.prompts = vec![alone.prompts.swap_remove(index)];
        assert_eq!(generate(&engine, &alone).groups, std::slice::from_ref(group));
    }
}

/// Logits of the last token of `tokens`, whose first `shared` ones are in a run of their own.
fn last_logits(policy: &LoadedPolicy, tokens: &[u32], shared: usize) -> Vec<u32> {
    let layers = policy.network().config.layer_count();
    let mut cache = KvCache::new(policy.activations());
    let (prefix, run) = (cache.open(policy.stamp(), layers), cache.open(policy.stamp(), layers));
    let mut batch = Batch::default();
    if shared > 0 {
        batch.push(&tokens[..shared], 0, None, prefix, false);
        policy.forward(&batch, &mut cache).unwrap();
        batch = Batch::default();
    }
    batch.push(&tokens[shared..], shared, (shared > 0).then_some(prefix), run, true);
    let logits = policy.forward(&batch, &mut cache).unwrap();
    assert!(logits.iter().all(|logit| logit.is_finite()));
    bits(&logits)
}

#[test]
fn a_shared_prefill_gives_the_bits_of_an_unshared_one() {
    for (name, recipe) in SNAPSHOTS {
        let snapshot = quantized(name, recipe);
        for activations in [ActivationDtype::Bf16, ActivationDtype::F32] {
            let engine = loaded(&snapshot, &Setup { activations, ..Setup::default() });
            let policy = engine.live.policy().unwrap();
            let tokens: Vec<u32> = (0..21).map(|index| index * 5 % 60).collect();
            let unshared = last_logits(&policy, &tokens, 0);
            for shared in [1, 7, 8, 9, 16, 20] {
                assert_eq!(last_logits(&policy, &tokens, shared), unshared, "{name}, {shared} of 21 tokens shared");
            }
        }
    }
}

#[test]
fn a_prompt_is_computed_once_for_all_its_completions() {
    let snapshot = as_stored("llama-tied");
    let rollout = generate(&loaded(&snapshot, &Setup { max_running: 2, ..Setup::default() }), &request(1.0, 3));
    assert_eq!(rollout.stats.prefilled_tokens, 5 + 1 + 11);
    assert_eq!(rollout.stats.shared_tokens, 2 * 5 + 3 * 11);
    assert_eq!(rollout.stats.cached_tokens, 0);
    assert_eq!(rollout.stats.generated_tokens, 8 * 3);
}

#[test]
fn a_group_is_in_request_order_and_carries_its_prompt() {
    let snapshot = as_stored("llama-tied");
    let mut asked = request(1.0, 2);
    asked.prompts[1].completions = 0;
    let rollout = generate(&loaded(&snapshot, &Setup::default()), &asked);
    for (group, prompt) in rollout.groups.iter().zip(&asked.prompts) {
        assert_eq!((group.key, &group.prompt_tokens), (prompt.key, &prompt.tokens));
        assert_eq!(group.completions.len(), prompt.completions);
    }
}
