//! AdamW (Loshchilov and Hutter, 2019): F32 masters and moments, each element's step computed in f64.
//!
//! ```text
//! m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//! w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//! ```
//!
//! `g` is the clipped gradient. Vectors (norms and biases) are not decayed. One element's step reads nothing but that
//! element, so threads and instruction sets do not change it.

use miles_core::network::{Network, ParamId, Role};
use miles_core::plugin::AdamW;
use rayon::prelude::*;

use super::gradients::{Gradients, is_trained};
use super::masters::Masters;
use crate::kernel::Compute;

/// Moments of every trained parameter, and the number of steps taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    rule: AdamW,
    steps: u64,
    moments: Vec<Option<Moments>>,
}

/// First and second moment of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moments {
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

impl Optimizer {
    /// Zero moments for every trained parameter.
    #[must_use]
    pub fn new(rule: AdamW, network: &Network, train_router: bool) -> Self {
        let moments = |id: ParamId| {
            let parameter = network.parameter(id);
            is_trained(parameter.role, train_router)
                .then(|| Moments { first: vec![0.0; parameter.elements()], second: vec![0.0; parameter.elements()] })
        };
        Optimizer { rule, steps: 0, moments: network.ids().map(moments).collect() }
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    pub(crate) fn moments(&self, id: ParamId) -> Option<&Moments> {
        self.moments[id.index()].as_ref()
    }

    pub(crate) fn moments_mut(&mut self, id: ParamId) -> Option<&mut Moments> {
        self.moments[id.index()].as_mut()
    }

    /// One step over every trained parameter. Gradients are multiplied by `gradient_scale` first (clipping).
    pub(crate) fn step(
        &mut self,
        network: &Network,
        masters: &mut Masters,
        gradients: &Gradients,
        gradient_scale: f64,
        learning_rate: f64,
        compute: &Compute,
    ) {
        self.steps += 1;
        let exponent = self.steps as f64;
        let AdamW { beta1, beta2, eps, weight_decay } = self.rule;
        for id in network.ids() {
            let (Some(gradient), Some(moments)) = (gradients.of(id), self.moments[id.index()].as_mut()) else {
                continue;
            };
            let decayed = !matches!(network.parameter(id).role, Role::Norm | Role::Bias);
            let rates = Rates {
                gradient_scale,
                beta1,
                beta2,
                eps,
                step_size: learning_rate / (1.0 - libm::pow(beta1, exponent)),
                second_correction: 1.0 / (1.0 - libm::pow(beta2, exponent)),
                keep: if decayed { 1.0 - learning_rate * weight_decay } else { 1.0 },
            };
            rates.apply(compute, masters.values_mut(id), gradient, moments);
        }
    }
}

/// Factors of one step, the same for every element of a parameter.
#[derive(Clone, Copy)]
struct Rates {
    gradient_scale: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    step_size: f64,
    second_correction: f64,
    keep: f64,
}

impl Rates {
    fn apply(self, compute: &Compute, weights: &mut [f32], gradient: &[f32], moments: &mut Moments) {
        let isa = compute.isa();
        compute.pool().install(|| {
            let weights = weights.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
            let moments = moments.first.par_chunks_mut(PIECE).zip(moments.second.par_chunks_mut(PIECE));
            weights.zip(moments).for_each(|((weights, gradient), (first, second))| {
                isa.run(
                    #[inline(always)]
                    || self.apply_piece(weights, gradient, first, second),
                );
            });
        });
    }

    #[inline(always)]
    fn apply_piece(self, weights: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
        let moments = first.iter_mut().zip(second);
        for ((weight, &g), (m, v)) in weights.iter_mut().zip(gradient).zip(moments) {
            let g = f64::from(g) * self.gradient_scale;
            let new_m = self.beta1 * f64::from(*m) + (1.0 - self.beta1) * g;
            let new_v = self.beta2 * f64::from(*v) + (1.0 - self.beta2) * g * g;
            let denominator = (new_v * self.second_correction).sqrt() + self.eps;
            *weight = (f64::from(*weight) * self.keep - self.step_size * new_m / denominator) as f32;
            *m = new_m as f32;
            *v = new_v as f32;
        }
    }
}

const PIECE: usize = 64 * 1024;
