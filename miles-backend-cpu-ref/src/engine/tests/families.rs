//! Logits and greedy continuations of every family, against those that transformers computed.

use safetensors::SafeTensors;

use super::*;

struct Expected {
    input_ids: Vec<Vec<u32>>,
    logits: Vec<f32>,
    logprobs: Vec<f32>,
    greedy_ids: Vec<u32>,
}

fn expected(name: &str) -> Expected {
    let bytes = std::fs::read(fixture(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |tensor: &str| -> Vec<[u8; 4]> { file.tensor(tensor).unwrap().data().as_chunks::<4>().0.to_vec() };
    let ids = |tensor| words(tensor).into_iter().map(u32::from_le_bytes).collect::<Vec<_>>();
    let floats = |tensor| words(tensor).into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
    let tokens = file.tensor("input_ids").unwrap().shape()[1];
    Expected {
        input_ids: ids("input_ids").chunks(tokens).map(<[u32]>::to_vec).collect(),
        logits: floats("logits"),
        logprobs: floats("next_token_logprobs"),
        greedy_ids: ids("greedy_ids"),
    }
}

/// Largest difference, `skipped` rows of `width` values left out.
fn distance(got: &[f32], want: &[f32], width: usize, skipped: &[usize]) -> f32 {
    assert_eq!(got.len(), want.len());
    let rows = got.chunks(width).zip(want.chunks(width)).enumerate();
    rows.filter(|(row, _)| !skipped.contains(row))
        .flat_map(|(_, (got, want))| got.iter().zip(want).map(|(got, want)| (got - want).abs()))
        .fold(0.0, |worst, difference| if difference > worst || difference.is_nan() { difference } else { worst })
}

#[test]
fn logits_and_greedy_ids_are_those_of_transformers() {
    for name in FAMILIES {
        let expected = expected(name);
        let snapshot = as_stored(name);
        let vocab_size = snapshot.network().config.vocab_size;
        let engine = loaded(&snapshot, &Setup { activations: ActivationDtype::F32, ..Setup::default() });

        let (mut logits, mut logprobs) = (Vec::new(), Vec::new());
        for ids in &expected.input_ids {
            let row = engine.logits(ids).unwrap();
            logprobs.extend(engine.next_token_logprobs(ids, &row, 1.0).unwrap());
            logits.extend(row);
        }
        // The fixtures' README names the one position whose expected logits do not follow from the files.
        let skipped: &[usize] = if name == "deepseek-v3" { &[3] } else { &[] };
        let worst = distance(&logits, &expected.logits, vocab_size, skipped);
        assert!(worst <= TOLERANCE, "{name}: logits differ by {worst}");
        let worst = distance(&logprobs, &expected.logprobs, 1, skipped);
        assert!(worst <= TOLERANCE, "{name}: logprobs differ by {worst}");

        let prompt = PromptRequest { key: 0, tokens: expected.greedy_ids[..8].to_vec(), completions: 1 };
        let request = GenerateRequest { prompts: vec![prompt], sampling: sampling(0.0, 12), seed: 0, step: 0 };
        let rollout = generate(&engine, &request);
        assert_eq!(completions(&rollout)[0].tokens, expected.greedy_ids[8..], "{name}");
    }
}

/// Distance of two F32 forwards that sum in different orders.
const TOLERANCE: f32 = 2e-4;
