//! Randomness that depends on *what* is drawn, never on *when*.
//!
//! Every draw is Philox4x32-10 (Salmon et al., 2011) of a key made from the run's seed and a counter made from the
//! draw's coordinates: (stream, step, prompt, sample, token). No call order, thread count or batch shape can change
//! it, and a resumed run needs no saved generator state: the coordinates are the state.

/// What a draw is for. Streams never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// Sampling of completion tokens.
    Sampling = 1,
    /// Order of the training prompts.
    PromptOrder = 2,
    /// Initial weights.
    Weights = 3,
    /// Stochastic rounding.
    Rounding = 4,
    /// Made-up data in examples and tests.
    Data = 5,
}

/// Coordinates of one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Coordinates {
    /// Training step.
    pub step: u64,
    /// Prompt, as its index in the data.
    pub prompt: u64,
    /// Completion within the prompt's group.
    pub sample: u32,
    /// Token within the completion.
    pub token: u32,
}

/// Four random words for one coordinate.
#[must_use]
pub fn words(seed: u64, stream: Stream, at: Coordinates) -> [u32; 4] {
    // The step is folded into the key, so that the 128-bit counter holds prompt, sample and token whole.
    let step_key = splitmix64(at.step ^ (u64::from(stream as u32) << 56));
    let key = seed ^ step_key;
    let counter = [at.prompt as u32, (at.prompt >> 32) as u32, at.sample, at.token];
    philox4x32(counter, [key as u32, (key >> 32) as u32])
}

/// A uniform number in `[0, 1)` with 53 random bits.
#[must_use]
pub fn uniform(seed: u64, stream: Stream, at: Coordinates) -> f64 {
    let [low, high, ..] = words(seed, stream, at);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A standard normal number (Box-Muller over two uniforms of the same draw).
#[must_use]
pub fn normal(seed: u64, stream: Stream, at: Coordinates) -> f64 {
    let [a, b, c, d] = words(seed, stream, at);
    let unit =
        |low: u32, high: u32| ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - unit(a, b)));
    radius * libm::cos(2.0 * std::f64::consts::PI * unit(c, d))
}

/// A permutation of `0..len`: Fisher-Yates with one draw per position.
#[must_use]
pub fn permutation(seed: u64, stream: Stream, step: u64, len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        let at = Coordinates { step, prompt: last as u64, ..Coordinates::default() };
        let pick = (uniform(seed, stream, at) * (last + 1) as f64) as usize;
        order.swap(last, pick.min(last));
    }
    order
}

/// Philox4x32 with ten rounds.
#[must_use]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let product0 = u64::from(counter[0]) * 0xD251_1F53;
        let product1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (product1 >> 32) as u32 ^ counter[1] ^ key[0],
            product1 as u32,
            (product0 >> 32) as u32 ^ counter[3] ^ key[1],
            product0 as u32,
        ];
    }
    counter
}

fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_equals_the_known_answers_of_random123() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn every_coordinate_changes_the_draw() {
        let base = Coordinates { step: 3, prompt: 5, sample: 7, token: 11 };
        let draw = |at| words(42, Stream::Sampling, at);
        for other in [
            Coordinates { step: 4, ..base },
            Coordinates { prompt: 6, ..base },
            Coordinates { sample: 8, ..base },
            Coordinates { token: 12, ..base },
        ] {
            assert_ne!(draw(base), draw(other));
        }
        assert_ne!(draw(base), words(43, Stream::Sampling, base));
        assert_ne!(draw(base), words(42, Stream::PromptOrder, base));
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = permutation(1, Stream::PromptOrder, 2, 257);
        assert_ne!(order, (0..257).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..257).collect::<Vec<_>>());
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_unit_variance() {
        let draws: Vec<f64> = (0..20_000)
            .map(|prompt| normal(9, Stream::Weights, Coordinates { prompt, ..Coordinates::default() }))
            .collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "mean {mean}, variance {variance}");
    }
}
