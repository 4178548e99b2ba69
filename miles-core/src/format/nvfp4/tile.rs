//! Block scales of 16x16 values.

use super::block::{division_scale, reciprocal_scale};
use super::{BLOCK, Nvfp4, OuterScale, ScaleRule};
use crate::format::abs_max;

impl Nvfp4 {
    /// The scales `[ceil(rows / 16), ceil(cols / 16)]` of a matrix in its own orientation, whatever the axis: so the column
    /// copy is the transpose of the row copy. `outer_of(row, column)` is the outer scale at a tile's first value.
    pub(super) fn tile_scales(
        &self,
        values: &[f32],
        [rows, cols]: [usize; 2],
        outer_of: impl Fn(usize, usize) -> OuterScale,
    ) -> Vec<u8> {
        if values.is_empty() {
            return Vec::new();
        }
        let mut scales = Vec::with_capacity(rows.div_ceil(BLOCK) * cols.div_ceil(BLOCK));
        for row in (0..rows).step_by(BLOCK) {
            for column in (0..cols).step_by(BLOCK) {
                let width = BLOCK.min(cols - column);
                let mut tile = [[0.0; BLOCK]; BLOCK];
                for (line, source) in tile.iter_mut().zip(row..rows) {
                    line[..width].copy_from_slice(&values[source * cols + column..][..width]);
                }
                scales.push(self.tile_scale(&tile, &outer_of(row, column)));
            }
        }
        scales
    }

    fn tile_scale(&self, tile: &[[f32; BLOCK]; BLOCK], outer: &OuterScale) -> u8 {
        let amax = abs_max(tile.as_flattened());
        match self.scale_rule {
            ScaleRule::ReciprocalOfSix => reciprocal_scale(amax, outer),
            ScaleRule::DivisionBySix => division_scale(amax, outer),
            ScaleRule::FourOverSix(choice) => {
                choice.scale(amax, outer, |scale| choice.tile_error(tile, scale, outer, self.rounding))
            }
        }
    }
}
