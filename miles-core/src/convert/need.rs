//! [`Need`]: how many bytes a unit holds at once, and whether it can do with fewer.

use super::plan::{Unit, Work};
use super::stream::CHUNK_BYTES;
use crate::checkpoint::StoredModel;
use crate::format::{band_rows, builtin_rule};
use crate::network::ParamId;
use crate::plugin::Quantizer;
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::Dtype;

/// Memory of a unit, as upper bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// Made in one piece.
    whole_bytes: u64,
    /// Made band by band, where that gives the same bytes.
    banded: Option<Banded>,
}

/// Memory of a matrix that is made in bands of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Banded {
    /// Bands are multiples of so many rows.
    piece_rows: usize,
    /// Bytes of each row of a band.
    row_bytes: u64,
    /// Bytes held until the last band.
    fixed_bytes: u64,
}

/// How a unit is made within its share of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes to be held.
    pub(super) bytes: u64,
    /// Rows of a band; `None`: in one piece.
    pub(super) band_rows: Option<usize>,
}

impl Need {
    pub(super) fn of(unit: &Unit, model: &StoredModel, map: &PrecisionMap, quantizer: &dyn Quantizer) -> Self {
        let output_bytes = unit.output_bytes();
        match &unit.work {
            Work::Stream(..) | Work::Copy(_) => Need { whole_bytes: 4 * CHUNK_BYTES as u64, banded: None },
            Work::Carry(id, dtype) => {
                Need { whole_bytes: reading_bytes(model, *id, *dtype) + output_bytes, banded: None }
            }
            Work::Make(members) => {
                let dtype = |id: &ParamId| match map.entry(*id).format {
                    TensorFormat::Dense(dtype) => dtype,
                    TensorFormat::Quantized(_) => Dtype::Bf16,
                };
                let elements = |id: &ParamId| model.all().parameter(*id).elements();
                let originals: u64 = members.iter().map(|id| (elements(id) * dtype(id).element_bytes()) as u64).sum();
                let reading = members.iter().map(|id| reading_bytes(model, *id, dtype(id))).max().unwrap_or(0);
                let scratch =
                    |id: &ParamId| map.weight_spec(*id).map_or(0, |spec| quantizer.scratch_bytes(&spec, elements(id)));
                let making = output_bytes + members.iter().map(scratch).sum::<u64>();
                let banded = match members.as_slice() {
                    [id] => Banded::of(*id, output_bytes, model, map, quantizer),
                    _ => None,
                };
                Need { whole_bytes: originals + reading.max(making), banded }
            }
        }
    }

    /// The least with which the unit can be made.
    pub(super) fn least_bytes(&self) -> u64 {
        let banded = self.banded.map(|banded| banded.bytes(banded.piece_rows));
        banded.map_or(self.whole_bytes, |banded| banded.min(self.whole_bytes))
    }

    /// In one piece if that fits `share_bytes` or there is no other way, else in the largest bands that fit.
    pub(super) fn within(&self, share_bytes: u64) -> Share {
        match self.banded {
            Some(banded) if self.whole_bytes > share_bytes => {
                let fitting = share_bytes.saturating_sub(banded.fixed_bytes) / banded.row_bytes.max(1);
                let pieces = (fitting as usize / banded.piece_rows).max(1);
                let rows = pieces * banded.piece_rows;
                Share { bytes: banded.bytes(rows), band_rows: Some(rows) }
            }
            _ => Share { bytes: self.whole_bytes, band_rows: None },
        }
    }
}

impl Banded {
    fn of(
        id: ParamId,
        output_bytes: u64,
        model: &StoredModel,
        map: &PrecisionMap,
        quantizer: &dyn Quantizer,
    ) -> Option<Self> {
        let spec = map.weight_spec(id)?;
        let stored = model.bound().in_one_piece(id)?;
        let parameter = model.all().parameter(id);
        let (rows, cols) = parameter.rows_cols();
        let layout = builtin_rule(&spec.format)?.layout(rows, cols, &spec).ok()?;
        let piece_rows = band_rows(&spec).filter(|_| layout.outer_len == 0 && spec.partition.is_whole())?;
        // A band in BF16, then its codes and scales; in any other number type it is widened and rounded first.
        let bf16 = 2 * cols as u64;
        let reading = if stored == Dtype::Bf16 { 0 } else { (stored.element_bytes() * cols + 4 * cols) as u64 + bf16 };
        let making = quantizer.scratch_bytes(&spec, cols) + output_bytes.div_ceil(rows.max(1) as u64);
        let scale_bytes = 4 * (layout.scale_rows * layout.scale_cols) as u64;
        Some(Banded { piece_rows, row_bytes: bf16 + reading.max(making), fixed_bytes: scale_bytes })
    }

    fn bytes(&self, rows: usize) -> u64 {
        self.fixed_bytes + rows as u64 * self.row_bytes
    }
}

/// What reading a parameter in `dtype` takes beside the tensor that comes out.
fn reading_bytes(model: &StoredModel, id: ParamId, dtype: Dtype) -> u64 {
    let parameter = model.all().parameter(id);
    let stored = model.bound().source_bytes(id, parameter);
    let elements = parameter.elements() as u64;
    match (model.stored_format(id) == TensorFormat::Dense(dtype), model.bound().in_one_piece(id)) {
        (true, Some(_)) => 0,
        // Gathered from among others.
        (true, None) => stored,
        // Decoded or widened to F32, then rounded.
        (false, _) => 2 * stored + 4 * elements + elements * dtype.element_bytes() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_takes_the_largest_bands_that_fit() {
        let banded = Some(Banded { piece_rows: 32, row_bytes: 10, fixed_bytes: 100 });
        let need = Need { whole_bytes: 10_000, banded };
        assert_eq!(need.least_bytes(), 420);
        assert_eq!(need.within(10_000), Share { bytes: 10_000, band_rows: None });
        assert_eq!(need.within(9_999), Share { bytes: 100 + 10 * 960, band_rows: Some(960) });
        assert_eq!(need.within(1), Share { bytes: 420, band_rows: Some(32) }, "less than that there is not");
        let whole = Need { whole_bytes: 10_000, banded: None };
        assert_eq!((whole.least_bytes(), whole.within(1)), (10_000, Share { bytes: 10_000, band_rows: None }));
    }
}
