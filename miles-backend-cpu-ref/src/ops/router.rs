//! From router logits to each row's experts and their weights, in f32 throughout.
//!
//! Two rules, as in transformers:
//!
//! * softmax over all experts, then the k most probable (Qwen3-MoE);
//! * sigmoid scores; a selection bias; the groups whose two best biased scores have the largest sum; then the k best
//!   biased scores in those groups (DeepSeek-V3). The bias chooses experts and is no part of their weights.
//!
//! Ties go to the lower index. A row's experts are kept in ascending order, and every sum over them runs in that order.

use miles_core::Result;
use miles_core::model::RouterConfig;
use miles_core::network::ParamId;

use super::Forward;
use super::activation::Activation;
use super::error::same_size;
use crate::kernel::math::{exp_in_place, sigmoid_in_place};
use crate::kernel::reduce::{max8, sum8};

/// The experts of each row, their weights, and where each row goes.
///
/// Dispatched rows are ordered by expert, then row; [`Routing::expert_rows`] gives an expert's range of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Rows that were routed.
    rows: usize,
    /// Experts per row.
    per_row: usize,
    /// Experts `[rows, per_row]`, ascending in each row.
    experts: Vec<u32>,
    /// Their weights `[rows, per_row]`.
    weights: Vec<f32>,
    /// Scores of all experts before selection `[rows, experts]`: probabilities or sigmoids.
    scores: Vec<f32>,
    /// First dispatched row of each expert, and the total: `[experts + 1]`.
    offsets: Vec<usize>,
    /// The row that each dispatched row is a copy of `[rows * per_row]`.
    source_rows: Vec<u32>,
    /// The dispatched row of each (row, slot) `[rows, per_row]`.
    dispatched: Vec<u32>,
}

impl Routing {
    /// Rows that were routed.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Experts per row.
    #[must_use]
    pub fn per_row(&self) -> usize {
        self.per_row
    }

    /// Experts `[rows, per_row]`, ascending in each row.
    #[must_use]
    pub fn experts(&self) -> &[u32] {
        &self.experts
    }

    /// Weights `[rows, per_row]` of those experts.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The dispatched rows of one expert; any number, also none.
    #[must_use]
    pub fn expert_rows(&self, expert: usize) -> std::ops::Range<usize> {
        self.offsets[expert]..self.offsets[expert + 1]
    }

    /// The row that each dispatched row is a copy of.
    #[must_use]
    pub fn source_rows(&self) -> &[u32] {
        &self.source_rows
    }

    /// The dispatched row of each (row, slot).
    #[must_use]
    pub fn dispatched(&self) -> &[u32] {
        &self.dispatched
    }

    fn new(per_row: usize, expert_count: usize, experts: Vec<u32>, weights: Vec<f32>, scores: Vec<f32>) -> Self {
        let rows = experts.len() / per_row;
        let mut offsets = vec![0; expert_count + 1];
        for &expert in &experts {
            offsets[expert as usize + 1] += 1;
        }
        for expert in 0..expert_count {
            offsets[expert + 1] += offsets[expert];
        }
        let mut next = offsets.clone();
        let mut source_rows = vec![0; experts.len()];
        let mut dispatched = vec![0; experts.len()];
        for (slot, &expert) in experts.iter().enumerate() {
            let at = next[expert as usize];
            next[expert as usize] += 1;
            source_rows[at] = (slot / per_row) as u32;
            dispatched[slot] = at as u32;
        }
        Routing { rows, per_row, experts, weights, scores, offsets, source_rows, dispatched }
    }
}

impl Forward<'_> {
    /// From router logits `[rows, experts]` to each row's experts and weights.
    ///
    /// # Errors
    /// If a row cannot visit that many experts, or the bias does not fit.
    pub fn route(
        &self,
        logits: &Activation,
        selection_bias: Option<ParamId>,
        rule: &RouterConfig,
        per_row: usize,
    ) -> Result<Routing> {
        let count = logits.cols();
        let bias = selection_bias.map(|id| self.weights.vector(id)).transpose()?;
        if let Some(bias) = bias {
            same_size("route", "length of the selection bias", count, bias.len())?;
        }
        same_size("route", "experts per token", per_row.clamp(1, count.max(1)), per_row)?;
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        let mut scores = logits.values().to_vec();
        for row in scores.chunks_exact_mut(count) {
            let mut chosen = match rule {
                RouterConfig::SoftmaxTopK { .. } => {
                    self.softmax(row);
                    largest(row, per_row)
                }
                RouterConfig::SigmoidGrouped { groups, groups_per_token, .. } => {
                    sigmoid_in_place(self.context.compute().isa(), row);
                    let biased: Vec<f32> = match bias {
                        Some(bias) => row.iter().zip(bias).map(|(score, bias)| score + bias).collect(),
                        None => row.to_vec(),
                    };
                    largest_in_groups(&biased, *groups, *groups_per_token, per_row)
                }
            };
            chosen.sort_unstable();
            weights.extend(expert_weights(rule, row, &chosen));
            experts.extend(chosen.iter().map(|&expert| expert as u32));
        }
        Ok(Routing::new(per_row, count, experts, weights, scores))
    }

    fn softmax(&self, row: &mut [f32]) {
        let isa = self.context.compute().isa();
        let largest = max8(isa, row);
        row.iter_mut().for_each(|logit| *logit -= largest);
        exp_in_place(isa, row);
        let sum = sum8(isa, row);
        row.iter_mut().for_each(|value| *value /= sum);
    }
}

