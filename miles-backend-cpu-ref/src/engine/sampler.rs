//! Drawing one token from one row of logits.
//!
//! A draw depends on the logits, the sampling parameters and the coordinates (seed, step, prompt, sample, token) alone:
//! never on the batch, the other rows or the thread. The parameters act in this order:
//!
//! 1. **temperature**: logits are divided by it; 0 takes the largest logit (of equal ones the lowest id) and ends here;
//! 2. **top-k**: the k largest logits stay;
//! 3. **top-p**: of those, the fewest likely ones whose share of what top-k left reaches p;
//! 4. **min-p**: of those, the ones at least `min_p` times as likely as the likeliest.
//!
//! Among equal logits the lower id counts as the likelier one. Each step keeps a prefix of one ranking, so the kept set
//! is a prefix too. The draw then walks the kept tokens in ascending id order, so parameters that remove nothing draw
//! what no parameters would draw.

use std::cmp::Ordering;

use miles_core::plugin::{RolloutError, Sampling};
use miles_core::random::{Coordinates, Stream, uniform};

use crate::kernel::{Isa, math};

/// Refuses parameters outside their ranges.
///
/// # Errors
/// [`RolloutError::BadSampling`] names the parameter; [`RolloutError::TokenOutOfRange`] an end-of-sequence id outside
/// the vocabulary.
pub(super) fn check_sampling(sampling: &Sampling, vocab_size: usize) -> Result<(), RolloutError> {
    sampling.check()?;
    match sampling.eos_token_ids.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(&id) => Err(RolloutError::TokenOutOfRange { id, vocab_size }),
    }
}

/// Draws tokens for one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler<'a> {
    pub(super) sampling: &'a Sampling,
    pub(super) seed: u64,
    pub(super) isa: Isa,
}

impl Sampler<'_> {
    /// The temperature that logprobs are scaled by: 1 for a greedy draw, whose temperature has no distribution.
    pub(super) fn logprob_temperature(&self) -> f32 {
        if self.sampling.temperature == 0.0 { 1.0 } else { self.sampling.temperature }
    }

    /// The token drawn from `logits` (`[vocab]`) at `at`, or `None` when a logit is not finite.
    pub(super) fn draw(&self, logits: &[f32], at: Coordinates) -> Option<u32> {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let largest = largest(logits)?;
        if self.sampling.temperature == 0.0 {
            return Some(largest);
        }
        let weights = self.weights(logits, logits[largest as usize]);
        let point = uniform(self.seed, Stream::Sampling, at);
        Some(match self.kept(logits, &weights) {
            None => pick(0..logits.len() as u32, &weights, point).unwrap_or(largest),
            Some(kept) => pick(kept.iter().copied(), &weights, point).unwrap_or(largest),
        })
    }

    /// Unnormalised probabilities: `exp((logit - largest) / temperature)`, 1 for the likeliest token.
    fn weights(&self, logits: &[f32], largest: f32) -> Vec<f32> {
        let temperature = self.sampling.temperature;
        let mut weights: Vec<f32> = logits.iter().map(|logit| (logit - largest) / temperature).collect();
        math::exp_in_place(self.isa, &mut weights);
        weights
    }

    /// Ids that top-k, top-p and min-p keep, ascending; `None` keeps all.
    fn kept(&self, logits: &[f32], weights: &[f32]) -> Option<Vec<u32>> {
        let Sampling { top_k, top_p, min_p, .. } = *self.sampling;
        let top_k = if top_k == 0 { logits.len() } else { top_k.min(logits.len()) };
        if top_k == logits.len() && top_p == 1.0 && min_p == 0.0 {
            return None;
        }
        let mut ranking = Ranking::new(logits);
        let mut kept = top_k;
        if top_p < 1.0 {
            let total: f64 = match top_k == logits.len() {
                true => weights.iter().map(|&weight| f64::from(weight)).sum(),
                false => ranking.best(top_k).iter().map(|&id| f64::from(weights[id as usize])).sum(),
            };
            kept = ranking.shortest_reaching(f64::from(top_p) * total, top_k, weights);
        }
        let mut ids = if min_p == 0.0 {
            ranking.best(kept).to_vec()
        } else {
            // The likeliest token's weight is exactly 1.
            ranking.best(kept).iter().copied().filter(|&id| weights[id as usize] >= min_p).collect()
        };
        ids.sort_unstable();
        Some(ids)
    }
}

/// Token ids by descending logit, then ascending id; sorted only as far as it is asked for.
struct Ranking<'a> {
    logits: &'a [f32],
    ids: Vec<u32>,
    sorted: usize,
}

impl<'a> Ranking<'a> {
    fn new(logits: &'a [f32]) -> Self {
        Ranking { logits, ids: (0..logits.len() as u32).collect(), sorted: 0 }
    }

    /// The `count` best ids, best first.
    fn best(&mut self, count: usize) -> &[u32] {
        if count > self.sorted {
            let logits = self.logits;
            let rank = |a: &u32, b: &u32| {
                let order = logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap_or(Ordering::Equal);
                order.then(a.cmp(b))
            };
            let rest = &mut self.ids[self.sorted..];
            let wanted = count - self.sorted;
            if wanted < rest.len() {
                rest.select_nth_unstable_by(wanted, rank);
            }
            rest[..wanted].sort_unstable_by(rank);
            self.sorted = count;
        }
        &self.ids[..count]
    }

    /// How many of the best ids, at most `limit`, have weights that sum to `target`.
    fn shortest_reaching(&mut self, target: f64, limit: usize, weights: &[f32]) -> usize {
        let (mut sum, mut count) = (0.0, 0);
        let mut window = FIRST_WINDOW.min(limit);
        loop {
            for &id in &self.best(window)[count..] {
                sum += f64::from(weights[id as usize]);
                count += 1;
                if sum >= target {
                    return count;
                }
            }
            if count == limit {
                return limit;
            }
            window = (window * 4).min(limit);
        }
    }
}

/// The lowest id among the largest logits.
fn largest(logits: &[f32]) -> Option<u32> {
    let ids = 0..logits.len() as u32;
    ids.reduce(|best, id| if logits[id as usize] > logits[best as usize] { id } else { best })
}

/// The first id whose running weight exceeds `point` (in `[0, 1)`) of the total.
fn pick(ids: impl Iterator<Item = u32> + Clone, weights: &[f32], point: f64) -> Option<u32> {
    let weight = |id: u32| f64::from(weights[id as usize]);
    let total: f64 = ids.clone().map(weight).sum();
    let target = point * total;
    let mut sum = 0.0;
    let mut last = None;
    for id in ids {
        sum += weight(id);
        if weights[id as usize] > 0.0 {
            last = Some(id);
            if sum > target {
                return last;
            }
        }
    }
    last
}

/// Ids ranked before top-p looks further.
const FIRST_WINDOW: usize = 64;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "sampler_tests.rs"]
mod tests;
