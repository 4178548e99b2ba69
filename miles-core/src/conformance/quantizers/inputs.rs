//! The tensors on which quantizers tend to differ.

use crate::conformance::grid::Grid;
use crate::number::{e2m1, e4m3};

type Named = Vec<(&'static str, Grid)>;

/// Elements at the middle of two codes and one `f32` step to each side, under scales that are exactly 1.
pub(super) fn ties() -> Named {
    let e4m3_values: Vec<f32> = (0..e4m3::NAN).map(e4m3::decode).collect();
    let e2m1_values: Vec<f32> = (0..8).map(e2m1::decode).collect();
    // Every block of 32 has 448 in it, so its encode scale is 1; in NVFP4 the first block's 2688 sets the outer scale.
    let fp8 = lines(&around_midpoints(&e4m3_values), 31, |block| [&[448.0][..], block].concat());
    let fp4 = lines(&around_midpoints(&e2m1_values), 15, |block| [&[6.0][..], block].concat());
    vec![("ties of E4M3", in_rows(&fp8, 4, &[])), ("ties of E2M1", in_rows(&fp4, 7, &first_block(2688.0)))]
}

/// Block maxima where the block scale changes.
pub(super) fn scale_borders() -> Named {
    let bases = [1.0_f32, 6.0, 224.0, 240.0, 256.0, 447.0, 448.0, 1.75];
    let powers = (-40..40).step_by(5);
    let maxima = powers.flat_map(|power| bases.map(|base| libm::ldexpf(base, power))).flat_map(neighbourhood);
    let by_32: Vec<Vec<f32>> = maxima.map(|amax| block_of(amax, 32)).collect();
    // E4M3 block scales: amax / 6 in the middle of two E4M3 values while the row's amax is 2688.
    let e4m3_values: Vec<f32> = (0..e4m3::NAN).map(e4m3::decode).collect();
    let middles: Vec<f32> = e4m3_values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0 * 6.0).collect();
    let by_16: Vec<Vec<f32>> = middles.into_iter().flat_map(neighbourhood).map(|amax| block_of(amax, 16)).collect();
    vec![
        ("borders of power-of-two scales", in_rows(&by_32, 4, &[])),
        ("borders of E4M3 scales", in_rows(&by_16, 7, &first_block(2688.0))),
    ]
}

/// Rows whose maxima have arbitrary mantissas.
pub(super) fn arbitrary_maxima() -> Named {
    vec![("512 rows of 32", Grid::uniform(512, 32, 3)), ("64 rows of 256", Grid::uniform(64, 256, 4))]
}

/// Blocks and elements many binades apart.
pub(super) fn magnitudes() -> Named {
    let sign = |row: usize, col: usize| if (row + col).is_multiple_of(2) { 1.0 } else { -1.0 };
    let (rows, cols) = (34, 258);
    let by_block = Grid::uniform(rows, cols, 5).transposed().scaled_rows(|row| (row / 16 % 20) as i32 * 6 - 60);
    // BF16's largest value: rounding f32::MAX to BF16 would be infinite.
    let largest = crate::number::bf16::decode(0x7F7F);
    vec![
        ("1e-30 beside 1e4", Grid::from_fn(rows, cols, |_, col| if col % 40 == 7 { 1.0e4 } else { 1.0e-30 })),
        ("blocks 6 binades apart", by_block.transposed()),
        ("rows 8 binades apart", Grid::uniform(rows, cols, 6).scaled_rows(|row| row as i32 * 8 - 136)),
        ("largest finite values", Grid::from_fn(rows, cols, |row, col| largest * sign(row, col))),
        ("one largest value", Grid::from_fn(rows, cols, |row, col| if row + col == 40 { largest } else { 1.0 })),
        ("E8M0 code 0", Grid::uniform(rows, cols, 7).scaled_rows(|row| -118 - (row % 8) as i32)),
        (
            "block scales that underflow",
            Grid::from_fn(rows, cols, |row, col| {
                if col < 16 { 1.0 } else { libm::ldexpf(1.0, -15 - (row % 10) as i32) * sign(row, col) }
            }),
        ),
    ]
}

/// Subnormal elements, and rows whose maxima make scales saturate or become subnormal.
pub(super) fn subnormals() -> Named {
    let (rows, cols) = (34, 258);
    let tiny = |row: usize, col: usize| f32::from_bits((row * 7919 + col * 104_729) as u32 & 0x007F_FFFF | 1);
    // 2688 / f32::MAX is about 2^-116.6: maxima on both sides of where the outer scale saturates.
    let around_saturation = Grid::uniform(rows, cols, 9).scaled_rows(|row| -130 + row as i32);
    let mut beside_normal = Grid::uniform(rows, cols, 10);
    for row in (0..rows).step_by(3) {
        (0..cols).for_each(|col| beside_normal.values[row * cols + col] = tiny(row, col));
    }
    vec![
        ("every element subnormal", Grid::from_fn(rows, cols, tiny)),
        (
            "subnormal in the upper 16 bits",
            Grid::from_fn(rows, cols, |row, col| {
                f32::from_bits((tiny(row, col).to_bits() & 0x007F_0000) | 0x0001_0000)
            }),
        ),
        ("rows around saturation", around_saturation),
        ("a subnormal row beside normal rows", beside_normal),
    ]
}