/// Gradient with respect to the logits `[rows, experts]`, from that with respect to the weights `[rows, per_row]`.
/// The choice of experts has no gradient.
#[must_use]
pub fn route_backward(routing: &Routing, rule: &RouterConfig, d_weights: &[f32]) -> Vec<f32> {
    let count = routing.offsets.len() - 1;
    let mut d_logits = vec![0.0; routing.rows * count];
    let per_row = routing.per_row;
    for row in 0..routing.rows {
        let slots = row * per_row..(row + 1) * per_row;
        let (chosen, weights) = (&routing.experts[slots.clone()], &routing.weights[slots.clone()]);
        let scores = &routing.scores[row * count..][..count];
        let d_scores = scores_backward(rule, scores, chosen, weights, &d_weights[slots]);
        let d_row = &mut d_logits[row * count..][..count];
        match rule {
            RouterConfig::SoftmaxTopK { .. } => {
                let mut mean = 0.0;
                for (&expert, &d) in chosen.iter().zip(&d_scores) {
                    mean += scores[expert as usize] * d;
                }
                d_row.iter_mut().zip(scores).for_each(|(d, p)| *d = -mean * p);
                for (&expert, &d) in chosen.iter().zip(&d_scores) {
                    d_row[expert as usize] = scores[expert as usize] * (d - mean);
                }
            }
            RouterConfig::SigmoidGrouped { .. } => {
                for (&expert, &d) in chosen.iter().zip(&d_scores) {
                    let score = scores[expert as usize];
                    d_row[expert as usize] = d * (score * (1.0 - score));
                }
            }
        }
    }
    d_logits
}

/// Weights of the chosen experts from the unbiased scores.
fn expert_weights(rule: &RouterConfig, scores: &[f32], chosen: &[usize]) -> Vec<f32> {
    let (normalize, floor, factor) = normalization(rule);
    let total = chosen.iter().fold(0.0, |sum, &expert| sum + scores[expert]) + floor;
    let weight = |score: f32| if normalize { score / total * factor } else { score * factor };
    chosen.iter().map(|&expert| weight(scores[expert])).collect()
}

/// Gradient of [`expert_weights`] with respect to the scores of the chosen experts.
fn scores_backward(rule: &RouterConfig, scores: &[f32], chosen: &[u32], weights: &[f32], d: &[f32]) -> Vec<f32> {
    let (normalize, floor, factor) = normalization(rule);
    if !normalize {
        return d.iter().map(|d| d * factor).collect();
    }
    let total = chosen.iter().fold(0.0, |sum, &expert| sum + scores[expert as usize]) + floor;
    let shared = weights.iter().zip(d).fold(0.0, |sum, (weight, d)| sum + weight * d) / factor;
    d.iter().map(|d| (d - shared) / total * factor).collect()
}

/// Whether weights are divided by their sum, what is added to that sum, and the factor on the result.
fn normalization(rule: &RouterConfig) -> (bool, f32, f32) {
    match *rule {
        RouterConfig::SoftmaxTopK { normalize } => (normalize, 0.0, 1.0),
        RouterConfig::SigmoidGrouped { normalize, scaling_factor, .. } => {
            (normalize, SIGMOID_SUM_FLOOR, scaling_factor)
        }
    }
}

/// Indices of the `count` largest values, the largest first; of equal values the one with the lower index.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

/// As [`largest`], among the best `groups_kept` of `groups` equal groups.
fn largest_in_groups(biased: &[f32], groups: usize, groups_kept: usize, count: usize) -> Vec<usize> {
    let width = (biased.len() / groups.max(1)).max(1);
    let two_best = |group: &[f32]| largest(group, 2).iter().fold(0.0, |sum, &best| sum + group[best]);
    let group_scores: Vec<f32> = biased.chunks(width).map(two_best).collect();
    let kept = largest(&group_scores, groups_kept);
    let mut allowed: Vec<usize> = (0..biased.len()).filter(|expert| kept.contains(&(expert / width))).collect();
    allowed.sort_by(|&a, &b| biased[b].total_cmp(&biased[a]).then(a.cmp(&b)));
    allowed.truncate(count);
    allowed
}

/// Added to the sum that normalizes sigmoid scores.
const SIGMOID_SUM_FLOOR: f32 = 1e-20;
