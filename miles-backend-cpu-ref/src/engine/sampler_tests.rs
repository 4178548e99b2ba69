//! What a draw may depend on, and that it follows the distribution it says.

use super::*;

fn plain(temperature: f32) -> Sampling {
    Sampling { temperature, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens: 4, eos_token_ids: vec![] }
}

fn sampler(sampling: &Sampling) -> Sampler<'_> {
    Sampler { sampling, seed: 11, isa: Isa::detect() }
}

fn at(token: u32) -> Coordinates {
    Coordinates { step: 3, prompt: 9, sample: 2, token }
}

fn probabilities(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Pearson's statistic of `draws` draws against `expected`.
fn chi_square(sampling: &Sampling, logits: &[f32], expected: &[f64], draws: u32) -> f64 {
    let mut counts = vec![0u32; logits.len()];
    for token in 0..draws {
        counts[sampler(sampling).draw(logits, at(token)).unwrap() as usize] += 1;
    }
    let terms = counts.iter().zip(expected).map(|(&count, &probability)| {
        let mean = probability * f64::from(draws);
        if mean == 0.0 {
            assert_eq!(count, 0, "a token without probability was drawn");
            return 0.0;
        }
        (f64::from(count) - mean).powi(2) / mean
    });
    terms.sum()
}

const LOGITS: [f32; 8] = [0.5, 2.0, -1.0, 2.0, 0.0, 1.25, -3.0, 0.5];

/// The 99.9 % point of chi-square with seven degrees of freedom.
const CHI_SQUARE_7: f64 = 24.32;

#[test]
fn draws_follow_the_temperature_scaled_distribution() {
    for temperature in [0.6, 1.0, 1.7] {
        let expected = probabilities(&LOGITS, f64::from(temperature));
        let statistic = chi_square(&plain(temperature), &LOGITS, &expected, 40_000);
        assert!(statistic < CHI_SQUARE_7, "temperature {temperature}: chi-square {statistic}");
    }
}

#[test]
fn draws_at_another_temperature_are_told_apart() {
    let expected = probabilities(&LOGITS, 1.0);
    assert!(chi_square(&plain(0.6), &LOGITS, &expected, 40_000) > 10.0 * CHI_SQUARE_7);
}

#[test]
fn filtered_draws_follow_the_renormalised_distribution() {
    let sampling = Sampling { top_k: 5, top_p: 0.9, min_p: 0.2, ..plain(1.0) };
    let mut expected = probabilities(&LOGITS, 1.0);
    // Ranking 1 3 5 0 7 | 4 2 6 (top-k 5); of the five, 1 3 5 and 0 reach 0.9; e^-1.5 = 0.223 passes min-p 0.2.
    for dropped in [2, 4, 6, 7] {
        expected[dropped] = 0.0;
    }
    let total: f64 = expected.iter().sum();
    expected.iter_mut().for_each(|probability| *probability /= total);
    let statistic = chi_square(&sampling, &LOGITS, &expected, 40_000);
    assert!(statistic < CHI_SQUARE_7, "chi-square {statistic}");
}

fn kept(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
    let sampler = sampler(sampling);
    let largest = logits[largest(logits).unwrap() as usize];
    let weights = sampler.weights(logits, largest);
    sampler.kept(logits, &weights).unwrap_or_else(|| (0..logits.len() as u32).collect())
}

#[test]
fn top_k_keeps_the_k_largest_and_of_equal_ones_the_lower_ids() {
    let keep = |top_k| kept(&Sampling { top_k, ..plain(1.0) }, &LOGITS);
    assert_eq!(keep(1), [1]);
    assert_eq!(keep(2), [1, 3]);
    assert_eq!(keep(4), [0, 1, 3, 5]);
    assert_eq!(keep(5), [0, 1, 3, 5, 7]);
    assert_eq!(keep(0).len(), 8);
    assert_eq!(keep(100).len(), 8);
    assert_eq!(kept(&Sampling { top_k: 3, ..plain(1.0) }, &[1.0; 9]), [0, 1, 2]);
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_p() {
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
    let keep = |top_p| kept(&Sampling { top_p, ..plain(1.0) }, &logits);
    assert_eq!(keep(0.01), [1]);
    assert_eq!(keep(0.39), [1]);
    assert_eq!(keep(0.41), [1, 3]);
    assert_eq!(keep(0.69), [1, 3]);
    assert_eq!(keep(0.71), [1, 2, 3]);
    assert_eq!(keep(0.95), [0, 1, 2, 3]);
    assert_eq!(keep(1.0), [0, 1, 2, 3]);
}

#[test]
fn top_p_looks_beyond_its_first_window() {
    let logits = vec![0.0; 1000];
    assert_eq!(kept(&Sampling { top_p: 0.5, ..plain(1.0) }, &logits), (0..500).collect::<Vec<u32>>());
}

#[test]
fn top_p_is_a_share_of_what_top_k_left() {
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
    // 0.4 of the 0.7 that top-k leaves is a share of 0.571.
    let keep = |top_p| kept(&Sampling { top_k: 2, top_p, ..plain(1.0) }, &logits);
    assert_eq!(keep(0.56), [1]);
    assert_eq!(keep(0.58), [1, 3]);
}

#[test]
fn min_p_is_a_fraction_of_the_likeliest() {
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
    let keep = |min_p| kept(&Sampling { min_p, ..plain(1.0) }, &logits);
    assert_eq!(keep(0.24), [0, 1, 2, 3]);
    assert_eq!(keep(0.26), [1, 2, 3]);
    assert_eq!(keep(0.51), [1, 3]);
    assert_eq!(keep(1.0), [1]);
}

#[test]
fn filters_act_after_the_temperature() {
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
    // At temperature 2 the ratio 0.1 / 0.4 becomes its root, 0.5.
    assert_eq!(kept(&Sampling { min_p: 0.49, ..plain(2.0) }, &logits).len(), 4);
    assert_eq!(kept(&Sampling { min_p: 0.51, ..plain(2.0) }, &logits).len(), 3);
}

#[test]
fn filters_that_remove_nothing_draw_what_no_filters_draw() {
    let open = plain(0.8);
    let loose = Sampling { top_k: 8, top_p: 0.999_999_9, min_p: 1e-9, ..plain(0.8) };
    for token in 0..500 {
        assert_eq!(sampler(&open).draw(&LOGITS, at(token)), sampler(&loose).draw(&LOGITS, at(token)));
    }
}

#[test]
fn temperature_zero_takes_the_lowest_id_of_the_largest_logits() {
    assert_eq!(sampler(&plain(0.0)).draw(&LOGITS, at(0)), Some(1));
    assert_eq!(sampler(&plain(0.0)).draw(&[-0.0, 0.0, -1.0], at(0)), Some(0));
    assert_eq!(sampler(&plain(0.0)).logprob_temperature(), 1.0);
}

#[test]
fn a_draw_depends_on_its_coordinates_alone() {
    let sampling = plain(1.0);
    let draws = |seed| -> Vec<_> {
        let sampler = Sampler { sampling: &sampling, seed, isa: Isa::SCALAR };
        (0..64).map(|token| sampler.draw(&LOGITS, at(token))).collect()
    };
    assert_eq!(draws(11), draws(11));
    assert_ne!(draws(11), draws(12));
    let detected: Vec<_> = (0..64).map(|token| sampler(&sampling).draw(&LOGITS, at(token))).collect();
    assert_eq!(draws(11), detected);
}

#[test]
fn a_logit_that_is_not_finite_is_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for temperature in [0.0, 1.0] {
            assert_eq!(sampler(&plain(temperature)).draw(&[0.0, bad, 1.0], at(0)), None);
        }
    }
}

