//! AdamW (Loshchilov and Hutter, 2019): F32 moments, each element's step computed in f64 and rounded to the masters' number
//! type, F32 to nearest and BF16 stochastically.
//!
//! ```text
//! m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//! w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//! ```
//!
//! `g` is the clipped gradient. Vectors (norms and biases) are not decayed. One element's step reads nothing but that
//! element (and a random number of its coordinates), so threads and instruction sets do not change it.

use miles_core::network::{Network, ParamId, Role};
use miles_core::number::bf16;
use miles_core::plugin::AdamW;
use miles_core::random::{Coordinates, Stream, words};
use rayon::prelude::*;

use super::gradients::{Gradients, is_trained};
use super::masters::{MasterTensor, Masters};
use crate::kernel::Compute;

/// Moments of every trained parameter, and the number of steps taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    rule: AdamW,
    /// Seed of stochastic rounding.
    seed: u64,
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
    pub fn new(rule: AdamW, network: &Network, train_router: bool, seed: u64) -> Self {
        let moments = |id: ParamId| {
            let parameter = network.parameter(id);
            is_trained(parameter.role, train_router)
                .then(|| Moments { first: vec![0.0; parameter.elements()], second: vec![0.0; parameter.elements()] })
        };
        Optimizer { rule, seed, steps: 0, moments: network.ids().map(moments).collect() }
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
            let draws = Draws { seed: self.seed, step: self.steps, tensor: u64::from(id.0) };
            rates.apply(compute, masters.tensor_mut(id), gradient, moments, draws);
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

/// Where the random numbers of one parameter's step come from.
#[derive(Clone, Copy)]
struct Draws {
    seed: u64,
    step: u64,
    tensor: u64,
}

impl Draws {
    /// 16 random bits for each of the eight elements from `8 * block` on.
    fn block(self, block: usize) -> [u16; BLOCK] {
        let (sample, token) = ((block >> 32) as u32, block as u32);
        let at = Coordinates { step: self.step, prompt: self.tensor, sample, token };
        let [a, b, c, d] = words(self.seed, Stream::Rounding, at);
        [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16, c as u16, (c >> 16) as u16, d as u16, (d >> 16) as u16]
    }
}

impl Rates {
    fn apply(
        self,
        compute: &Compute,
        weights: &mut MasterTensor,
        gradient: &[f32],
        moments: &mut Moments,
        draws: Draws,
    ) {
        let isa = compute.isa();
        let moments = moments.first.par_chunks_mut(PIECE).zip(moments.second.par_chunks_mut(PIECE));
        let rest = gradient.par_chunks(PIECE).zip(moments);
        compute.pool().install(|| match weights {
            MasterTensor::F32(values) => {
                values.par_chunks_mut(PIECE).zip(rest).for_each(|(values, (gradient, (first, second)))| {
                    isa.run(
                        #[inline(always)]
                        || self.apply_piece(values, gradient, first, second),
                    );
                });
            }
            MasterTensor::Bf16(bits) => {
                let pieces = bits.par_chunks_mut(PIECE).zip(rest).enumerate();
                pieces.for_each(|(piece, (bits, (gradient, (first, second))))| {
                    let mut values: Vec<f32> = bits.iter().copied().map(bf16::decode).collect();
                    isa.run(
                        #[inline(always)]
                        || self.apply_piece(&mut values, gradient, first, second),
                    );
                    round_stochastically(&values, draws, piece * (PIECE / BLOCK), bits);
                });
            }
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

/// Writes `values` as BF16; the first one is the first element of `first_block`.
fn round_stochastically(values: &[f32], draws: Draws, first_block: usize, into: &mut [u16]) {
    for (block, (bits, values)) in into.chunks_mut(BLOCK).zip(values.chunks(BLOCK)).enumerate() {
        let random = draws.block(first_block + block);
        for ((bits, &value), random) in bits.iter_mut().zip(values).zip(random) {
            *bits = bf16::encode_stochastic(value, random);
        }
    }
}

const PIECE: usize = 64 * 1024;
/// Elements that share one draw.
const BLOCK: usize = 8;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    /// `count` weights after `steps` equal updates.
    fn moved(mut weights: MasterTensor, count: usize, steps: u64, step_size: f64) -> MasterTensor {
        let compute = Compute::new(NonZeroUsize::new(2).unwrap()).unwrap();
        // Without memory: an update is the sign of the gradient times the step size.
        let rates = Rates {
            gradient_scale: 1.0,
            beta1: 0.0,
            beta2: 0.0,
            eps: 0.0,
            step_size,
            second_correction: 1.0,
            keep: 1.0,
        };
        let mut moments = Moments { first: vec![0.0; count], second: vec![0.0; count] };
        let gradient = vec![-1.0; count];
        for step in 0..steps {
            rates.apply(&compute, &mut weights, &gradient, &mut moments, Draws { seed: 3, step, tensor: 5 });
        }
        weights
    }

    #[test]
    fn updates_far_below_a_step_of_bf16_add_up_to_what_they_add_up_to_in_f32() {
        // A step of BF16 at 0.75 is 2^-8; each update is 2^-8 / 51.2, so rounding to nearest would keep 0.75 for ever.
        const COUNT: usize = 100_003;
        let (steps, step_size) = (40, f64::from(2.0_f32.powi(-8)) / 51.2);
        let weights = MasterTensor::F32(vec![0.75; COUNT]);
        let MasterTensor::F32(full) = moved(weights, COUNT, steps, step_size) else { panic!("F32 stays F32") };
        let weights = MasterTensor::Bf16(vec![bf16::encode(0.75); COUNT]);
        let MasterTensor::Bf16(half) = moved(weights, COUNT, steps, step_size) else { panic!("BF16 stays BF16") };
        let mean = half.iter().map(|bits| f64::from(bf16::decode(*bits))).sum::<f64>() / COUNT as f64;
        // Every update of every weight is one draw with variance p (1 - p) steps^2, p = 1 / 51.2.
        let p = 1.0 / 51.2;
        let deviation = 2.0_f64.powi(-8) * (steps as f64 * p * (1.0 - p) / COUNT as f64).sqrt();
        let distance = (mean - f64::from(full[0])).abs();
        assert!(distance < 5.0 * deviation, "{distance} from {}, {deviation} expected", full[0]);
        assert!(half.iter().any(|bits| *bits != half[0]), "not all weights draw the same numbers");
    }
}
