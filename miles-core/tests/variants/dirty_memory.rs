//! Buffers with strangers on both sides: what is not the row's is neither read nor written.

use miles_core::format::fp8_block::Fp8Block;
use miles_core::format::symmetric::Extent;
use miles_core::format::{FormatRule, Mxfp8, SourceDtype, Symmetric};

use crate::sample::values;

const GUARD: usize = 37;
const LENGTHS: [usize; 15] = [0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 251, 1021, 4096];

/// `row` with NaN and infinities before and behind it.
fn surrounded(row: &[f32]) -> Vec<f32> {
    let mut all = vec![f32::NAN; GUARD];
    all.extend_from_slice(row);
    all.extend([f32::INFINITY; GUARD]);
    all
}

/// Runs `quantize(values, codes, scales)` inside dirty buffers and returns what it wrote.
fn inside<S: Copy + PartialEq + std::fmt::Debug>(
    row: &[f32],
    (code_bytes, scale_count): (usize, usize),
    dirt: S,
    quantize: impl Fn(&[f32], &mut [u8], &mut [S]),
) -> (Vec<u8>, Vec<S>) {
    let all = surrounded(row);
    let (mut codes, mut scales) = (vec![0xA5; code_bytes + 2 * GUARD], vec![dirt; scale_count + 2 * GUARD]);
    let values = &all[GUARD..GUARD + row.len()];
    quantize(values, &mut codes[GUARD..GUARD + code_bytes], &mut scales[GUARD..GUARD + scale_count]);
    let untouched = |guard: &[u8]| guard.iter().all(|&byte| byte == 0xA5);
    assert!(untouched(&codes[..GUARD]) && untouched(&codes[GUARD + code_bytes..]));
    let untouched = |guard: &[S]| guard.iter().all(|&scale| scale == dirt);
    assert!(untouched(&scales[..GUARD]) && untouched(&scales[GUARD + scale_count..]));
    (codes[GUARD..GUARD + code_bytes].to_vec(), scales[GUARD..GUARD + scale_count].to_vec())
}

#[test]
fn mxfp8_rows_stay_within_their_buffers() {
    for rule in [Mxfp8::DEFAULT, Mxfp8::OCP_FLOOR, Mxfp8::EVEN] {
        for length in LENGTHS {
            let row = values(length, length as u32);
            let size = (length, length.div_ceil(32));
            let found = inside(&row, size, 0xA5, |x, codes, scales| rule.quantize_row(x, codes, scales));
            let (mut codes, mut scales) = (vec![0; size.0], vec![0; size.1]);
            rule.quantize_row(&row, &mut codes, &mut scales);
            assert_eq!(found, (codes, scales), "{} {length}", rule.id());
        }
    }
}

#[test]
fn mxfp8_groups_of_rows_stay_within_their_buffers() {
    for (rows, cols) in [(1, 1), (31, 33), (32, 32), (32, 129), (7, 64)] {
        let x = values(rows * cols, 1);
        let columns = inside(&x, (rows * cols, cols), 0xA5, |x, codes, scales| {
            Mxfp8::DEFAULT.quantize_row_group_by_column(x, cols, codes, scales);
        });
        assert!(columns.0.iter().any(|&code| code != 0xA5));
        let tiles = cols.div_ceil(32);
        let tiled = inside(&x, (rows * cols, tiles), 0xA5, |x, codes, scales| {
            Mxfp8::TILES.quantize_tile_row(x, cols, codes, scales);
        });
        let (mut codes, mut scales) = (vec![0; rows * cols], vec![0; tiles]);
        Mxfp8::TILES.quantize_tile_row(&x, cols, &mut codes, &mut scales);
        assert_eq!(tiled, (codes, scales));
    }
}

#[test]
fn fp8_block_rows_and_tiles_stay_within_their_buffers() {
    let rules = [Fp8Block::FP32_SCALES, Fp8Block::POW2_SCALES, Fp8Block::DEEPGEMM_UE8M0, Fp8Block::SGLANG_DIVIDE];
    for rule in rules {
        for length in LENGTHS {
            let row = values(length, length as u32);
            let size = (length, length.div_ceil(128));
            let quantize = |x: &[f32], codes: &mut [u8], scales: &mut [f32]| {
                rule.quantize_row(x, SourceDtype::F32, codes, scales);
            };
            let (mut codes, mut scales) = (vec![0; size.0], vec![0.0; size.1]);
            quantize(&row, &mut codes, &mut scales);
            assert_eq!(inside(&row, size, -7.5, quantize), (codes, scales));
        }
        for (rows, cols) in [(1, 1), (128, 129), (77, 127), (3, 256)] {
            let x = values(rows * cols, 2);
            let size = (rows * cols, cols.div_ceil(128));
            let quantize = |x: &[f32], codes: &mut [u8], scales: &mut [f32]| {
                rule.quantize_tile_row(x, cols, SourceDtype::F32, codes, scales);
            };
            let (mut codes, mut scales) = (vec![0; size.0], vec![0.0; size.1]);
            quantize(&x, &mut codes, &mut scales);
            assert_eq!(inside(&x, size, -7.5, quantize), (codes, scales));
        }
    }
}

#[test]
fn symmetric_rows_stay_within_their_buffers() {
    let rules = [
        Symmetric::FP8_CHANNEL,
        Symmetric::INT8_CHANNEL,
        Symmetric::INT4_GROUP_32,
        Symmetric::INT4_GROUP_64,
        Symmetric::INT4_GROUP_128,
    ];
    for rule in rules {
        for length in LENGTHS {
            let row = values(length, length as u32);
            let group = match rule.extent() {
                Extent::Group(group) => group,
                Extent::Line | Extent::Scope => length.max(1),
            };
            let size = (rule.element().bytes(length), length.div_ceil(group));
            let quantize = |x: &[f32], codes: &mut [u8], scales: &mut [f32]| rule.quantize_row(x, codes, scales);
            let (mut codes, mut scales) = (vec![0; size.0], vec![0.0; size.1]);
            quantize(&row, &mut codes, &mut scales);
            assert_eq!(inside(&row, size, -7.5, quantize), (codes, scales), "{} {length}", rule.id());
        }
    }
}
