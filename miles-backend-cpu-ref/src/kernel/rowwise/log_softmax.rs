//! Log-probability of a token and entropy of its distribution, one vocabulary row at a time.
//!
//! With `z = logit / temperature`: `d = z - max`, `e = exp(d)`, `sum = sum8(e)`;
//! `log p[t] = d[t] - ln(sum)`; entropy `= ln(sum) - dot8(e, d) / sum`. A logit of `-inf` is a token that cannot occur: it adds nothing.
//! The gradient of `g * log p[t]` is `(g * (onehot - e / sum)) / temperature`.

use crate::kernel::Isa;
use crate::kernel::math::{exp, ln};
use crate::kernel::pack::check;
use crate::kernel::reduce::{LANES, combine};

/// Summary of one row; enough for any log-probability and the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSoftmaxRow {
    /// Largest `logit / temperature`.
    pub max: f32,
    /// Sum of `exp(logit / temperature - max)`.
    pub sum: f32,
    /// Entropy in nats.
    pub entropy: f32,
    /// What the logits were divided by.
    pub temperature: f32,
}

impl LogSoftmaxRow {
    /// Summarizes `logits` at a temperature above 0.
    ///
    /// # Panics
    /// When the temperature is not above 0.
    #[must_use]
    pub fn new(isa: Isa, logits: &[f32], temperature: f32) -> LogSoftmaxRow {
        assert!(temperature > 0.0, "temperature must be above 0");
        isa.run(
            #[inline(always)]
            || summarize(logits, temperature),
        )
    }

    /// ln p of a token from its logit.
    #[must_use]
    pub fn log_probability(&self, logit: f32) -> f32 {
        (logit / self.temperature - self.max) - ln(self.sum)
    }

    /// Writes ln p of every token.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn log_probabilities(&self, isa: Isa, logits: &[f32], out: &mut [f32]) {
        check("log-probabilities", out.len(), logits.len());
        let (temperature, max, log_sum) = (self.temperature, self.max, ln(self.sum));
        isa.run(
            #[inline(always)]
            || {
                for (out, &logit) in out.iter_mut().zip(logits) {
                    *out = (logit / temperature - max) - log_sum;
                }
            },
        );
    }

    /// Writes the gradient of `gradient * ln p[token]` towards `logits`.
    ///
    /// # Panics
    /// When the lengths differ or `token` lies outside.
    pub fn logits_gradient(&self, isa: Isa, logits: &[f32], token: usize, gradient: f32, dlogits: &mut [f32]) {
        check("logits gradient", dlogits.len(), logits.len());
        assert!(token < logits.len(), "token outside the vocabulary");
        let LogSoftmaxRow { max, sum, temperature, .. } = *self;
        isa.run(
            #[inline(always)]
            || {
                for (dlogit, &logit) in dlogits.iter_mut().zip(logits) {
                    let p = exp(logit / temperature - max) / sum;
                    *dlogit = (gradient * (0.0 - p)) / temperature;
                }
                let p = exp(logits[token] / temperature - max) / sum;
                dlogits[token] = (gradient * (1.0 - p)) / temperature;
            },
        );
    }
}

#[inline(always)]
fn summarize(logits: &[f32], temperature: f32) -> LogSoftmaxRow {
    let (blocks, tail) = logits.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for block in blocks {
        for l in 0..LANES {
            let z = block[l] / temperature;
            largest[l] = if z > largest[l] { z } else { largest[l] };
        }
    }
    for (largest, &logit) in largest.iter_mut().zip(tail) {
        let z = logit / temperature;
        *largest = if z > *largest { z } else { *largest };
    }
    let max = largest.into_iter().fold(f32::NEG_INFINITY, |max, lane| if lane > max { lane } else { max });
    let (mut sums, mut dots) = ([0.0f32; LANES], [0.0f32; LANES]);
    for block in blocks {
        for l in 0..LANES {
            add_term(block[l] / temperature - max, &mut sums[l], &mut dots[l]);
        }
    }
    for (l, &logit) in tail.iter().enumerate() {
        add_term(logit / temperature - max, &mut sums[l], &mut dots[l]);
    }
    let sum = combine(sums);
    LogSoftmaxRow { max, sum, entropy: ln(sum) - combine(dots) / sum, temperature }
}

/// `sum += e`, `dot = fma(e, d, dot)`; a d of `-inf` counts as 0 in the dot, where its e is 0.
#[inline(always)]
fn add_term(d: f32, sum: &mut f32, dot: &mut f32) {
    let e = exp(d);
    *sum += e;
    let d = if d == f32::NEG_INFINITY { 0.0 } else { d };
    *dot = e.mul_add(d, *dot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{assert_close, assert_same_bits, isas, numbers};

    fn logits(n: usize) -> Vec<f32> {
        numbers(6, n).iter().map(|v| v * 9.0).collect()
    }

    #[test]
    fn summary_and_gradient_agree_with_double_precision_on_both_instruction_sets() {
        for n in [1, 2, 7, 8, 9, 300, 49_152] {
            for temperature in [1.0f32, 0.7, 1.3] {
                let (row, token, g) = (logits(n), n / 2, -0.75f32);
                let z: Vec<f64> = row.iter().map(|&v| f64::from(v) / f64::from(temperature)).collect();
                let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let log_sum = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
                let entropy: f64 = z.iter().map(|z| (z - log_sum).exp() * (log_sum - z)).sum();
                let log_p: Vec<f64> = z.iter().map(|z| z - log_sum).collect();
                let one = |i| f64::from(u8::from(i == token));
                let dz: Vec<f64> =
                    (0..n).map(|i| f64::from(g) * (one(i) - log_p[i].exp()) / f64::from(temperature)).collect();
                let first = LogSoftmaxRow::new(Isa::SCALAR, &row, temperature);
                for isa in isas() {
                    let summary = LogSoftmaxRow::new(isa, &row, temperature);
                    assert_same_bits(
                        &[first.max, first.sum, first.entropy],
                        &[summary.max, summary.sum, summary.entropy],
                        "isa",
                    );
                    assert_close(&[entropy], &[summary.entropy], 1e-5, "entropy");
                    let mut all = vec![0.0; n];
                    summary.log_probabilities(isa, &row, &mut all);
                    assert_close(&log_p, &all, 1e-6, "log p");
                    assert_eq!(summary.log_probability(row[token]).to_bits(), all[token].to_bits());
                    let (mut want, mut got) = (vec![0.0; n], vec![0.0; n]);
                    first.logits_gradient(Isa::SCALAR, &row, token, g, &mut want);
                    summary.logits_gradient(isa, &row, token, g, &mut got);
                    assert_same_bits(&want, &got, "gradient");
                    assert_close(&dz, &got, 1e-6, "gradient");
                }
            }
        }
    }

    #[test]
    fn an_impossible_token_adds_nothing() {
        let isa = Isa::detect();
        let summary = LogSoftmaxRow::new(isa, &[1.0, f32::NEG_INFINITY, 1.0], 1.0);
        assert!((summary.entropy - 2f32.ln()).abs() < 1e-6);
        assert_eq!(summary.log_probability(f32::NEG_INFINITY), f32::NEG_INFINITY);
        let mut gradient = [9.0; 3];
        summary.logits_gradient(isa, &[1.0, f32::NEG_INFINITY, 1.0], 0, 1.0, &mut gradient);
        assert_eq!(gradient[1], 0.0);
    }

    #[test]
    #[should_panic(expected = "temperature")]
    fn temperature_zero_is_refused() {
        let _ = LogSoftmaxRow::new(Isa::SCALAR, &[1.0], 0.0);
    }
}
