//! `int8-blocks`: signed bytes in blocks of 16, one F32 scale per block.
//!
//! ```text
//! scale = RN(amax / 127)        code = round_ties_even(RN(x / scale)), at most 127        y = RN(code * scale)
//! ```
//!
//! A block whose scale is 0 has codes 0. The column copy is the row copy of the transpose. An infinity counts as the
//! largest finite number and NaN as 0, where they are allowed at all.

use miles_core::format::{
    Axis, BlockScales, FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind,
    Source, TensorLayout, check_joint_widths,
};

/// Elements per block.
const BLOCK: usize = 16;

/// The rule.
#[derive(Clone, Debug)]
pub struct Int8Blocks {
    id: FormatId,
}

impl Int8Blocks {
    /// The rule under its name.
    ///
    /// # Errors
    /// Never: the name is valid.
    pub fn new() -> Result<Self, FormatError> {
        Ok(Int8Blocks { id: FormatId::new("int8-blocks")? })
    }

    fn check(&self, requested: &FormatId) -> Result<(), FormatError> {
        match *requested == self.id {
            true => Ok(()),
            false => Err(FormatError::FormatMismatch { rule: self.id.clone(), requested: requested.clone() }),
        }
    }
}

miles_core::register_format!("int8-blocks", |_options| Ok(Box::new(Int8Blocks::new()?)));

impl FormatRule for Int8Blocks {
    fn id(&self) -> FormatId {
        self.id.clone()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        self.check(&spec.format)?;
        let codes_bytes = rows.checked_mul(cols);
        let codes_bytes = codes_bytes.ok_or(FormatError::TooLarge { format: self.id.clone(), rows, cols })?;
        let block = if spec.axis == Axis::Row { (1, BLOCK) } else { (BLOCK, 1) };
        spec.partition.check(&self.id, (rows, cols), block)?;
        let (lines, length) = lines(spec.axis, rows, cols);
        let (scale_rows, scale_cols) = (lines, length.div_ceil(BLOCK));
        Ok(TensorLayout { codes_bytes, scale_kind: ScaleKind::F32, scale_rows, scale_cols, outer_len: 0, amax_len: 0 })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let (rows, cols) = (source.rows(), source.cols());
        let layout = self.layout(rows, cols, spec)?;
        source.check_finite(spec.non_finite, |row, column| match spec.axis {
            Axis::Row => column / BLOCK,
            Axis::Column => row / BLOCK,
        })?;
        let values = match spec.axis {
            Axis::Row => source.values().into_owned(),
            Axis::Column => transpose(&source.values(), rows, cols),
        };
        let (_, length) = lines(spec.axis, rows, cols);
        let (mut codes, mut scales) = (Vec::with_capacity(layout.codes_bytes), Vec::new());
        for block in values.chunks(length.max(1)).flat_map(|line| line.chunks(BLOCK)) {
            let scale = block_scale(block);
            scales.push(scale);
            codes.extend(block.iter().map(|&x| code(x, scale).to_le_bytes()[0]));
        }
        let parts = QuantizedParts::new(source, spec, codes, BlockScales::F32(scales));
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        check_joint_widths(sources)?;
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        self.check(tensor.format())?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let (_, length) = lines(tensor.axis(), rows, cols);
        let blocks = tensor.codes().chunks(length.max(1)).flat_map(|line| line.chunks(BLOCK));
        let scales = tensor.scales().as_f32().unwrap_or_default();
        let values: Vec<f32> = blocks
            .zip(scales)
            .flat_map(|(block, &scale)| block.iter().map(move |&code| f32::from(i8::from_le_bytes([code])) * scale))
            .collect();
        Ok(match tensor.axis() {
            Axis::Row => values,
            Axis::Column => transpose(&values, cols, rows),
        })
    }
}

/// Number and length of the lines that blocks run along.
fn lines(axis: Axis, rows: usize, cols: usize) -> (usize, usize) {
    match axis {
        Axis::Row => (rows, cols),
        Axis::Column => (cols, rows),
    }
}

/// `[rows, cols]` as `[cols, rows]`.
fn transpose(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|index| values[index % rows * cols + index / rows]).collect()
}

fn block_scale(block: &[f32]) -> f32 {
    let amax = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    amax.min(f32::MAX) / 127.0
}

fn code(x: f32, scale: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    // A float becomes the nearest `i8` that exists, and NaN becomes 0.
    (x / scale).round_ties_even().max(-127.0) as i8
}
