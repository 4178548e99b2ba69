//! The arithmetic of the fake model.
//!
//! ```text
//! h(t) = sum over i <= t of DECAY^(t - i) E[token i]        logits = W h / temperature
//! ```

use miles_core::network::Network;
use miles_core::policy::{PolicyTensor, Snapshot};

const DECAY: f32 = 0.5;

/// Embedding and head of one version, both `[vocab, hidden]`.
#[derive(Clone)]
pub struct FakePolicy {
    pub embedding: Vec<f32>,
    pub head: Vec<f32>,
    hidden: usize,
}

impl FakePolicy {
    pub fn of(snapshot: &Snapshot) -> Self {
        let network = snapshot.network();
        let values = |id| match snapshot.tensor(id).as_ref() {
            PolicyTensor::Dense(tensor) => tensor.to_f32(),
            PolicyTensor::Quantized(_) => panic!("the fake backend runs in high precision"),
        };
        let hidden = network.config.hidden_size;
        FakePolicy { embedding: values(network.embedding), head: values(network.head.weight), hidden }
    }

    pub fn zeros(network: &Network) -> Self {
        let len = network.config.vocab_size * network.config.hidden_size;
        FakePolicy { embedding: vec![0.0; len], head: vec![0.0; len], hidden: network.config.hidden_size }
    }

    fn row<'a>(&self, table: &'a [f32], id: u32) -> &'a [f32] {
        &table[id as usize * self.hidden..(id as usize + 1) * self.hidden]
    }

    fn state(&self, tokens: &[u32]) -> Vec<f32> {
        let mut state = vec![0.0f32; self.hidden];
        for &token in tokens {
            let row = self.row(&self.embedding, token);
            state.iter_mut().zip(row).for_each(|(value, add)| *value = *value * DECAY + add);
        }
        state
    }

    /// Logprobs of every id after `tokens`.
    pub fn logprobs(&self, tokens: &[u32], temperature: f32) -> Vec<f32> {
        let state = self.state(tokens);
        let logits: Vec<f32> = self
            .head
            .chunks_exact(self.hidden)
            .map(|row| row.iter().zip(&state).map(|(a, b)| a * b).sum::<f32>() / temperature)
            .collect();
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        logits.iter().map(|logit| logit - largest - sum.ln()).collect()
    }

    /// Adds the gradient of `scale * logprob(id | tokens)`.
    pub fn backward(&self, tokens: &[u32], id: u32, temperature: f32, scale: f32, into: &mut FakePolicy) {
        let state = self.state(tokens);
        let logprobs = self.logprobs(tokens, temperature);
        let mut d_state = vec![0.0f32; self.hidden];
        for (other, logprob) in logprobs.iter().enumerate() {
            let d_logit = scale * (f32::from(u8::from(other as u32 == id)) - logprob.exp()) / temperature;
            let first = other * self.hidden;
            for (column, d_value) in d_state.iter_mut().enumerate() {
                into.head[first + column] += d_logit * state[column];
                *d_value += d_logit * self.head[first + column];
            }
        }
        let mut weight = 1.0;
        for &token in tokens.iter().rev() {
            let first = token as usize * self.hidden;
            for (slot, slope) in into.embedding[first..].iter_mut().zip(&d_state) {
                *slot += weight * slope;
            }
            weight *= DECAY;
        }
    }
}