#[test]
fn parameters_outside_their_ranges_are_named() {
    let bad = [
        ("temperature", Sampling { temperature: -1.0, ..plain(1.0) }),
        ("temperature", Sampling { temperature: f32::NAN, ..plain(1.0) }),
        ("temperature", Sampling { temperature: 1e-9, ..plain(1.0) }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..plain(1.0) }),
        ("top_p", Sampling { top_p: 0.0, ..plain(1.0) }),
        ("top_p", Sampling { top_p: 1.1, ..plain(1.0) }),
        ("top_p", Sampling { top_p: f32::NAN, ..plain(1.0) }),
        ("min_p", Sampling { min_p: -0.1, ..plain(1.0) }),
        ("min_p", Sampling { min_p: 1.5, ..plain(1.0) }),
        ("max_new_tokens", Sampling { max_new_tokens: 0, ..plain(1.0) }),
    ];
    for (name, sampling) in bad {
        let error = check_sampling(&sampling, 8).unwrap_err();
        assert!(matches!(error, RolloutError::BadSampling { key, .. } if key == name), "{name}: {error}");
    }
    let outside = Sampling { eos_token_ids: vec![3, 8], ..plain(1.0) };
    let error = check_sampling(&outside, 8).unwrap_err();
    assert!(matches!(error, RolloutError::TokenOutOfRange { id: 8, vocab_size: 8 }), "{error}");
    check_sampling(&Sampling { eos_token_ids: vec![7], ..plain(0.0) }, 8).unwrap();
}