/// Zero tensors, and zero rows, blocks and columns beside large values.
pub(super) fn zeros() -> Named {
    let (rows, cols) = (34, 258);
    let blocks = Grid::from_fn(rows, cols, |row, col| match (row % 5, col / 16 % 3) {
        (0, _) | (_, 1) => 0.0,
        _ => 1.0e4 + (row * cols + col) as f32,
    });
    let column = Grid::from_fn(rows, cols, |_, col| if col % 32 == 3 { 0.0 } else { 3.0e4 });
    let tail = Grid::from_fn(rows, cols, |row, col| if row < 32 && col < 256 { 7.0 } else { 0.0 });
    vec![
        ("all zero", Grid::from_fn(rows, cols, |_, _| 0.0)),
        ("zero rows and blocks", blocks),
        ("zero columns", column),
        ("zero tails", tail),
    ]
}

/// Negative zeros alone and among other values, and negative values that round to zero.
pub(super) fn negative_zeros() -> Named {
    let (rows, cols) = (34, 258);
    let sprinkled = Grid::from_fn(rows, cols, |row, col| match (row + 3 * col) % 4 {
        0 => -0.0,
        1 => 0.0,
        2 => -1.0e-3,
        _ => {
            if row % 7 == 2 {
                -0.0
            } else {
                5.0e3
            }
        }
    });
    vec![("all negative zero", Grid::from_fn(rows, cols, |_, _| -0.0)), ("negative zeros among values", sprinkled)]
}

/// NaN and infinities: one, several kinds, in the last element, in every element of a row or block.
pub(super) fn non_finite() -> Named {
    let (rows, cols) = (34, 258);
    let with = |at: &[(usize, usize, f32)]| {
        let mut grid = Grid::uniform(rows, cols, 12);
        at.iter().for_each(|&(row, col, value)| grid.values[row * cols + col] = value);
        grid
    };
    let row_of = |value: f32| Grid::from_fn(rows, cols, |row, col| if row == 4 { value } else { (row + col) as f32 });
    vec![
        ("one NaN", with(&[(33, 257, f32::NAN)])),
        ("infinities of both signs", with(&[(1, 2, f32::INFINITY), (20, 130, f32::NEG_INFINITY)])),
        ("NaN beside infinity", with(&[(5, 17, f32::NAN), (5, 18, f32::INFINITY), (5, 19, -f32::NAN)])),
        ("a row of NaN", row_of(f32::NAN)),
        ("a row of infinity", row_of(f32::NEG_INFINITY)),
    ]
}

/// The middle of each two values, and the `f32` values next to it, of both signs.
fn around_midpoints(values: &[f32]) -> Vec<f32> {
    let middles = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    middles.flat_map(|middle| [middle.next_down(), middle, middle.next_up()]).flat_map(|x| [x, -x]).collect()
}

/// A value and its two neighbours on each side.
fn neighbourhood(x: f32) -> [f32; 5] {
    [x.next_down().next_down(), x.next_down(), x, x.next_up(), x.next_up().next_up()]
}

/// A block with the given maximum in its middle and smaller elements of both signs around.
fn block_of(amax: f32, length: usize) -> Vec<f32> {
    let mut block: Vec<f32> = (0..length).map(|i| amax * (i as f32 / length as f32 - 0.5) * 1.9).collect();
    block[length / 2] = -amax;
    block
}

fn first_block(amax: f32) -> Vec<f32> {
    let mut block = vec![0.0; 16];
    block[0] = amax;
    block
}

/// Cuts values into pieces and makes a block of each.
fn lines(values: &[f32], piece: usize, block: impl Fn(&[f32]) -> Vec<f32>) -> Vec<Vec<f32>> {
    values.chunks_exact(piece).chain(values.len().checked_sub(piece).map(|from| &values[from..])).map(block).collect()
}

/// Rows of `per_row` blocks, each row led by `first`; what is missing in the last row is taken from the start again.
fn in_rows(blocks: &[Vec<f32>], per_row: usize, first: &[f32]) -> Grid {
    let rows: Vec<Vec<f32>> = (0..blocks.len().div_ceil(per_row))
        .map(|row| {
            let wanted = (row * per_row..(row + 1) * per_row).map(|index| blocks[index % blocks.len()].as_slice());
            std::iter::once(first).chain(wanted).collect::<Vec<_>>().concat()
        })
        .collect();
    let cols = rows.first().map_or(0, Vec::len);
    Grid::new(rows.concat(), rows.len(), cols)
}
