//! A rollout logprob is that of the full forward, to the bit.

use super::*;

fn recipes(name: &str) -> Vec<Recipe> {
    match name {
        "qwen3-moe-sharded" => vec![Recipe::Bf16],
        _ => vec![Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block],
    }
}

#[test]
fn engine_logprobs_are_those_of_the_full_forward_to_the_bit() {
    for name in FAMILIES {
        for recipe in recipes(name) {
            let snapshot = quantized(name, recipe);
            for activations in [ActivationDtype::Bf16, ActivationDtype::F32] {
                let engine = loaded(&snapshot, &Setup { activations, max_running: 3, ..Setup::default() });
                check_rollout(&engine, &request(1.0, 6), &format!("{name}, {recipe:?}, {activations:?}"));
            }
        }
    }
}

#[test]
fn logprobs_are_of_the_temperature_scaled_distribution() {
    let engine = loaded(&as_stored("qwen3"), &Setup::default());
    for temperature in [0.6, 1.0, 1.7] {
        let rollout = check_rollout(&engine, &request(temperature, 6), &format!("temperature {temperature}"));
        assert_eq!(rollout.logprob_temperature, temperature);
    }
    let greedy = check_rollout(&engine, &request(0.0, 6), "greedy");
    assert_eq!(greedy.logprob_temperature, 1.0);
}

#[test]
fn logprobs_do_not_change_with_the_filters() {
    let engine = loaded(&as_stored("qwen3"), &Setup::default());
    let mut filtered = request(1.3, 6);
    filtered.sampling.top_k = 5;
    filtered.sampling.top_p = 0.9;
    filtered.sampling.min_p = 0.05;
    check_rollout(&engine, &filtered, "filtered");
}

#[test]
fn a_logprob_is_the_log_softmax_of_the_scaled_logits() {
    let engine = loaded(&as_stored("qwen3"), &Setup::default());
    let ids = [3, 14, 15, 9, 26];
    let logits = engine.logits(&ids).unwrap();
    let vocab_size = engine.network.config.vocab_size;
    for temperature in [0.6f32, 1.0, 1.7] {
        let logprobs = engine.next_token_logprobs(&ids, &logits, temperature).unwrap();
        for ((row, &next), &logprob) in logits.chunks(vocab_size).zip(&ids[1..]).zip(&logprobs) {
            let scaled: Vec<f64> = row.iter().map(|&logit| f64::from(logit) / f64::from(temperature)).collect();
            let normalizer = scaled.iter().map(|logit| logit.exp()).sum::<f64>().ln();
            let want = scaled[next as usize] - normalizer;
            assert!((f64::from(logprob) - want).abs() < 1e-5, "temperature {temperature}: {logprob} for {want}");
        }
    }
}

/// Generates and compares every logprob with the one from an unshared forward of prompt and completion.
fn check_rollout(engine: &CpuEngine, request: &GenerateRequest, what: &str) -> Rollout {
    let rollout = generate(engine, request);
    for group in &rollout.groups {
        for completion in &group.completions {
            let ids: Vec<u32> = group.prompt_tokens.iter().chain(&completion.tokens).copied().collect();
            let logits = engine.logits(&ids).unwrap();
            let all = engine.next_token_logprobs(&ids, &logits, rollout.logprob_temperature).unwrap();
            let want = &all[group.prompt_tokens.len() - 1..];
            assert_eq!(bits(&completion.logprobs), bits(want), "{what}, prompt {}", group.key);
        }
    }
    rollout
}
