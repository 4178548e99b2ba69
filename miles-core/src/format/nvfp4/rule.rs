//! [`Nvfp4`] as a [`FormatRule`]: from a source to codes, block scales and outer scales.

use super::block::Place;
use super::shards::{LineShards, origin};
use super::{BLOCK, Nvfp4, OuterScale, Rounding, Tile};
use crate::format::lines::{for_each_column, for_each_row};
use crate::format::rule::{check_format, check_joint_widths};
use crate::format::{
    Axis, BlockScales, CodeDependence, FormatError, FormatId, FormatRule, Operand, QuantizeSpec, QuantizedParts,
    QuantizedTensor, ScaleKind, ScaleScope, Source, TensorLayout, abs_max,
};

impl FormatRule for Nvfp4 {
    fn id(&self) -> FormatId {
        self.name()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let format = self.id();
        check_format(&format, &spec.format)?;
        self.check_scope(&format, spec)?;
        let block = match (self.has_tiles(spec), spec.axis) {
            (true, _) => (BLOCK, BLOCK),
            (false, Axis::Row) => (1, BLOCK),
            (false, Axis::Column) => (BLOCK, 1),
        };
        spec.partition.check(&format, (rows, cols), block)?;
        let LineShards { lines, length, segments, .. } = LineShards::new(spec.axis, spec.partition, rows, cols);
        let axis = spec.axis;
        if self.hadamard.is_some() && length % BLOCK != 0 {
            return Err(FormatError::PartialBlock { format, axis, rows, cols, block: BLOCK });
        }
        if axis == Axis::Row && length % 2 != 0 {
            return Err(FormatError::OddLength { format, axis, rows, cols });
        }
        let outer_len = match spec.scope {
            ScaleScope::Row => lines.checked_mul(segments),
            _ => Some(spec.partition.shards_here()),
        };
        let (Some(codes_bytes), Some(outer_len)) = (lines.checked_mul(length.div_ceil(2)), outer_len) else {
            return Err(FormatError::TooLarge { format, rows, cols });
        };
        Ok(TensorLayout {
            codes_bytes,
            scale_kind: ScaleKind::E4m3,
            scale_rows: lines,
            scale_cols: length.div_ceil(BLOCK),
            outer_len,
            amax_len: outer_len,
        })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        self.check_source(source, spec)?;
        let shared = (spec.scope != ScaleScope::Row).then(|| self.outer_scales(std::slice::from_ref(source), spec));
        self.quantize_source(source, spec, shared.as_deref(), 0)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        sources.iter().try_for_each(|source| self.check_source(source, spec))?;
        let shared = (spec.scope != ScaleScope::Row).then(|| self.outer_scales(sources, spec));
        let mut rows_before = 0;
        let quantize = |source: &Source<'_>| {
            let tensor = self.quantize_source(source, spec, shared.as_deref(), rows_before);
            rows_before += source.rows();
            tensor
        };
        sources.iter().map(quantize).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        self.decode_source(tensor)
    }

    fn code_dependence(&self) -> CodeDependence {
        CodeDependence {
            block: self.hadamard.is_some(),
            position: matches!(self.rounding, Rounding::Stochastic { .. }),
        }
    }
}

impl Nvfp4 {
    /// Whether one block scale covers 16x16 values.
    fn has_tiles(&self, spec: &QuantizeSpec) -> bool {
        self.tile == Tile::Square && spec.operand == Operand::Weight
    }

    fn check_scope(&self, format: &FormatId, spec: &QuantizeSpec) -> Result<(), FormatError> {
        let why = match spec.scope {
            ScaleScope::Block => "its block scales are relative to an outer scale",
            ScaleScope::Row if self.has_tiles(spec) => "a 16x16 block of a weight lies in 16 rows",
            _ => return Ok(()),
        };
        Err(FormatError::Scope { format: format.clone(), scope: spec.scope, why })
    }

