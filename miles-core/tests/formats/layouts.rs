//! Scale layouts beyond the golden shapes: inverses, dirty padding, wrong lengths.

use miles_core::format::layout::{GemmScales, ScaleLayout};
use miles_core::format::{FormatError, MAX_EXTENT};

const SHAPES: [(usize, usize); 9] = [(0, 0), (0, 3), (3, 0), (1, 1), (7, 5), (8, 4), (127, 3), (128, 8), (131, 17)];

#[test]
fn one_byte_layouts_round_trip_with_dirty_padding() {
    for layout in [ScaleLayout::Linear, ScaleLayout::Tile128x4, ScaleLayout::Tile8x4] {
        for (rows, blocks) in SHAPES {
            let scales: Vec<u8> = (0..rows * blocks).map(|i| (i % 251 + 1) as u8).collect();
            let clean = layout.swizzle(&scales, rows, blocks).unwrap();
            assert_eq!(clean.len(), layout.buffer_bytes(rows, blocks));
            assert_eq!(clean.iter().filter(|&&byte| byte != 0).count(), scales.len(), "padding is zero");
            let dirty: Vec<u8> = clean.iter().map(|&byte| if byte == 0 { 0xFF } else { byte }).collect();
            assert_eq!(layout.unswizzle(&dirty, rows, blocks).unwrap(), scales);
        }
    }
}

#[test]
fn gemm_layouts_round_trip_with_dirty_padding() {
    for layout in [GemmScales::Block1x128, GemmScales::Tile128x128] {
        for (rows, blocks) in SHAPES {
            let scales: Vec<f32> = (0..rows * blocks).map(|i| i as f32 + 1.0).collect();
            let clean = layout.arrange(&scales, rows, blocks).unwrap();
            assert_eq!(clean.iter().filter(|&&scale| scale != 0.0).count(), scales.len(), "padding is zero");
            let dirty: Vec<f32> = clean.iter().map(|&s| if s == 0.0 { f32::NAN } else { s }).collect();
            assert_eq!(layout.compact(&dirty, rows, blocks).unwrap(), scales);
        }
    }
}

#[test]
fn rejects_buffers_of_the_wrong_length() {
    let error = ScaleLayout::Tile128x4.unswizzle(&[0; 511], 3, 4).unwrap_err();
    assert_eq!(
        error,
        FormatError::ScaleBufferLength { layout: "128x4", rows: 3, blocks: 4, expected: 512, found: 511 }
    );
    assert!(ScaleLayout::Tile8x4.swizzle(&[0; 11], 3, 4).is_err());
    assert!(GemmScales::Block1x128.arrange(&[0.0; 11], 3, 4).is_err());
    assert!(GemmScales::Tile128x128.compact(&[0.0; 11], 3, 4).is_err());
}

#[test]
fn rejects_sizes_whose_product_wraps_to_the_length_of_the_buffer() {
    // Each product is 0 modulo 2^64, the length of the empty buffer that is given.
    let half = 1 << (usize::BITS / 2);
    for (rows, blocks) in [(half, half), (usize::MAX, 4), (4, usize::MAX), (usize::MAX, 0), (0, MAX_EXTENT + 1)] {
        let refused = |result: Result<usize, FormatError>| {
            let error = result.unwrap_err();
            let named =
                matches!(error, FormatError::ScaleExtent { rows: r, blocks: b, .. } if (r, b) == (rows, blocks));
            assert!(named, "{error}");
        };
        for layout in [ScaleLayout::Linear, ScaleLayout::Tile128x4, ScaleLayout::Tile8x4] {
            refused(layout.swizzle(&[], rows, blocks).map(|buffer| buffer.len()));
            refused(layout.unswizzle(&[], rows, blocks).map(|scales| scales.len()));
        }
        for layout in [GemmScales::Block1x128, GemmScales::Tile128x128] {
            refused(layout.arrange(&[], rows, blocks).map(|buffer| buffer.len()));
            refused(layout.compact(&[], rows, blocks).map(|scales| scales.len()));
        }
    }
}
