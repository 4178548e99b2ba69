//! Laying block scales out for matrix-multiplication libraries, and back, with any sizes.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use miles_core::format::layout::{
    DeepGemmScales, GemmScales, ScaleLayout, exponent_bytes, exponent_values, repeat_tile_rows,
};
use miles_fuzz::same_bits;

#[derive(Debug, Arbitrary)]
struct Case {
    rows: usize,
    blocks: usize,
    fits: bool,
    small_rows: u16,
    small_blocks: u8,
    scales: Vec<u8>,
}

const LAYOUTS: [ScaleLayout; 4] =
    [ScaleLayout::Linear, ScaleLayout::PaddedLinear, ScaleLayout::Tile128x4, ScaleLayout::Tile8x4];

fuzz_target!(|case: Case| {
    let hostile = [case.scales.as_slice(), &[]];
    for scales in hostile {
        for layout in LAYOUTS {
            let _ = layout.swizzle(scales, case.rows, case.blocks);
            let _ = layout.unswizzle(scales, case.rows, case.blocks);
        }
        let floats: Vec<f32> = scales.iter().map(|&byte| f32::from(byte)).collect();
        for layout in [GemmScales::Block1x128, GemmScales::Tile128x128] {
            let _ = layout.arrange(&floats, case.rows, case.blocks);
            let _ = layout.compact(&floats, case.rows, case.blocks);
        }
        let words: Vec<u32> = scales.iter().map(|&byte| u32::from(byte)).collect();
        for layout in [DeepGemmScales::Sm90, DeepGemmScales::Sm100] {
            let _ = layout.arrange(&floats, case.rows, case.blocks);
            let _ = layout.compact(&words, case.rows, case.blocks);
        }
        let _ = exponent_bytes(&floats, case.blocks);
        let _ = repeat_tile_rows(scales, case.rows, case.blocks);
    }
    if case.fits {
        // Every scale costs hundreds of instrumented comparisons, so few of them; still two 128x4 tiles in both directions.
        let rows = usize::from(case.small_rows % 300);
        let blocks = usize::from(case.small_blocks % 20).min(700 / rows.max(1));
        round_trips(rows, blocks, &case.scales);
    }
});

fn round_trips(rows: usize, blocks: usize, scales: &[u8]) {
    let scales = miles_fuzz::tiled(scales, rows * blocks);
    for layout in LAYOUTS {
        let buffer = layout.swizzle(&scales, rows, blocks).unwrap();
        assert_eq!(buffer.len(), layout.buffer_bytes(rows, blocks));
        assert_eq!(layout.unswizzle(&buffer, rows, blocks).unwrap(), scales);
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        assert_eq!(sum(&buffer), sum(&scales), "padding is not zero");
    }
    let floats: Vec<f32> = scales.iter().map(|&byte| f32::from(byte)).collect();
    for layout in [GemmScales::Block1x128, GemmScales::Tile128x128] {
        let buffer = layout.arrange(&floats, rows, blocks).unwrap();
        assert!(same_bits(&layout.compact(&buffer, rows, blocks).unwrap(), &floats));
    }
    // 255 is no exponent.
    let exponents: Vec<u8> = scales.iter().map(|&byte| byte.min(254)).collect();
    let powers = exponent_values(&exponents);
    assert_eq!(exponent_bytes(&powers, blocks).unwrap(), exponents);
    for layout in [DeepGemmScales::Sm90, DeepGemmScales::Sm100] {
        let buffer = layout.arrange(&powers, rows, blocks).unwrap();
        assert_eq!(buffer.len(), layout.buffer_len(rows, blocks));
        assert!(same_bits(&layout.compact(&buffer, rows, blocks).unwrap(), &powers));
    }
    let tile_rows = rows.div_ceil(128);
    let repeated = repeat_tile_rows(&scales[..tile_rows * blocks], rows, blocks).unwrap();
    assert_eq!(repeated.len(), rows * blocks);
    assert!(
        repeated
            .iter()
            .enumerate()
            .all(|(index, &scale)| scale == scales[index / blocks / 128 * blocks + index % blocks])
    );
}