    fn check_source(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<(), FormatError> {
        self.layout(source.rows(), source.cols(), spec)?;
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            Axis::Row => column / BLOCK,
            Axis::Column => row / BLOCK,
        })
    }

    fn outer_scale(&self, amax: f32) -> OuterScale {
        OuterScale::to_product(amax, self.largest_product())
    }

    /// The outer scale of each shard, over all sources.
    fn outer_scales(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Vec<OuterScale> {
        let mut amax = vec![0.0_f32; spec.partition.shards_here()];
        // Only a rotation makes the amax depend on the direction of lines; rows need no gathering.
        let axis = if self.hadamard.is_some() { spec.axis } else { Axis::Row };
        for source in sources {
            let shards = LineShards::new(axis, spec.partition, source.rows(), source.cols());
            let length = shards.segment_length();
            self.for_each_line(&source.values(), axis, [source.rows(), source.cols()], |line, values| {
                for segment in 0..shards.segments {
                    let largest = &mut amax[shards.shard(line, segment)];
                    *largest = largest.max(abs_max(&values[segment * length..][..length]));
                }
            });
        }
        amax.into_iter().map(|amax| self.outer_scale(amax)).collect()
    }

    /// Quantizes a checked source with the outer scales `shared` of its shards, or one of its own per row.
    fn quantize_source(
        &self,
        source: &Source<'_>,
        spec: &QuantizeSpec,
        shared: Option<&[OuterScale]>,
        rows_before: usize,
    ) -> Result<QuantizedTensor, FormatError> {
        let (rows, cols) = (source.rows(), source.cols());
        let layout = self.layout(rows, cols, spec)?;
        let values = source.values();
        let tiles = self.has_tiles(spec).then(|| {
            let outer_of = |row, column| match shared {
                Some(shared) => shared[spec.partition.shard_of(row, column, rows, cols)],
                None => self.outer_scale(0.0),
            };
            self.tile_scales(&values, [rows, cols], outer_of)
        });
        let shards = LineShards::new(spec.axis, spec.partition, rows, cols);
        let start = origin(spec.axis, spec.partition, [rows, cols], rows_before);
        let (length, segment_length) = (shards.length, shards.segment_length());
        let mut codes = vec![0; layout.codes_bytes];
        let mut scales = vec![0; layout.scale_rows * layout.scale_cols];
        // One per line, also for lines without values; none where they are shared.
        let mut outer = vec![self.outer_scale(0.0); if shared.is_some() { 0 } else { layout.outer_len }];
        self.for_each_line(&values, spec.axis, [rows, cols], |line, values| {
            let line_codes = &mut codes[line * length.div_ceil(2)..][..length.div_ceil(2)];
            let line_scales = &mut scales[line * layout.scale_cols..][..layout.scale_cols];
            if let Some(tiles) = &tiles {
                copy_tile_scales(tiles, spec.axis, line, cols.div_ceil(BLOCK), line_scales);
            }
            for segment in 0..shards.segments {
                let (first, block) = (segment * segment_length, segment * segment_length / BLOCK);
                let values = &values[first..][..segment_length];
                let scale = match shared {
                    Some(shared) => shared[shards.shard(line, segment)],
                    None => {
                        let own = &mut outer[shards.outer_index(spec.scope, line, segment)];
                        *own = self.outer_scale(abs_max(values));
                        *own
                    }
                };
                let place = Place { line: start.line + line, block: start.block + block };
                let segment_codes = &mut line_codes[first / 2..][..segment_length.div_ceil(2)];
                let segment_scales = &mut line_scales[block..][..segment_length.div_ceil(BLOCK)];
                self.quantize_segment(values, &scale, place, segment_codes, segment_scales, tiles.is_some());
            }
        });
        let outer = shared.unwrap_or(&outer);
        let parts = QuantizedParts {
            outer: outer.iter().map(|scale| scale.stored(self.zero_scale, spec.scope)).collect(),
            amax: outer.iter().map(OuterScale::amax).collect(),
            ..QuantizedParts::new(source, spec, codes, BlockScales::U8(scales))
        };
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    /// Calls `visit(line, values)` for every line that has values, rotated where this rule rotates.
    fn for_each_line(
        &self,
        values: &[f32],
        axis: Axis,
        [rows, cols]: [usize; 2],
        mut visit: impl FnMut(usize, &[f32]),
    ) {
        let mut rotated = Vec::new();
        let visit = |line: usize, values: &[f32]| match self.hadamard {
            None => visit(line, values),
            Some(hadamard) => {
                rotated.clear();
                rotated.extend_from_slice(values);
                hadamard.forward(&mut rotated);
                visit(line, &rotated);
            }
        };
        match axis {
            Axis::Row => for_each_row(values, cols, visit),
            Axis::Column => for_each_column(values, rows, cols, visit),
        }
    }
}

/// Writes the scales of one line from those of the tiles, `[tile rows, tile_cols]` in the orientation of the matrix.
fn copy_tile_scales(tiles: &[u8], axis: Axis, line: usize, tile_cols: usize, scales: &mut [u8]) {
    match axis {
        Axis::Row => scales.copy_from_slice(&tiles[line / BLOCK * tile_cols..][..tile_cols]),
        Axis::Column => {
            for (block, scale) in scales.iter_mut().enumerate() {
                *scale = tiles[block * tile_cols + line / BLOCK];
            }
        }
    }
}
