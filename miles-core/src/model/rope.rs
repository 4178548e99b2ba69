//! Rotary position embedding as data, and its inverse frequencies.

use serde::{Deserialize, Serialize};

/// Rotary embedding of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the geometric frequency series (`rope_theta`).
    pub theta: f64,
    /// Columns that are rotated in each head (the head width, or `qk_rope_head_dim` in MLA).
    pub rotary_dim: usize,
    /// Which two columns form one rotated pair.
    pub pairing: RopePairing,
    /// Change of the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Which two columns of a head form one rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopePairing {
    /// Column `i` with column `i + rotary_dim / 2`.
    Halves,
    /// Column `2 i` with column `2 i + 1`, each staying in its place. (transformers stores the result as halves for
    /// `rope_interleave`; queries and keys are permuted alike there, so the scores are the same.)
    Interleaved,
}

/// Change of the rotary frequencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Frequencies as they are.
    Default,
    /// Every frequency divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a linear blend between.
    Llama3(Llama3Scaling),
}

/// Parameters of the Llama 3 rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    /// Divisor of the low frequencies.
    pub factor: f64,
    /// Wavelengths longer than `original_context_tokens / low_freq_factor` are divided.
    pub low_freq_factor: f64,
    /// Wavelengths shorter than `original_context_tokens / high_freq_factor` are kept.
    pub high_freq_factor: f64,
    /// Context length before the extension, in tokens.
    pub original_context_tokens: f64,
}

impl RopeConfig {
    /// Inverse frequencies `[rotary_dim / 2]`, rounded once to f32.
    ///
    /// `theta^(-2 i / rotary_dim)` and the Llama 3 blend are those of transformers' `modeling_rope_utils`.
    #[must_use]
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        (0..self.rotary_dim / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f64 / self.rotary_dim as f64;
                let frequency = 1.0 / libm::pow(self.theta, exponent);
                self.scaling.apply(frequency) as f32
            })
            .collect()
    }

    /// Cosines and sines `[rotary_dim / 2]` of one position, each rounded once to f32.
    #[must_use]
    pub fn angles(&self, inverse_frequencies: &[f32], position: u32) -> (Vec<f32>, Vec<f32>) {
        inverse_frequencies
            .iter()
            .map(|&frequency| {
                // transformers multiplies in f32 before taking sine and cosine; the product is rounded there too.
                let angle = f64::from(frequency * position as f32);
                (libm::cos(angle) as f32, libm::sin(angle) as f32)
            })
            .unzip()
    }
}

impl RopeScaling {
    fn apply(&self, frequency: f64) -> f64 {
        match self {
            RopeScaling::Default => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3(rule) => {
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                let original = rule.original_context_tokens;
                if wavelength < original / rule.high_freq_factor {
                    frequency
                } else if wavelength > original / rule.low_freq_factor {
                    frequency / rule.factor
                } else {
                    let smooth =
                        (original / wavelength - rule.low_freq_factor) / (rule.high_freq_factor - rule.low_freq_factor);
                    (1.0 - smooth) * frequency / rule.factor + smooth * frequency
                }
            }
        }
    }
}
